"""Variants of drawlot timed side by side on a GPU: `python -m benchmarks.variants_gpu NAME=SRC... -o FILE`.

SRC is a folder that holds a package `drawlot`; run from the root of the repository. Each variant has a process of its
own, which compiles, draws, and must agree with the torch backend on the CPU before anything is timed. Then rounds: each
case by each variant in turn, by CUDA graph over rotating inputs, so that drift meets them all. What counts are the
ratios: minutes apart, the same kernels differ by 2 %, half-width rows also by whether one case is timed or several:
a GPU then starts kernels later.

Cases of verification, 4 drafts, V = 128,256: verify-block-8, verify-filters-64, ... by the number of requests; of
sampling: k50p90-1, no-filter-64, mixed-64, ... (mixes of `drawlot bench sampler`) by the number of rows; further parts
name dtype, distribution and vocabulary where they are others: k50p90-256-bfloat16-v151936, flat-64-normal1.

What rows of top_p cost depends on the token: few are read again as a whole, and the steps of a case, one for each input
and all at one position, have such a row or not. `--steps 64` times so many, each at other positions: a mean.
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
from drawlot.entrypoints.sampler_benchmark.distributions import DISTRIBUTIONS
from drawlot.entrypoints.sampler_benchmark.environment import environment
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES
from drawlot.outputs import SamplerOutput

VOCAB_SIZE = 128_256
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


def parts_of(name: str) -> tuple[str, int, dict[str, Any]]:
    """Kind and number of a case, and what else `Case` is to know.

    Raises:
        ValueError: There is no such case.
    """
    distributions = "|".join(DISTRIBUTIONS)
    match = re.fullmatch(rf"(.+?)-([1-9]\d*)(?:-(bfloat16|float16))?(?:-({distributions}))?(?:-v(\d+))?", name)
    if match is None or match[1] not in (*VERIFIED, *MIXES) or (any(match.groups()[2:]) and match[1] in VERIFIED):
        raise ValueError(f"{name!r} is no case; there are {', '.join((*VERIFIED, *MIXES))}, each with a number")
    given = {"dtype": match[3], "distribution": match[4], "vocab_size": int(match[5]) if match[5] else VOCAB_SIZE}
    return match[1], int(match[2]), {field: value for field, value in given.items() if value}


def prepared(name: str, num_steps: int) -> Callable[[], list[float]]:
    """What times a burst after the other of a case, in microseconds a step; num_steps: as `--steps`, of sampling.

    Raises:
        RuntimeError: It does not draw what the torch backend draws on the CPU.
    """
    device, (kind, number, others) = torch.device("cuda"), parts_of(name)
    if kind in VERIFIED:
        case = replace(VERIFIED[kind], requests=number)
        inputs = verify_gpu.inputs_of(case, VOCAB_SIZE, device)
        step = verify_gpu.captured(case, inputs, VOCAB_SIZE, device, checked=1)
        equality = verify_gpu.equal_on_timed(case, inputs, step.outputs, verify_gpu.Margins())
        if not equality["passed"]:
            raise RuntimeError(f"{name}: {equality['wrong']}")
        return lambda: verify_gpu.microseconds(step)
    work = workload.make(Case(number, mix=kind, **others), device)
    sampler = work.sampler("triton")
    # Each its own tensor, by which its positions are found.
    inputs = [work.buffers[i % len(work.buffers)].view(-1, others["vocab_size"]) for i in range(num_steps)]
    positions = {id(x): work.rows._replace(positions=work.rows.positions + i) for i, x in enumerate(inputs)}

    def draw(x: torch.Tensor) -> SamplerOutput:
        return sampler(x, positions[id(x)] if num_steps else work.rows, work.bitmask)

    steps = timing.make_round(draw, inputs or work.buffers, 1, graph=True)
    on_cpu = workload.Workload(work.case, [work.buffers[0].cpu()], work.history)
    expected = on_cpu.sampler("torch")(on_cpu.buffers[0], on_cpu.rows, on_cpu.bitmask).token_ids
    wrong = int((steps.drawn[0].token_ids.cpu() != expected).sum())
    if wrong or steps.launch != "graph":
        raise RuntimeError(f"{name}: {wrong} tokens of {len(expected)} differ; {steps.launch}, {steps.why_eager}")
    return lambda: timing.time_in_turn({name: steps}, device)[name]


def work_off(names: list[str], num_steps: int) -> None:
    """The process of a variant: prepares, then times a case for each line that it reads."""
    cases = {}
    for name in names:
        cases[name] = prepared(name, num_steps)
        print(f"{name}: draws what the CPU draws", flush=True)
    for line in sys.stdin:
        print(round(statistics.median(cases[line.strip()]()), 2), flush=True)


def answers(process: subprocess.Popen[str], name: str) -> Iterator[str]:
    """What a variant's process says, a line at a time."""
    assert process.stdout is not None
    yield from process.stdout
    sys.exit(f"{name}: ended with exit code {process.wait()}")


def main(arguments: list[str] | None = None) -> None:
    """Starts the variants, lets them time in turn, writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.variants_gpu", description=__doc__)
    parser.add_argument("variants", nargs="+", metavar="NAME=SRC")
    parser.add_argument("--cases", nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=0, help="of sampling, at other positions each; 0: one an input, all at one"
    )
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args(arguments)
    try:
        for name in given.cases:
            parts_of(name)
    except ValueError as error:
        parser.error(f"--cases: {error}")
    if given.steps < 0 or (given.steps and any(parts_of(name)[0] in VERIFIED for name in given.cases)):
        parser.error(f"--steps: at least 0, and 0 with cases of verification; got {given.steps}")
    folders = {name: Path(folder).resolve() for name, _, folder in (each.partition("=") for each in given.variants)}
    for name, folder in folders.items():
        if not (folder / "drawlot" / "__init__.py").is_file():
            # Else the one that is installed would be timed under this name.
            parser.error(f"{name}: needs =SRC, a folder that holds drawlot; got {folder}")
    if len(folders) < len(given.variants):
        parser.error(f"variants: each needs a name of its own; got {' '.join(given.variants)}")
    variants = {name: started(folder, given.cases, given.steps) for name, folder in folders.items()}
    try:
        report = timed_in_turn(variants, given.cases, given.rounds)
    finally:
        for process in variants.values():
            process.kill()
    report["variants"] = given.variants
    report["steps"] = given.steps
    given.output.write_text(json.dumps(report, indent=1) + "\n")


def started(folder: Path, cases: list[str], num_steps: int) -> subprocess.Popen[str]:
    """The process of a variant."""
    script = f"from benchmarks.variants_gpu import work_off; work_off({cases!r}, {num_steps})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(Path.cwd())))}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, env=environment)


def timed_in_turn(variants: dict[str, subprocess.Popen[str]], cases: list[str], rounds: int) -> dict[str, Any]:
    """Microseconds a step, one entry a round."""
    said = {name: answers(process, name) for name, process in variants.items()}
    for _ in cases:
        for name in variants:
            print(f"{name}: {next(said[name])}", end="", file=sys.stderr, flush=True)
    us: dict[str, dict[str, list[float]]] = {case: {name: [] for name in variants} for case in cases}
    for number in range(rounds):
        for case, times in us.items():
            for name, process in variants.items():
                assert process.stdin is not None
                print(case, file=process.stdin, flush=True)
                times[name].append(float(next(said[name])))
            line = "  ".join(f"{name} {times[name][-1]:8.2f}" for name in variants)
            print(f"round {number + 1}  {case:20} {line}", flush=True)
    return {"environment": environment(torch.device("cuda")), "us": us}


if __name__ == "__main__":
    main()
