"""Tokens, status, logprobs and ranks of random rows equal the oracle's; near-ties are the only excuse."""

import random
import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.gpu_proof import logprob_oracle, oracle
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import PLAIN, Batch, Form, kind_of, random_batch
from drawlot.kernels.inputs import TILE, SampledRows

NEAR_TIE = 2.0**-18
MOST_EXCUSED = 20
_NARROW = (1, 2, 3, 127, 128, 129, 255, 1000, 1024, 1025, 2048, 4095, 4096, 4097)
_WIDE = (128_256, 128_257, 151_936, 200_019, 262_144)


def prove(setting: Setting, proof: Proof) -> None:
    """At least 200,000 rows of up to 4,097 tokens and 20,000 of at least 128,256."""
    excused: list[str] = []
    narrow = _sizes(setting, proof, excused, (1, 129, 1000) if setting.small else _NARROW, 4, 4096)
    wide = _sizes(setting, proof, excused, (4097,) if setting.small else _WIDE, 16, 256)
    enough = setting.small or (narrow >= 200_000 and wide >= 20_000)
    proof.check("rows enough", enough, narrow=narrow, wide=wide)
    proof.check("near-ties", len(excused) <= MOST_EXCUSED, excused=len(excused), limit=MOST_EXCUSED, rows=excused)
    _mutants(setting, proof)
    proof.summary = f"{narrow:,} rows of V <= 4,097 and {wide:,} wide rows, {len(excused)} near-ties excused"


def _sizes(setting: Setting, proof: Proof, excused: list[str], sizes: tuple[int, ...], batches: int, n: int) -> int:
    """Checks `batches` batches of n rows of each size; how many rows these are."""
    n = n // 16 if setting.small else n
    for vocab_size in sizes:
        generator, rng = setting.generator(vocab_size), random.Random(vocab_size)
        wrong: list[str] = []
        columns = 0
        for _ in range(batches):
            form = Form.random(rng)
            batch = random_batch(generator, n, vocab_size, form)
            drawn = setting.draw(batch)
            expected = oracle.sample_rows(batch.logits, batch.params, batch.edits, wide=batch.wide)
            differs = (drawn.token_ids != expected.token_ids) | (drawn.status != expected.status)
            for row in differs.nonzero().flatten().tolist():
                line = _line(batch, form, drawn, expected, row)
                near = bool((drawn.status == expected.status)[row]) and expected.margin[row] < NEAR_TIE
                print(f"  {'near-tie' if near else 'WRONG'}: {line}", file=sys.stderr)
                (excused if near else wrong).append(line)
            if batch.wanted is not None:
                columns += n
                wrong += _wrong_columns(batch, form, drawn, differs, expected.margin)
        proof.check(f"V = {vocab_size}", not wrong, rows=batches * n, rows_with_logprobs=columns, wrong=wrong[:50])
    return len(sizes) * batches * n


def _wrong_columns(batch: Batch, form: Form, drawn: SampledRows, differs: Tensor, margin: Tensor) -> Iterator[str]:
    """A line for each row whose logprobs, top tokens or rank are not the oracle's."""
    logits, params, edits, wanted, _ = batch
    assert drawn.logprobs is not None
    assert wanted is not None
    ids, logprobs, ranks = logprob_oracle.logprobs(logits, params, edits, drawn.token_ids, wanted)
    # As float32, since -1e39 is -inf there; and within the promised error.
    close = drawn.logprobs[1] == logprobs.float()
    close |= (drawn.logprobs[1] - logprobs).abs() <= 1e-6 * logprobs.abs().clamp(min=1)
    wrong = (drawn.logprobs[0] != ids).any(1) | ~close.all(1) | (drawn.logprobs[2] != ranks)
    # A cut within a near-tie may keep one token more and draw the same one.
    judged = ~differs if wanted.mode.startswith("raw") else ~differs & (margin >= NEAR_TIE)
    n = len(wrong)
    for row in (wrong & judged).nonzero().flatten().tolist():
        yield f"logprobs of {kind_of(row, n)}, {form}, row {row}: {[part[row].tolist() for part in drawn.logprobs]}"


def _line(batch: Batch, form: Form, drawn: SampledRows, expected: SampledRows, row: int) -> str:
    parts = [f"{name} {column[row].item()}" for name, column in batch.params._asdict().items()]
    got, right = ((int(rows.token_ids[row]), int(rows.status[row])) for rows in (drawn, expected))
    assert expected.margin is not None
    margin = float(expected.margin[row])
    kind = kind_of(row, len(batch.logits))
    return f"V {batch.logits.shape[1]}, {kind}, margin {margin:.3g}: {got}, oracle {right}; {', '.join(parts)}; {form}"


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
        seen = (rows_drawn.token_ids != expected.token_ids) & (expected.margin >= NEAR_TIE)
        proof.check(f"seen: {name}", bool(seen.any()), rows=n, differ=int(seen.sum()))


def _best_tiles(logits: Tensor, count: int) -> Tensor:
    """The logits with nothing left outside the `count` tiles of the largest maxima; V is a multiple of 128."""
    tiles = logits.view(len(logits), -1, TILE)
    best = tiles.nan_to_num(nan=0.0).amax(2).topk(count, 1).indices
    kept = torch.full_like(tiles, -torch.inf).scatter_(
        1, best.unsqueeze(2).expand(-1, -1, TILE), tiles.gather(1, best.unsqueeze(2).expand(-1, -1, TILE))
    )
    return kept.view_as(logits)
