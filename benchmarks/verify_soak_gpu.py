"""Steps of verification, again and again, beside other work on a GPU: `python -m benchmarks.verify_soak_gpu -o FILE`.

Programs of its kernels wait for others, so what has to be seen is that no step hangs and that each gives the tokens it
gave before. Requests of all methods, with and without filters, some of which keep more than a list holds, are captured
in a CUDA graph for each number of requests; graphs are replayed in turn while matrices are multiplied on another
stream. If a step hangs, all of it ends after `--hang` seconds, with exit code 1.
"""

import argparse
import faulthandler
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.verify_gpu import Case, Inputs, K
from drawlot import RejectionSampler, Sampler, SamplingParams
from drawlot.entrypoints.sampler_benchmark.environment import environment

SIZES = (1, 2, 8, 26, 27, 64, 150)
"""Requests of a batch; of 26 all rows have a multiprocessor each, of 27 they have not"""
VOCAB_SIZE = 128_256
KINDS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("standard", {}),
    ("block", {}),
    ("block", {"temperature": 0.8, "top_k": 50, "top_p": 0.9}),
    ("standard", {"temperature": 0.8, "top_k": 50, "top_p": 0.9}),
    ("coupled", {"temperature": 0.8, "top_k": 50}),
    ("standard", {"temperature": 0.0}),
    ("block", {"min_p": 0.05}),
    ("coupled", {}),
    ("standard", {"top_p": 0.95}),
    ("block", {"top_p": 0.95}),
)


class Step:
    """A graph of one step, and what it gave first."""

    def __init__(self, requests: int, kinds: tuple[tuple[str, dict[str, Any]], ...]) -> None:
        self.name = f"{requests} requests of {len(kinds)} kinds"
        generator = torch.Generator("cuda").manual_seed(requests)
        self.inputs = Inputs.random(Case("soak", requests), VOCAB_SIZE, generator)
        sampler = Sampler(requests, VOCAB_SIZE, device=torch.device("cuda"), backend="triton")
        self.verifier = RejectionSampler(sampler, num_speculative_tokens=K)
        for i in range(requests):
            method, params = kinds[i % len(kinds)]
            sampler.add_request(i, SamplingParams(seed=i, **params), [1])
            self.verifier.set_method(i, method)
        self.expected = self.verifier(*self.inputs).sampled_token_ids.clone()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.tokens: Tensor = self.verifier(*self.inputs).sampled_token_ids

    def replay(self, times: int) -> None:
        """So many steps; the last one's tokens must be the first one's."""
        self.tokens.fill_(-7)
        for _ in range(times):
            self.graph.replay()
        if not torch.equal(self.tokens, self.expected):
            sys.exit(f"{self.name}: other tokens in {int((self.tokens != self.expected).sum())} places")


def main(arguments: list[str] | None = None) -> None:
    """Replays until the time is over, writes how many steps there were."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verify_soak_gpu", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--hang", type=float, default=240, help="seconds after which all of it has hung")
    given = parser.parse_args(arguments)
    faulthandler.dump_traceback_later(given.hang, exit=True)
    steps = []
    for kinds in (KINDS, KINDS[:2], KINDS[2:4]):
        for requests in SIZES:
            steps.append(Step(requests, kinds))
            print(f"{steps[-1].name}: captured", file=sys.stderr, flush=True)
    other, stream = torch.randn(2, 2048, 2048, device="cuda"), torch.cuda.Stream()  # type: ignore[no-untyped-call]
    counts = dict.fromkeys((step.name for step in steps), 0)
    end = time.monotonic() + given.seconds
    while time.monotonic() < end:
        for number, step in enumerate(steps):
            with torch.cuda.stream(stream):
                # Of one round few and of the next many, so that programs find places in ever another order.
                for _ in range(1 + (counts[step.name] + number) % 7):
                    other = torch.tanh(other @ other.transpose(1, 2))
            times = 5 + number % 3
            step.replay(times)
            counts[step.name] += times
    report = {"environment": environment(torch.device("cuda")), "steps": counts, "all": sum(counts.values())}
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    print(f"{report['all']} steps, the same tokens every time")


if __name__ == "__main__":
    main()
