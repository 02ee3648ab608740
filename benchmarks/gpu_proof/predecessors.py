"""A captured step whose scan may be set up early draws from what is there when all before it has ended.

What comes right before the scan: nothing, a copy, a kernel, work of two streams, another step. None of these lets the
scan overtake it, so one that does not wait passes: that it touches nothing early `tests/test_early_starts.py` shows.
"""

import torch
from torch import Tensor

from benchmarks.gpu_proof.proof import Proof, Setting
from drawlot import LogitsRows, Sampler, SamplingParams

KINDS = ("nothing", "a copy", "a kernel", "two streams", "another step")
_REQUESTS: tuple[dict[str, object], ...] = (
    {"top_k": 50, "top_p": 0.9},
    {"temperature": 0.0},
    {},
    {"top_p": 0.9, "temperature": 1.3},
)
VOCAB_SIZE = 128_256
_INPUTS, _ROWS, _STEPS = 4, 64, 40


def prove(setting: Setting, proof: Proof) -> None:
    """Each captured step is replayed on other logits, and compared with the CPU's tokens."""
    vocab_size, n = 300 if setting.small else VOCAB_SIZE, _ROWS
    proof.summary = "captured steps draw from what was there when all before them had ended"
    if not setting.on_gpu:
        proof.skip("before a captured step", "the device is no GPU")
        return
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(_INPUTS, n, vocab_size, generator=generator) * 3
    cpu = sampler_of(torch.device("cpu"), "torch", vocab_size, n)
    expected = torch.stack([cpu(logits, rows_of(n, cpu)).token_ids for logits in inputs])
    sampler = sampler_of(setting.device, setting.backend.name, vocab_size, n)
    given = inputs.to(setting.device)
    for kind in KINDS:
        wrong = _replays(kind, sampler, given, expected)
        proof.check(f"before a captured step: {kind}", wrong == 0, rows=n, steps=_STEPS, wrong=wrong)


def sampler_of(device: torch.device, backend: str, vocab_size: int, n: int) -> Sampler:
    """One of n requests, each with a logprob."""
    sampler = Sampler(n, vocab_size, device=device, backend=backend)
    for i in range(n):
        sampler.add_request(i, SamplingParams(seed=i, logprobs=0, **_REQUESTS[i % len(_REQUESTS)]), [1])
    return sampler


def rows_of(n: int, sampler: Sampler) -> LogitsRows:
    """A row of each request."""
    index = torch.arange(n, device=sampler.device)
    cu = torch.arange(n + 1, dtype=torch.int32, device=sampler.device)
    return LogitsRows(index, index, index + 5, index * 0, index * 0, cu)


def _replays(kind: str, sampler: Sampler, given: Tensor, expected: Tensor) -> int:
    """How many tokens of a captured step are not the expected ones."""
    n, half = given.shape[1], given.shape[1] // 2
    logits, arriving, rows = given[0].clone(), given[0].clone(), rows_of(n, sampler)
    sampler(logits, rows)
    torch.cuda.synchronize()
    graph, stream, other = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    first = None
    with torch.cuda.graph(graph, stream=stream):
        if kind == "a copy":
            logits.copy_(arriving)
        elif kind == "a kernel":
            torch.mul(arriving, 1.0, out=logits)
        elif kind == "two streams":
            other.wait_stream(stream)
            logits[:half].copy_(arriving[:half])
            with torch.cuda.stream(other):
                torch.mul(arriving[half:], 1.0, out=logits[half:])
            stream.wait_stream(other)
        elif kind == "another step":
            torch.mul(arriving, 1.0, out=logits)
            first = sampler(logits, rows).token_ids.clone()
            # The whole rows of the step before are the last to read what the next scan writes.
            sampler(logits, rows)
        tokens = sampler(logits, rows).token_ids.clone()
    wrong = 0
    for step in range(_STEPS):
        (logits if kind == "nothing" else arriving).copy_(given[step % _INPUTS])
        for _ in range(3):
            graph.replay()
        for drawn in (tokens, first):
            if drawn is not None:
                wrong += int((drawn.cpu() != expected[step % _INPUTS]).sum())
    return wrong
