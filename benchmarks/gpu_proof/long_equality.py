"""Few forms of batches for as long as wanted: `python -m benchmarks.gpu_proof.long_equality FORM... --seconds S`.

A form is raw:V, plain:V or edits+raw:V, with +bf16 before the colon if wanted: so few that little is compiled, which
may have been done before, by `compile_ahead`. Each has a process of its own, and tells a line on stdout what became of
its rows; also if it is ended by SIGTERM. Exit code 1 if a row is wrong.
"""

import argparse
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from benchmarks.gpu_proof.edits_of_rows import EDITS
from benchmarks.gpu_proof.equality import Tally, judge
from benchmarks.gpu_proof.proof import Setting
from benchmarks.gpu_proof.random_rows import Form, random_batch
from drawlot.kernels.registry import get_backend

_PARTS = {"raw", "plain", "edits", "bf16"}
_MOST_ROWS, _TOKENS = 4096, 30_000_000
"""Of a batch"""


def form_of(name: str) -> tuple[Form, int]:
    """A form and its vocabulary.

    Raises:
        ValueError: There is no such form.
    """
    words, _, size = name.partition(":")
    parts = set(words.split("+"))
    if not size.isdecimal() or not parts <= _PARTS:
        raise ValueError(f"{name!r} is no form; one is raw:V, plain:V or edits+raw:V, with +bf16 if wanted")
    dtype = torch.bfloat16 if "bf16" in parts else torch.float32
    edits, mode = tuple(EDITS) if "edits" in parts else (), "raw_logprobs" if "raw" in parts else None
    return Form(dtype, "contiguous", edits, mode, wide=False), int(size)


def compare(name: str, seconds: float, seed: int) -> tuple[int, int, int, int]:
    """Random batches of a form against the oracle; how many rows, wrong ones, excused ones, and near-ties."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: stopped.append(number))
    device = torch.device("cuda")
    setting = Setting(get_backend("triton", device), device, small=False)
    form, vocab_size = form_of(name)
    generator, tally, end = setting.generator(seed), Tally(), time.monotonic() + seconds
    n = max(1, min(_MOST_ROWS, _TOKENS // vocab_size))
    while time.monotonic() < end and not stopped:
        batch = random_batch(generator, n, vocab_size, form)
        judge(batch, form, setting.draw(batch), tally)
    return tally.rows, tally.wrong, len(tally.excused), tally.near_ties


def main(arguments: list[str] | None = None) -> int:
    """All forms at once."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_proof.long_equality", description=__doc__)
    parser.add_argument("forms", nargs="+")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    try:
        for name in given.forms:
            form_of(name)
    except ValueError as error:
        parser.error(f"forms: {error}")
    failed = False
    with ProcessPoolExecutor(len(given.forms), get_context("spawn")) as pool:
        running = [pool.submit(compare, name, given.seconds, given.seed) for name in given.forms]
        for name, each in zip(given.forms, running):
            rows, wrong, excused, near_ties = each.result()
            failed |= wrong > 0 or not rows
            print(f"{name}: {rows:,} rows, {wrong} wrong, {excused} excused of {near_ties:,} near-ties", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
