"""Few forms of batches for as long as wanted: `python -m benchmarks.gpu_proof.long_equality FORM... --seconds S`.

A form is raw:V, plain:V or edits+raw:V, with +bf16 before the colon if wanted, or steps:V, plays of a sampler's steps
with raw logprobs. So few that little is compiled, which may have been done before, by `compile_ahead`; the time of
plays begins when all that they launch is compiled. Each has a process of its own; a line each on stdout says what
became of its rows. Exit code 1 if a row is wrong, or more near-ties differ than the proof of equality excuses in as
many rows.
"""

import argparse
import math
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

from benchmarks.gpu_proof import steps_equality
from benchmarks.gpu_proof.edits_of_rows import EDITS
from benchmarks.gpu_proof.equality import MOST_EXCUSED, Tally, judge
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import Form, random_batch
from drawlot.kernels.registry import get_backend

_FORM = re.compile(r"(?:steps|(raw|plain|edits\+raw)(\+bf16)?):([1-9]\d*)")
_ROWS_OF_EXCUSES = 220_000
"""As many as the proof of equality compares at least, of which it excuses `MOST_EXCUSED`"""
MODE_OF_PLAYS, SEED_OF_PLAYS = "raw_logprobs", 4
"""Of the first one; later seeds are multiples of 4, too, none of which has float64 noise"""
_PLAYS_AHEAD = 5
"""So many launch all that plays launch: the first ones may have no bitmask"""
_MOST_ROWS, _TOKENS = 4096, 30_000_000
"""Of a batch"""


def form_of(name: str) -> tuple[Form | None, int]:
    """A form, None for plays of steps, and its vocabulary.

    Raises:
        ValueError: There is no such form.
    """
    match = _FORM.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no form; one is steps:V, or raw, plain or edits+raw, +bf16 if wanted, and :V")
    kind, is_bf16, vocab_size = match.groups()
    if kind is None:
        return None, int(vocab_size)
    edits, mode = tuple(EDITS) if kind == "edits+raw" else (), None if kind == "plain" else "raw_logprobs"
    return Form(torch.bfloat16 if is_bf16 else torch.float32, "contiguous", edits, mode, wide=False), int(vocab_size)


def compare(name: str, seconds: float, seed: int) -> tuple[int, int, int, int | None]:
    """Random batches of a form against the oracle: how many rows, wrong and excused ones, and near-ties if counted."""
    device = torch.device("cuda")
    setting = Setting(get_backend("triton", device), device, small=False)
    form, vocab_size = form_of(name)
    if form is None:
        return play_steps(setting, vocab_size, seconds, seed)
    generator, tally, end = setting.generator(seed), Tally(), time.monotonic() + seconds
    n = max(1, min(_MOST_ROWS, _TOKENS // vocab_size))
    while time.monotonic() < end:
        batch = random_batch(generator, n, vocab_size, form)
        judge(batch, form, setting.draw(batch), tally)
    return tally.rows, tally.wrong, len(tally.excused), tally.near_ties


def play_steps(setting: Setting, vocab_size: int, seconds: float, seed: int) -> tuple[int, int, int, None]:
    """Plays of a sampler's steps against the oracle, one at least; how many rows, wrong ones, and excused ones."""
    proof, excused, rows = Proof("steps"), [], 0
    seed = SEED_OF_PLAYS + 4 * seed
    compile_plays(setting, vocab_size, seed)
    end = time.monotonic() + seconds
    while not rows or time.monotonic() < end:
        rows += steps_equality.play(setting, proof, vocab_size, MODE_OF_PLAYS, seed, excused)
        seed += 4
    return rows, sum(check["wrong"] for check in proof.checks), len(excused), None


def compile_plays(setting: Setting, vocab_size: int, seed: int = SEED_OF_PLAYS) -> None:
    """What the first plays launch: later ones mostly nothing else."""
    for number in range(_PLAYS_AHEAD):
        steps_equality.compile_plays(setting, vocab_size, MODE_OF_PLAYS, seed + 4 * number)


def most_excused(rows: int) -> int:
    """How many near-ties of so many rows may differ; none of none, so that nothing compared is no proof."""
    return MOST_EXCUSED * math.ceil(rows / _ROWS_OF_EXCUSES) if rows else -1


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
            failed |= wrong > 0 or excused > most_excused(rows)
            of_all = "" if near_ties is None else f" of {near_ties:,} near-ties"
            print(f"{name}: {rows:,} rows, {wrong} wrong, {excused} excused{of_all}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
