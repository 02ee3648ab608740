"""Variants of drawlot timed side by side on a GPU: `python -m benchmarks.variants_gpu NAME=SRC... -o FILE`.

SRC is a folder that holds a package `drawlot`; run from the root of the repository. Each variant has a process of its
own, which compiles, draws, and must agree with the torch backend on the CPU before anything is timed. Then rounds: each
case by each variant in turn, by CUDA graph over rotating inputs, so that drift meets them all. What counts are the
ratios: minutes apart, the same kernels differ by 2 %.

Cases of verification, 4 drafts, V = 128,256: verify-block-8, verify-filters-64, ... by the number of requests; of
sampling: k50p90-1, no-filter-64, mixed-64, ... (mixes of `drawlot bench sampler`) by the number of rows, and
k50p90-64-bfloat16.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import verify_gpu
from drawlot.entrypoints.sampler_benchmark import timing, workload
from drawlot.entrypoints.sampler_benchmark.cases import Case
from drawlot.entrypoints.sampler_benchmark.environment import environment
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES

TOP_P = {"temperature": 0.8, "top_p": 0.9}
VERIFIED: dict[str, verify_gpu.Case] = {
    "verify-standard": verify_gpu.Case("standard", 0),
    "verify-block": verify_gpu.Case("block", 0, method="block"),
    "verify-dense": verify_gpu.Case("dense", 0, "dense"),
    "verify-point": verify_gpu.Case("point", 0, "point"),
    "verify-filters": verify_gpu.Case("filters", 0, params=verify_gpu.FILTERS),
    "verify-filters-block": verify_gpu.Case("filters-block", 0, method="block", params=verify_gpu.FILTERS),
    "verify-top-p": verify_gpu.Case("top-p", 0, params=TOP_P),
    "verify-coupled": verify_gpu.Case("coupled", 0, method="coupled"),
}
"""Those of `verify_gpu`, for any number of requests"""


def parts_of(name: str) -> tuple[str, int, str]:
    """Kind, number and dtype of a case.

    Raises:
        ValueError: There is no such case.
    """
    match = re.fullmatch(r"(.+?)-([1-9]\d*)(?:-(bfloat16|float16))?", name)
    if match is None or match[1] not in (*VERIFIED, *MIXES) or (match[3] and match[1] in VERIFIED):
        raise ValueError(f"{name!r} is no case; there are {', '.join((*VERIFIED, *MIXES))}, each with a number")
    return match[1], int(match[2]), match[3] or "float32"


def prepared(name: str) -> Callable[[], list[float]]:
    """What times a burst after the other of a case, in microseconds a step.

    Raises:
        RuntimeError: It does not draw what the torch backend draws on the CPU.
    """
    device, (kind, number, dtype) = torch.device("cuda"), parts_of(name)
    if kind in VERIFIED:
        case = replace(VERIFIED[kind], requests=number)
        generator, margins = torch.Generator(device).manual_seed(7), verify_gpu.Margins()
        inputs = [verify_gpu.Inputs.random(case, 128_256, generator)]
        while sum(each.num_bytes for each in inputs) < 2 * verify_gpu.ROTATED_BYTES and len(inputs) < 16:
            inputs.append(verify_gpu.Inputs.random(case, 128_256, generator))
        step = verify_gpu.captured(case, inputs, 128_256, device, checked=1)
        equality = verify_gpu.equal_on_timed(case, inputs, step.outputs, margins)
        if not equality["passed"]:
            raise RuntimeError(f"{name}: {equality['wrong']}")
        return lambda: verify_gpu.microseconds(step)
    work = workload.make(Case(number, mix=kind, dtype=dtype), device)
    sampler = work.sampler("triton")
    steps = timing.make_round(lambda logits: sampler(logits, work.rows), work.buffers, 1, graph=True)
    on_cpu = workload.Workload(work.case, [work.buffers[0].cpu()], work.history)
    expected = on_cpu.sampler("torch")(on_cpu.buffers[0], on_cpu.rows).token_ids
    wrong = int((steps.drawn[0].token_ids.cpu() != expected).sum())
    if wrong or steps.launch != "graph":
        raise RuntimeError(f"{name}: {wrong} tokens of {len(expected)} differ; {steps.launch}, {steps.why_eager}")
    return lambda: timing.time_in_turn({name: steps}, device)[name]


def work_off(names: list[str]) -> None:
    """The process of a variant: prepares, then times a case for each line that it reads."""
    cases = {}
    for name in names:
        cases[name] = prepared(name)
        print(json.dumps({"prepared": name}), flush=True)
    for line in sys.stdin:
        bursts = cases[line.strip()]()
        print(json.dumps({"us": round(statistics.median(bursts), 2), "min": round(min(bursts), 2)}), flush=True)


def answers(process: subprocess.Popen[str], name: str) -> Iterator[dict[str, Any]]:
    """What a variant's process says, a line at a time."""
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    sys.exit(f"{name}: ended with exit code {process.wait()}")


def main(arguments: list[str] | None = None) -> None:
    """Starts the variants, lets them time in turn, writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variants_gpu", description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME=SRC")
    parser.add_argument("--cases", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        for name in given.cases:
            parts_of(name)
    except ValueError as error:
        parser.error(f"--cases: {error}")
    variants = {}
    for name, folder in (each.split("=", 1) for each in given.variants):
        variants[name] = subprocess.Popen(
            [sys.executable, "-c", f"from benchmarks.variants_gpu import work_off; work_off({given.cases!r})"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(Path(folder).resolve()), str(Path.cwd())))},
        )
    said = {name: answers(process, name) for name, process in variants.items()}
    for case in given.cases:
        for name in variants:
            next(said[name])
            print(f"{case} by {name}: draws what the CPU draws", file=sys.stderr, flush=True)
    report: dict[str, Any] = {"environment": environment(torch.device("cuda")), "variants": given.variants, "us": {}}
    for number in range(given.rounds):
        for case in given.cases:
            times = report["us"].setdefault(case, {name: [] for name in variants})
            for name, process in variants.items():
                assert process.stdin is not None
                print(case, file=process.stdin, flush=True)
                times[name].append(next(said[name])["us"])
            line = "  ".join(f"{name} {times[name][-1]:8.2f}" for name in variants)
            print(f"round {number + 1}  {case:20} {line}", flush=True)
        given.output.write_text(json.dumps(report, indent=1) + "\n")
    for process in variants.values():
        process.kill()


if __name__ == "__main__":
    main()
