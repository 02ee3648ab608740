"""Interleaved timing: the providers take turns, so that whatever disturbs the machine disturbs them all."""

import gc
import math
import statistics
import time
from dataclasses import dataclass

import torch

from benchmarks.cpu_cases import Workload
from benchmarks.memory import Call

BURST_SECONDS = 0.02
"""A quick call is repeated for at least so long before the clock is read again."""


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one entry a round."""

    case: str
    threads: int
    rows: int
    drawlot: list[float]
    transformers: list[float]
    logsumexp: list[float]

    @property
    def speedup(self) -> float:
        """How many times as long transformers takes: the median of the rounds' ratios."""
        return statistics.median(t / d for t, d in zip(self.transformers, self.drawlot))

    @property
    def logsumexps(self) -> float:
        """How many times as long as a logsumexp drawlot takes: the median of the rounds' ratios."""
        return statistics.median(d / s for d, s in zip(self.drawlot, self.logsumexp))

    def microseconds(self, provider: str) -> float:
        """The median of a provider, per row."""
        return statistics.median(getattr(self, provider)) / self.rows * 1e6


def measure(work: Workload, rounds: int) -> Timing:
    """Time a case with the number of threads that torch has now."""
    providers = {name: getattr(work, name) for name in ("drawlot", "transformers", "logsumexp")}
    loops = {name: _loops(call) for name, call in providers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in providers}
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name, call in providers.items():
                seconds[name].append(_burst(call, loops[name]))
    finally:
        gc.enable()
    return Timing(work.case.name, torch.get_num_threads(), len(work.logits), **seconds)


def _loops(call: Call) -> int:
    _burst(call, 2)  # warm up
    return max(1, math.ceil(BURST_SECONDS / _burst(call, 1)))


def _burst(call: Call, loops: int) -> float:
    start = time.perf_counter()
    for _ in range(loops):
        call()
    return (time.perf_counter() - start) / loops
