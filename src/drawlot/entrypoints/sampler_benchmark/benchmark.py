"""Runs cases: prepare the providers, check what they draw, time them in turn, and write down what was seen."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark import timing, workload
from drawlot.entrypoints.sampler_benchmark.cases import Case
from drawlot.entrypoints.sampler_benchmark.environment import environment
from drawlot.entrypoints.sampler_benchmark.gate import Gate
from drawlot.entrypoints.sampler_benchmark.oracle import Oracle
from drawlot.entrypoints.sampler_benchmark.providers import PROVIDERS, Provider
from drawlot.entrypoints.sampler_benchmark.read_floor import reads
from drawlot.entrypoints.sampler_benchmark.workload import Workload
from drawlot.errors import ParameterError

Record = dict[str, Any]


def benchmark(
    cases: Sequence[Case],
    providers: Sequence[str] | None = None,
    *,
    graph: bool | None = None,
    recorded: Tensor | None = None,
    progress: Callable[[str], object] = lambda line: None,
) -> Record:
    """Time the providers on every case, on the GPU if there is one.

    Args:
        cases: What is drawn.
        providers: Names of `PROVIDERS`; None: all.
        graph: Replay CUDA graphs, where a provider can be captured; None: on a GPU.
        recorded: [M, V], the rows of cases whose distribution is `recorded`.
        progress: Is told what is about to be done.

    Returns:
        A record of JSON's types: `environment`, `conditions`, and `results`, one for each case, with `providers`
        (time, launch, share of the floor, rows per path), `not_run` and `failed` (reasons), `excused`.

    Raises:
        ParameterError: There is no such provider, or no GPU for graphs.
    """
    names = tuple(PROVIDERS) if providers is None else providers
    for name in names:
        if name not in PROVIDERS:
            raise ParameterError("providers", f"must be among {', '.join(PROVIDERS)}", name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    graph = device.type == "cuda" if graph is None else graph
    if graph and device.type == "cpu":
        raise ParameterError("graph", "needs a GPU", graph)
    results = []
    for number, case in enumerate(cases, 1):
        progress(f"[{number}/{len(cases)}] {case}")
        results.append(_run(case, [PROVIDERS[name] for name in names], device, graph, recorded))
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"environment": environment(device), "conditions": _conditions(device, graph), "results": results}


def _run(
    case: Case, providers: Sequence[Provider], device: torch.device, graph: bool, recorded: Tensor | None
) -> Record:
    work = workload.make(case, device, recorded)
    oracle = Oracle(work)
    gate = Gate(oracle)
    not_run: dict[str, str] = {}
    failed: dict[str, list[str]] = {}
    rounds: dict[str, timing.Round] = {}
    paths: dict[str, dict[str, float] | None] = {}
    for provider in providers:
        try:
            reason = provider.why_not(work)
            if reason is not None:
                not_run[provider.name] = reason
                continue
            call = provider.call(work)
            prepared = timing.make_round(call, work.buffers, len(oracle.buffers), graph)
            check = gate.same_tokens if provider.same_tokens else gate.from_kept_set
            wrong = check(provider.name, prepared.drawn[: len(oracle.buffers)])
            paths[provider.name] = _shares(provider, work)
        except Exception as error:
            # Foreign code may fail in any way; the others are still worth timing, and the command still fails.
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            failed[provider.name] = wrong
        else:
            rounds[provider.name] = prepared
    asks_logprobs = any(params.num_logprobs is not None for params in work.params)
    floor_names = {f"read: {name}": call for name, call in reads(device).items()}
    floors = {name: timing.make_round(call, work.buffers, 0, graph) for name, call in floor_names.items()}
    bursts = timing.time_in_turn({**rounds, **floors}, device)
    floor = min(statistics.median(bursts[name]) for name in floors)
    return {
        "case": {"title": str(case), **asdict(case)},
        "bytes": work.bytes,
        "buffers": len(work.buffers),
        "floor_us": floor,
        "providers": {
            name: {
                "us": statistics.median(bursts[name]),
                "launch": each.launch,
                "why_eager": each.why_eager,
                "share_of_floor": floor / statistics.median(bursts[name]),
                "token_alone": asks_logprobs and each.drawn[0].logprobs is None,
                "rows_per_path": paths[name],
                "bursts_us": bursts[name],
            }
            for name, each in rounds.items()
        },
        "not_run": not_run,
        "failed": failed,
        "excused": gate.excused,
    }


def _shares(provider: Provider, work: Workload) -> dict[str, float] | None:
    """The share of all rows that took each path, the largest first."""
    counted = provider.rows_per_path(work)
    if counted is None:
        return None
    rows = len(work.buffers) * work.case.rows
    return {path: counted[path] / rows for path in sorted(counted, key=lambda path: -counted[path])}


def _conditions(device: torch.device, graph: bool) -> Record:
    return {
        "launch": "CUDA graph of one step for each buffer" if graph else "eager",
        "buffers": f"rotating, together at least {workload.TIMES_CACHE} x the L2 cache"
        if device.type == "cuda"
        else "two, which small rows share a cache with",
        "clock": "CUDA events" if device.type == "cuda" else "perf_counter",
        "figure": f"median of {timing.BURSTS} bursts of at least {timing.BURST_SECONDS * 1000:g} ms, providers in turn",
        "floor": "the quickest of kernels that only read the same bytes, launched alike, in the same run",
        "measured": "raw logits in; token, and logprobs and rank where asked and where the provider has them, out",
    }
