"""Tokens, status, logprobs and ranks of random rows equal the oracle's; near-ties are the only excuse."""

import random
import sys
from collections.abc import Iterable

import torch
from torch import Tensor

from benchmarks.gpu_proof import logprob_oracle, oracle, steps_equality
from benchmarks.gpu_proof.kinds_of_logits import kind_of
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import PLAIN, Batch, Form, random_batch
from drawlot.kernels.inputs import TILE, SampledRows

MOST_EXCUSED = 20
_NARROW = (1, 2, 3, 127, 128, 129, 255, 1000, 1024, 1025, 2048, 4095, 4096, 4097)
_WIDE = (128_256, 128_257, 151_936, 200_019, 262_144)


_MOST_LISTED = 30


class Tally:
    """What became of the rows compared."""

    def __init__(self) -> None:
        self.rows = self.near_ties = self.with_logprobs = self.wrong = 0
        self.excused: list[str] = []
        self.examples: list[str] = []
        """The first of the wrong rows"""

    @classmethod
    def sum(cls, tallies: Iterable["Tally | None"]) -> "Tally":
        """Of all; None: a process that failed, which its check says."""
        total = cls()
        for tally in tallies:
            if tally is not None:
                total.rows += tally.rows
                total.near_ties += tally.near_ties
                total.excused += tally.excused
        return total


def prove(setting: Setting, proof: Proof) -> None:
    """At least 200,000 rows of up to 4,097 tokens and 20,000 of at least 128,256."""
    shrunk = 16 if setting.small else 1
    narrow_sizes, wide_sizes = ((1, 129, 1000), (4097,)) if setting.small else (_NARROW, _WIDE)
    # The longest first.
    tasks = [(size, 16, 256 // shrunk) for size in wide_sizes] + [(size, 4, 4096 // shrunk) for size in narrow_sizes]
    tallies = proof.apart(setting, _compare, tasks)
    wide, narrow = Tally.sum(tallies[: len(wide_sizes)]), Tally.sum(tallies[len(wide_sizes) :])
    enough = setting.small or (narrow.rows >= 200_000 and wide.rows >= 20_000)
    proof.check("rows enough", enough, narrow=narrow.rows, wide=wide.rows)
    steps = Tally.sum(proof.apart(setting, _compare_steps, steps_equality.plays(setting)))
    excused = narrow.excused + wide.excused + steps.excused
    near = narrow.near_ties + wide.near_ties
    proof.check("excuses", len(excused) <= MOST_EXCUSED, near_ties=near, excused=len(excused), rows=excused)
    _mutants(setting, proof)
    proof.summary = (
        f"{narrow.rows:,} rows of V <= 4,097, {wide.rows:,} wide ones, {steps.rows:,} in steps of a sampler, "
        f"{len(excused)} near-ties excused"
    )


def _compare(setting: Setting, proof: Proof, vocab_size: int, batches: int, n: int) -> Tally:
    """Draws `batches` batches of n rows."""
    generator, rng, tally = setting.generator(vocab_size), random.Random(vocab_size), Tally()
    for _ in range(batches):
        form = Form.random(rng)
        batch = random_batch(generator, n, vocab_size, form)
        judge(batch, form, setting.draw(batch), tally)
    figures = {"rows": tally.rows, "near_ties": tally.near_ties, "with_logprobs": tally.with_logprobs}
    proof.check(f"V = {vocab_size}", tally.wrong == 0, **figures, wrong=tally.wrong, examples=tally.examples)
    return tally


def _compare_steps(setting: Setting, proof: Proof, vocab_size: int, mode: str, seed: int) -> Tally:
    tally = Tally()
    steps_equality.compile_plays(setting, vocab_size, mode, seed)
    tally.rows = steps_equality.play(setting, proof, vocab_size, mode, seed, tally.excused)
    return tally


def judge(batch: Batch, form: Form, drawn: SampledRows, tally: Tally) -> None:
    """Adds to a tally how what was drawn for a batch compares with the oracle's; prints near-ties and wrong rows."""
    expected = oracle.sample_rows(batch.logits, batch.params, batch.edits, wide=batch.wide)
    assert expected.margin is not None
    near = expected.margin < oracle.NEAR_TIE
    flagged = drawn.status != expected.status
    differs = (drawn.token_ids != expected.token_ids) | flagged
    wrong = differs & (~near | flagged)
    tally.rows += len(near)
    tally.near_ties += int(near.sum())
    for row in (differs & ~wrong).nonzero().flatten().tolist():
        tally.excused.append(_line(batch, form, drawn, expected, row))
        print(f"  near-tie: {tally.excused[-1]}", file=sys.stderr)
    if batch.wanted is not None:
        # A cut within a near-tie may keep one token more and draw the same one.
        judged = ~differs if batch.wanted.mode.startswith("raw") else ~(differs | near)
        wrong |= judged & _wrong_columns(batch, drawn)
        tally.with_logprobs += len(near)
    tally.wrong += int(wrong.sum())
    for row in wrong.nonzero().flatten().tolist()[: _MOST_LISTED - len(tally.examples)]:
        tally.examples.append(_line(batch, form, drawn, expected, row))
        print(f"  WRONG: {tally.examples[-1]}", file=sys.stderr)


def _wrong_columns(batch: Batch, drawn: SampledRows) -> Tensor:
    """bool [N]: logprobs, top tokens or rank are not the oracle's."""
    logits, params, edits, wanted, _ = batch
    assert drawn.logprobs is not None
    assert wanted is not None
    ids, logprobs, ranks = logprob_oracle.logprobs(logits, params, edits, drawn.token_ids, wanted)
    # As float32, since -1e39 is -inf there; and within the promised error.
    close = drawn.logprobs[1] == logprobs.float()
    close |= (drawn.logprobs[1] - logprobs).abs() <= 1e-6 * logprobs.abs().clamp(min=1)
    return (drawn.logprobs[0] != ids).any(1) | ~close.all(1) | (drawn.logprobs[2] != ranks)


def _line(batch: Batch, form: Form, drawn: SampledRows, expected: SampledRows, row: int) -> str:
    """All there is to know of a row; it is reached again by the same proof alone."""
    assert expected.margin is not None
    got, right = ((int(rows.token_ids[row]), int(rows.status[row])) for rows in (drawn, expected))
    parts = [f"{name} {column[row].item()}" for name, column in batch.params._asdict().items()]
    columns = [column[row].tolist() for column in drawn.logprobs or ()]
    n, vocab_size = batch.logits.shape
    return (
        f"V {vocab_size}, row {row}, {kind_of(row, n)}, margin {float(expected.margin[row]):.3g}: drawn {got}, oracle "
        f"{right}; {', '.join(parts)}; {form}; {columns}"
    )


def _mutants(setting: Setting, proof: Proof) -> None:
    """Draws with a planted mistake: the comparison must see each."""
    n, vocab_size = (256, 4096) if setting.small else (2048, 32_000)
    right = random_batch(setting.generator(7), n, vocab_size, PLAIN)
    params, rows = right.params, torch.arange(n, device=setting.device)
    greedy_off = torch.where(params.temperature == 0, 1.0, params.temperature)
    right = right._replace(params=params._replace(temperature=greedy_off, top_k=torch.full_like(params.top_k, 50)))
    params = right.params
    expected = oracle.sample_rows(right.logits, params, right.edits)
    assert expected.margin is not None
    mutants = {
        "another seed for one row in a hundred": params._replace(seed=params.seed + (rows % 100 == 5)),
        "noise keyed by batch row": params._replace(position=rows),
        "k is one more": params._replace(top_k=params.top_k + 1),
        "top-p is ignored": params._replace(top_p=torch.ones_like(params.top_p)),
        "min-p is ignored": params._replace(min_p=torch.zeros_like(params.min_p)),
    }
    drawn = {name: setting.draw(right._replace(params=changed)) for name, changed in mutants.items()}
    drawn["room for 16 tiles at k = 50"] = setting.draw(right._replace(logits=_best_tiles(right.logits, 16)))
    for name, rows_drawn in drawn.items():
        seen = (rows_drawn.token_ids != expected.token_ids) & (expected.margin >= oracle.NEAR_TIE)
        proof.check(f"seen: {name}", bool(seen.any()), rows=n, differ=int(seen.sum()))


def _best_tiles(logits: Tensor, count: int) -> Tensor:
    """The logits with nothing left outside the `count` tiles of the largest maxima; V is a multiple of 128."""
    tiles = logits.view(len(logits), -1, TILE)
    best = tiles.nan_to_num(nan=0.0).amax(2).topk(count, 1).indices
    kept = torch.full_like(tiles, -torch.inf).scatter_(
        1, best.unsqueeze(2).expand(-1, -1, TILE), tiles.gather(1, best.unsqueeze(2).expand(-1, -1, TILE))
    )
    return kept.view_as(logits)
