"""Few forms of batches for as long as wanted: `python -m benchmarks.gpu_proof.long_equality FORM... --seconds S`.

A form is RAW[+bf16]:V, plain[+bf16]:V or edits+raw[+bf16]:V, so that little is compiled (and may have been before, by
`compile_ahead`). Each has a process of its own; a line each on stdout, also if they are ended before their time.
"""

import argparse
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.gpu_proof.edits_of_rows import EDITS
from benchmarks.gpu_proof.equality import Tally, judge
from benchmarks.gpu_proof.proof import Setting
from benchmarks.gpu_proof.random_rows import Form, random_batch
from drawlot.kernels.registry import get_backend

_PARTS = {"raw", "plain", "edits", "bf16"}


def form_of(name: str) -> tuple[Form, int]:
    """A form and its vocabulary.

    Raises:
        ValueError: There is no such form.
    """
    words, _, size = name.partition(":")
    parts = set(words.split("+"))
    if not size.isdecimal() or not parts <= _PARTS:
        raise ValueError(f"{name!r} is no form; one is raw, plain or edits+raw, with +bf16 if wanted, and :V")
    dtype = torch.bfloat16 if "bf16" in parts else torch.float32
    edits, mode = tuple(EDITS) if "edits" in parts else (), "raw_logprobs" if "raw" in parts else None
    return Form(dtype, "contiguous", edits, mode, wide=False), int(size)


def compare(name: str, seconds: float, seed: int) -> str:
    """Random batches of a form until the time is over, or the process is told to end; what became of them."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    device = torch.device("cuda")
    setting = Setting(get_backend("triton", device), device, False)
    form, vocab_size = form_of(name)
    generator, tally, end = setting.generator(seed), Tally(), time.monotonic() + seconds
    n = max(16, min(4096, 30_000_000 // vocab_size))
    while time.monotonic() < end and not stopped:
        batch = random_batch(generator, n, vocab_size, form)
        judge(batch, form, setting.draw(batch), tally)
    return (
        f"{name}: {tally.rows:,} rows, {tally.wrong} wrong, {len(tally.excused)} excused of {tally.near_ties} near-ties"
    )


def main(arguments: list[str] | None = None) -> int:
    """All forms at once; exit code 1 if a row is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_proof.long_equality", description=__doc__)
    parser.add_argument("forms", nargs="+")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    failed = False
    with ProcessPoolExecutor(len(given.forms), get_context("spawn")) as pool:
        running: list[Any] = [pool.submit(compare, name, given.seconds, given.seed) for name in given.forms]
        for each in running:
            told = each.result()
            failed |= " 0 wrong" not in told
            print(told, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
