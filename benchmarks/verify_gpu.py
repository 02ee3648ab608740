"""Verification of drafts on a GPU: equality with the CPU first, then time: `python -m benchmarks.verify_gpu -o FILE`.

Run from the root of the repository. Random ragged batches of every kind, and the very inputs that are timed, must give
the CPU's tokens; near-ties, the only excuse, are counted. Then CUDA graphs of steps over rotating inputs are timed, all
cases in turn. One line a result on stdout, all of it as JSON in FILE; exit code 1 if a token differs.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, SparseDraftLogits, VerifierOutput
from drawlot.entrypoints.sampler_benchmark.environment import environment
from drawlot.kernels import reference, registry
from drawlot.kernels.drafts import VerifiedRows
from tests.verification.cases import RATES, Batch, random_batch

K = 4
SIZES = {1: 2, 3: 6, 129: 8, 1000: 6, 4097: 4, 128_256: 2}
"""Random batches by vocabulary size; each compiles forms of its own, which takes a minute or more"""
REQUESTS = 64
"""Requests of one"""
NEAR_TIE = 2.0**-18
MOST_EXCUSED = 3
ROUNDS, BURSTS, BURST_SECONDS, ROTATED_BYTES = 5, 15, 0.01, 300e6
FILTERS = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}


@dataclass
class Case:
    """What is timed: 64 or 8 requests with K drafts each."""

    name: str
    requests: int
    form: str = "lse"
    """lse, dense or point"""
    method: str = "standard"
    params: dict[str, Any] = field(default_factory=dict)
    greedy: int = 0
    """How many requests are greedy"""
    at_most: float | None = None
    """The target, in microseconds"""


CASES = [
    Case("dense with lse", 64, at_most=75),
    Case("dense with lse", 8, at_most=18),
    Case("dense", 64, "dense", at_most=100),
    Case("dense", 8, "dense"),
    Case("point mass", 64, "point", at_most=65),
    Case("point mass", 8, "point"),
    Case("greedy, q given", 64, greedy=64, at_most=55),
    Case("greedy, q given", 8, greedy=8),
    Case("one greedy row", 64, greedy=1),
    Case("filters", 64, params=FILTERS, at_most=1.3 * 75),
    Case("filters", 8, params=FILTERS, at_most=1.3 * 18),
    Case("filters, dense", 64, "dense", params=FILTERS, at_most=1.3 * 100),
    Case("filters, point mass", 64, "point", params=FILTERS, at_most=1.3 * 65),
    Case("block", 64, method="block", at_most=1.25 * 75),
    Case("block", 8, method="block", at_most=1.25 * 18),
    Case("filters, block", 64, method="block", params=FILTERS),
    Case("filters, block", 8, method="block", params=FILTERS),
    Case("coupled", 64, method="coupled"),
    Case("coupled", 8, method="coupled"),
]


class Inputs(NamedTuple):
    """One call of the verifier."""

    logits: Tensor
    rows: LogitsRows
    drafts: Tensor
    q: Tensor | None
    lse: Tensor | None

    @classmethod
    def random(cls, case: Case, vocab_size: int, generator: torch.Generator) -> "Inputs":
        """Targets N(0, 3); the drafter's logits are the target's and N(0, 1); drafts are drawn from them."""
        r, device = case.requests, generator.device
        logits = 3 * torch.randn(r * (K + 1), vocab_size, generator=generator, device=device)
        q = logits.view(r, K + 1, vocab_size)[:, :K].contiguous()
        q += torch.randn(q.shape, generator=generator, device=device)
        noise = torch.empty_like(q).exponential_(generator=generator).log_().neg_()
        drafts = (q + noise).argmax(2)
        greedy = logits.view(r, K + 1, vocab_size)[:, :K].argmax(2)
        # Greedy requests draft the best token, as often as others accept.
        right = torch.rand(drafts.shape, generator=generator, device=device) < 0.7
        some = torch.arange(r, device=device).unsqueeze(1) < case.greedy
        drafts = torch.where(some & right, greedy, drafts)
        lse = q.logsumexp(2) if case.form == "lse" else None
        i = torch.arange(r, device=device)
        local = torch.arange(K + 1, device=device).repeat(r)
        rows = LogitsRows(
            i,
            i.repeat_interleave(K + 1),
            local,
            1000 * i.repeat_interleave(K + 1) + local,
            torch.cat((i.unsqueeze(1), drafts), 1).flatten(),
            ((K + 1) * torch.arange(r + 1, device=device)).to(torch.int32),
        )
        return cls(logits, rows, drafts, None if case.form == "point" else q, lse)

    def on_cpu(self) -> "Inputs":
        """A copy on the host."""
        return Inputs(*(_moved(part, torch.device("cpu")) for part in self))

    @property
    def num_bytes(self) -> int:
        """Of the logits."""
        return sum(part.nbytes for part in (self.logits, self.q) if part is not None)


def _moved(part: Any, device: torch.device) -> Any:
    if isinstance(part, Tensor):
        return part.to(device)
    if isinstance(part, (LogitsRows, SparseDraftLogits)):
        return type(part)(*(_moved(column, device) for column in part))
    return part


def verifier_of(case: Case, vocab_size: int, device: torch.device, backend: str) -> RejectionSampler:
    """A verifier with the requests of a case."""
    sampler = Sampler(case.requests, vocab_size, device=device, backend=backend)
    verifier = RejectionSampler(sampler, num_speculative_tokens=K, method=case.method)
    for i in range(case.requests):
        params = {"temperature": 0.0} if i < case.greedy else case.params
        sampler.add_request(i, SamplingParams(seed=1000 + i, **params), [1])
    return verifier


def verify_batch(batch: Batch, device: torch.device, backend: str) -> VerifierOutput:
    """As `Batch.verify`, on a device; the result is on the CPU."""
    sampler = Sampler(
        len(batch.params),
        batch.logits.shape[1],
        device=device,
        logprobs_mode=batch.mode,
        use_fp64_gumbel=batch.wide,
        backend=backend,
    )
    verifier = RejectionSampler(sampler, num_speculative_tokens=len(RATES), synthetic_rates=RATES)
    for r, (s, params) in enumerate(zip(batch.state_rows, batch.params)):
        sampler.add_request(s, params, batch.prompts[r], batch.outputs[r], r % 128, batch.bad_words[r])
        verifier.set_method(s, batch.methods[r])
    given = batch.logits, batch.rows, batch.drafts, batch.draft_logits, batch.draft_lse, batch.bitmask
    done: VerifierOutput = verifier(*(_moved(part, device) for part in given))
    return VerifierOutput(*(None if part is None else part.cpu() for part in done[:3]), None, done.status.cpu())


class Margins:
    """By how much the reference's decisions were made, call by call."""

    def __init__(self) -> None:
        self.last: Tensor | None = None
        verify_rows = reference.verify_rows

        def spy(*args: Any, **kwargs: Any) -> VerifiedRows:
            verified = verify_rows(*args, **kwargs)
            self.last = verified.margin
            return verified

        reference.verify_rows = spy  # type: ignore[assignment]
        registry._load.cache_clear()


def differs(got: VerifierOutput, expected: VerifierOutput) -> Tensor:
    """bool [R]: requests of which something else was emitted."""
    tokens = (got.sampled_token_ids.cpu() != expected.sampled_token_ids.cpu()).any(1)
    counts = got.num_sampled.cpu() != expected.num_sampled.cpu()
    return tokens | counts | (got.num_accepted.cpu() != expected.num_accepted.cpu())


def equal_on_random_batches(
    device: torch.device, backend: str, sizes: dict[int, int], share: int = 0, shares: int = 1
) -> dict[str, Any]:
    """One share of ragged batches of all kinds against the reference; sizes: batches by vocabulary size."""
    requests, excused, wrong, statuses, margins = 0, 0, [], 0, Margins()
    for vocab_size, batches in sizes.items():
        rng = np.random.default_rng([40, vocab_size])
        for number in range(batches):
            batch = random_batch(rng, vocab_size, REQUESTS)
            if number % shares != share:
                continue
            tiny = batch.logits.dtype == torch.bfloat16 and bool((batch.logits.float().abs() < 1e-37).any())
            # The interpreter's bfloat16 loses subnormal numbers.
            if tiny and device.type == "cpu":
                continue
            margins.last = None
            expected = verify_batch(batch, torch.device("cpu"), "reference")
            got = verify_batch(batch, device, backend)
            requests += REQUESTS
            print(f"V={vocab_size} batch {number}: compared", file=sys.stderr, flush=True)
            statuses += int((got.status != expected.status).sum())
            for r in differs(got, expected).nonzero().flatten().tolist():
                margin = math.inf if margins.last is None else float(margins.last[r])
                if margin < NEAR_TIE:
                    excused += 1
                else:
                    wrong.append(
                        f"V={vocab_size} batch {number} request {r} {batch.methods[r]} {margin=:.3g} {batch.note}"
                    )
    return {"requests": requests, "excused": excused, "wrong": wrong, "statuses": statuses}


def equal_in_processes(device: str, backend: str, sizes: dict[int, int], processes: int) -> dict[str, Any]:
    """`equal_on_random_batches`, shared among processes: most of its time is compiling."""
    total: dict[str, Any] = {"requests": 0, "excused": 0, "wrong": [], "statuses": 0}
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        shares = [
            pool.submit(equal_on_random_batches, torch.device(device), backend, sizes, i, processes)
            for i in range(processes)
        ]
        for done in as_completed(shares):
            total = {name: value + done.result()[name] for name, value in total.items()}
            print("random batches:", {**total, "wrong": len(total["wrong"])}, flush=True)
    return {"passed": not total["wrong"] and not total["statuses"] and total["excused"] <= MOST_EXCUSED, **total}


def equal_on_timed(case: Case, inputs: list[Inputs], outputs: list[VerifierOutput], margins: Margins) -> dict[str, Any]:
    """What the timed inputs gave against the torch backend on the CPU; the reference weighs what differs."""
    excused, wrong, accepted = 0, [], 0
    vocab_size = inputs[0].logits.shape[1]
    for number, (each, got) in enumerate(zip(inputs, outputs)):
        host = each.on_cpu()
        expected = verifier_of(case, vocab_size, torch.device("cpu"), "torch")(*host)
        accepted += int(expected.num_accepted.sum())
        different = differs(got, expected).nonzero().flatten().tolist()
        if different:
            verifier_of(case, vocab_size, torch.device("cpu"), "reference")(*host)
            assert margins.last is not None
        for r in different:
            if margins.last is not None and margins.last[r] < NEAR_TIE:
                excused += 1
            else:
                wrong.append(f"input {number} request {r}")
    rate = accepted / (len(outputs) * case.requests * K)
    return {"passed": not wrong and excused <= MOST_EXCUSED, "excused": excused, "wrong": wrong, "accepted": rate}


def copied(out: VerifierOutput) -> VerifierOutput:
    """Tokens, counts and status, kept from the next call."""
    return VerifierOutput(*(part.clone() for part in out[:3]), None, out.status.clone())


class Timed(NamedTuple):
    """A graph of one step for each input."""

    replay: Callable[[], object]
    steps: int
    outputs: list[VerifierOutput]
    verifier: RejectionSampler
    inputs: list[Inputs]
    """Kept, as the verifier is, since a graph replays in the memory of what it captured"""
    allocated: int
    """Allocations of a step after the first"""
    eager_us: float
    """What an eager call costs the host"""


def captured(case: Case, inputs: list[Inputs], vocab_size: int, device: torch.device, checked: int) -> Timed:
    """Warms up, sees that the host neither waits nor allocates, and captures."""
    verifier = verifier_of(case, vocab_size, device, "triton")
    verifier(*inputs[0])
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    begin = time.perf_counter()
    for _ in range(20):
        verifier(*inputs[0])
    eager_us = (time.perf_counter() - begin) / 20 * 1e6
    torch.cuda.set_sync_debug_mode("default")
    allocated = (torch.cuda.memory_stats()["allocation.all.allocated"] - before) // 20
    torch.cuda.synchronize()
    checking, timed = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(checking):
        outputs = [copied(verifier(*each)) for each in inputs[:checked]]
    with torch.cuda.graph(timed):
        last = [verifier(*each) for each in inputs][-1]
    for each in (*outputs, last):
        for part in each[:3]:
            part.fill_(-7)
    checking.replay()
    # Poisoned: what is not written stays.
    last.sampled_token_ids.fill_(-7)
    timed.replay()
    torch.cuda.synchronize()
    if bool((last.sampled_token_ids == -7).any()):
        raise RuntimeError(f"{case.name}: the graph that is timed does not write its tokens")
    return Timed(timed.replay, len(inputs), outputs, verifier, inputs, allocated, eager_us)


def burst(timed: Timed, repeats: int) -> float:
    """Seconds of so many replays."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        timed.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def microseconds(timed: Timed) -> list[float]:
    """A step's time in each burst."""
    burst(timed, 3)
    repeats = max(1, math.ceil(BURST_SECONDS / burst(timed, 1)))
    return [1e6 * burst(timed, repeats) / (repeats * timed.steps) for _ in range(BURSTS)]


def kernels(timed: Timed) -> dict[str, float]:
    """Microseconds of each kernel in a replay; those that are set up early count their wait too."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        timed.replay()
        torch.cuda.synchronize()
    events = [e for e in profiler.key_averages() if e.self_device_time_total > 0]
    return {e.key: round(e.self_device_time_total / timed.steps, 2) for e in events}


def inputs_of(case: Case, vocab_size: int, device: torch.device) -> list[Inputs]:
    """So many that together they are larger than a cache, the same in every run."""
    generator = torch.Generator(device).manual_seed(7)
    inputs = [Inputs.random(case, vocab_size, generator)]
    while sum(each.num_bytes for each in inputs) < 2 * ROTATED_BYTES and len(inputs) < 16:
        inputs.append(Inputs.random(case, vocab_size, generator))
    return inputs


def prepared_case(case: Case, vocab_size: int, device: torch.device, margins: Margins) -> tuple[Timed, dict[str, Any]]:
    """Checks one case; its graph, and what is known before it is timed."""
    inputs = inputs_of(case, vocab_size, device)
    timed = captured(case, inputs, vocab_size, device, checked=2)
    return timed, {
        "case": case.name,
        "requests": case.requests,
        "method": case.method,
        "form": case.form,
        "params": case.params,
        "greedy": case.greedy,
        "at_most": case.at_most,
        "allocations_a_step": timed.allocated,
        "eager_host_us": round(timed.eager_us, 1),
        "inputs": len(inputs),
        "equality": equal_on_timed(case, inputs, timed.outputs, margins),
    }


def time_in_turn(prepared: list[tuple[Timed, dict[str, Any]]]) -> None:
    """Writes into the reports of cases how long a step takes: what counts are ratios, and a GPU drifts by 2 %."""
    rounds: list[list[float]] = [[] for _ in prepared]
    for _ in range(ROUNDS):
        for (timed, _report), medians in zip(prepared, rounds):
            medians.append(statistics.median(microseconds(timed)))
    for (timed, report), medians in zip(prepared, rounds):
        us = statistics.median(medians)
        report |= {"us": round(us, 2), "us_of_rounds": [round(each, 2) for each in medians]}
        report |= {"met": None if report["at_most"] is None else us <= report["at_most"]}
        report["kernels_us"] = kernels(timed)


def main(arguments: list[str] | None = None) -> int:
    """Checks, times, writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_gpu", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", default=[""], help="parts of names of cases")
    parser.add_argument("--parts", nargs="+", choices=("random", "timing"), default=["timing", "random"])
    parser.add_argument("--processes", type=int, default=14, help="that share the random batches")
    given = parser.parse_args(arguments)
    device, margins = torch.device(given.device), Margins()
    report: dict[str, Any] = {"environment": environment(device), "drafts": K, "cases": []}
    failed = False
    if "random" in given.parts:
        report["random"] = equal_in_processes(given.device, "triton", SIZES, given.processes)
        print(*report["random"]["wrong"][:10], sep="\n  ", flush=True)
        given.output.write_text(json.dumps(report, indent=1) + "\n")
        failed |= not report["random"]["passed"]
    prepared = []
    for case in CASES if "timing" in given.parts else []:
        if not any(part in case.name for part in given.only):
            continue
        prepared.append(prepared_case(case, 128_256, device, margins))
        equality = prepared[-1][1]["equality"]
        failed |= not equality["passed"]
        words = "equal" if equality["passed"] else f"DIFFERS {equality['wrong']}"
        print(f"{case.name}, {case.requests} requests: {words}", file=sys.stderr, flush=True)
    time_in_turn(prepared)
    for _timed, result in prepared:
        report["cases"].append(result)
        print(
            f"{result['case']:22} {result['requests']:3}  {result['us']:7.2f} us  (at most {result['at_most']})  "
            f"accepted {result['equality']['accepted']:.2f}  host {result['eager_host_us']} us, "
            f"{result['allocations_a_step']} allocations",
            flush=True,
        )
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
