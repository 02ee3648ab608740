"""What a step of the sampler costs the host beside a GPU: `python -m benchmarks.host_gpu -o FILE`.

An eager `sampler(logits, rows)` and its `commit` at 256 rows; requests may come and go before a step. 20 steps without
such may not wait for the device (torch's debug mode "error"); what they allocate there and compile is counted. The
figure is the median of calls, each timed alone, with fewer on their way to the device than its queue holds.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from drawlot import LogitsRows, Sampler
from drawlot.entrypoints.sampler_benchmark.environment import environment
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES
from drawlot.kernels.triton import launch

VOCAB_SIZE, ROWS = 128_256, 256
CALLS, BURST = 400, 20
TIMED = ("no-logprobs", "k50p90", "mixed")


class Step:
    """A sampler with one request a row, and what a step does."""

    def __init__(self, mix: str) -> None:
        device = torch.device("cuda")
        self.kinds = MIXES[mix]
        self.sampler = Sampler(ROWS, VOCAB_SIZE, device=device, backend="triton")
        self.logits = torch.randn(ROWS, VOCAB_SIZE, device=device) * 3
        index = torch.arange(ROWS, device=device)
        cu = torch.arange(ROWS + 1, dtype=torch.int32, device=device)
        self.rows = LogitsRows(index, index.clone(), index * 0, index * 0 + 9, index * 0, cu, range(ROWS))
        self.one = torch.ones_like(index)
        for i in range(ROWS):
            self.admit(i)

    def admit(self, i: int) -> None:
        """A request of the row's kind."""
        self.sampler.add_request(i, replace(self.kinds[i % len(self.kinds)], seed=i), [1, 2, 3], [3])

    def renew(self, count: int) -> None:
        """Others take the first rows."""
        for i in range(count):
            self.sampler.remove_request(i)
            self.admit(i)

    def draw(self) -> None:
        """A token for each row."""
        self.out = self.sampler(self.logits, self.rows)

    def commit(self) -> None:
        """What was drawn is remembered."""
        self.sampler.commit(self.rows.idx_mapping, self.out.token_ids.unsqueeze(1), self.one)


def microseconds(timed: Callable[[], None], before: Callable[[], object] = lambda: None) -> dict[str, float]:
    """Of calls on the host: median and 90th percentile; `before` runs before each and is not timed."""
    times = []
    for call in range(CALLS):
        if call % BURST == 0:
            torch.cuda.synchronize()
        before()
        start = time.perf_counter()
        timed()
        times.append((time.perf_counter() - start) * 1e6)
    torch.cuda.synchronize()
    return {"median_us": round(statistics.median(times), 1), "p90_us": round(sorted(times)[CALLS * 9 // 10], 1)}


def measured(mix: str) -> dict[str, object]:
    """Times of one mix, and what no step may do."""
    step = Step(mix)
    for count in (0, 1, ROWS, 0):
        step.renew(count)
        step.draw()
        step.commit()
    torch.cuda.synchronize()
    taken, compiled = torch.cuda.memory_stats()["allocation.all.allocated"], len(launch._compiled)
    torch.cuda.set_sync_debug_mode("error")
    for _ in range(BURST):
        step.draw()
        step.commit()
    torch.cuda.set_sync_debug_mode("default")
    return {
        "allocations on the device, of 20 steps": torch.cuda.memory_stats()["allocation.all.allocated"] - taken,
        "kernels compiled, of 20 steps": len(launch._compiled) - compiled,
        "draw": microseconds(step.draw),
        "draw, 1 request renewed": microseconds(step.draw, lambda: step.renew(1)),
        # To admit 256 requests, of which some edit, takes a second.
        "draw, all requests renewed": microseconds(step.draw, lambda: step.renew(ROWS)) if mix != "mixed" else None,
        "commit": microseconds(step.commit),
    }


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_gpu", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    report: dict[str, object] = {"environment": environment(torch.device("cuda")), "rows": ROWS}
    for mix in TIMED:
        report[mix] = measured(mix)
        print(mix, json.dumps(report[mix]), flush=True)
    given.output.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
