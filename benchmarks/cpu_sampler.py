"""drawlot against transformers' processors and a logsumexp on a CPU: `python -m benchmarks.cpu_sampler [--json FILE]`.

Nothing is timed before what is timed has drawn the reference's tokens. Logits, parameters and positions are the same
for all providers; the processors are transformers' own, built beforehand and called directly on float32 logits, all
rows at once wherever the rows agree. The logits stay where they are between the calls, for all providers alike.

Exit code 0: all targets are met with one thread (the other thread setting is for information); 1: one is missed;
2: drawlot draws other tokens than the reference, and nothing was timed.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers

import drawlot
from benchmarks import memory
from benchmarks.cpu_cases import CASES, workload
from benchmarks.cpu_timing import Timing, measure
from benchmarks.equality import differences

MEMORY_COPIES, IMPORT_SECONDS = 1.5, 0.2


@dataclass(frozen=True)
class Target:
    """One line of the verdict."""

    name: str
    value: float
    limit: float
    at_least: bool
    goal: float | None = None

    @property
    def met(self) -> bool:
        """The value is on the right side of the limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def __str__(self) -> str:
        goal = "" if self.goal is None else f", goal {self.goal:g}"
        sign = ">=" if self.at_least else "<="
        return (
            f"{'met   ' if self.met else 'MISSED'}  {self.name}: {self.value:.3g} (target {sign} {self.limit:g}{goal})"
        )


def timing_targets(timings: Sequence[Timing]) -> list[Target]:
    """The targets of the cases, measured with one thread."""
    targets = []
    one_thread = {timing.case: timing for timing in timings if timing.threads == 1}
    for case in CASES:
        timing = one_thread[case.name]
        if case.speedup is not None:
            name = f"{case.name}: times as fast as transformers"
            targets.append(Target(name, timing.speedup, case.speedup, True, case.goal))
        if case.logsumexps is not None:
            targets.append(Target(f"{case.name}: logsumexps", timing.logsumexps, case.logsumexps, False))
    return targets


def import_seconds(repeat: int = 5) -> float:
    """The median time of `import drawlot`, its sampler included, in a process that has imported torch."""
    use = "import drawlot; drawlot.sample, drawlot.Sampler"  # loaded when first named
    code = f"import torch, time; t = time.perf_counter(); {use}; print(time.perf_counter() - t)"
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(repeat)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "drawlot": drawlot.__version__,
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in fields.items()}
    return f"{names.get('model name', platform.processor())}, model {names.get('model', '?')}"


def _print_timings(timings: Sequence[Timing]) -> None:
    head = "microseconds a row, medians", "threads", "drawlot", "transformers", "logsumexp", "speed-up", "logsumexps"
    print("{:28} {:>7} {:>9} {:>13} {:>10} {:>9} {:>11}".format(*head))
    for timing in timings:
        medians = [timing.microseconds(name) for name in ("drawlot", "transformers", "logsumexp")]
        columns = "{:28} {:7} {:9.1f} {:13.1f} {:10.1f} {:8.1f}x {:10.2f}x"
        print(columns.format(timing.case, timing.threads, *medians, timing.speedup, timing.logsumexps))


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cpu_sampler", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every number here too")
    args = parser.parse_args(argv)
    facts = environment()
    print(f"{args.rows} rows of {args.vocab} logits, {args.rounds} interleaved rounds")
    print(", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items()))

    works = [workload(case, args.rows, args.vocab) for case in CASES]
    wrong = [line for work in works for line in differences(work)]
    if wrong:
        print("drawlot does not draw the reference's tokens; nothing was timed:", *wrong, sep="\n  ")
        return 2
    print("all tokens equal the reference's\n")

    threads_before, timings = torch.get_num_threads(), []
    try:
        for threads in sorted({1, int(str(facts["cpus"]))}):
            torch.set_num_threads(threads)
            timings += [measure(work, args.rounds) for work in works]
    finally:
        torch.set_num_threads(threads_before)
    _print_timings(timings)

    copies = memory.measure(args.rows, args.vocab)
    targets = timing_targets(timings)
    if copies is None:
        print("\npeak extra memory: cannot be measured on this system")
    else:
        print("\npeak extra memory in float32 copies of the rows    resident  allocated (see benchmarks/memory.py)")
        for name, peaks in copies.items():
            print(f"  {name:48} {peaks['resident']:8.2f} {peaks['allocated']:10.2f}")
            targets.append(Target(f"{name}: copies in memory", peaks["resident"], MEMORY_COPIES, False))
    targets.append(Target("import drawlot beyond torch, seconds", import_seconds(), IMPORT_SECONDS, False))
    print("\nverdict, with one thread:", *targets, sep="\n  ")
    if args.json is not None:
        record = {
            "environment": facts,
            "rows": args.rows,
            "vocab": args.vocab,
            "timings": [{**asdict(t), "speedup": t.speedup, "logsumexps": t.logsumexps} for t in timings],
            "memory": copies,
            "targets": [{**asdict(target), "met": target.met} for target in targets],
        }
        args.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
