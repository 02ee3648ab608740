"""Rows of logits to tokens, in the order of stages that the reference declares."""

import numpy as np
import torch
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.torch.draw import draw
from drawlot.kernels.torch.logprobs import Columns
from drawlot.kernels.torch.scanned import scan_rows
from drawlot.rng import TARGET, Stream

_CHUNK = 1 << 22  # elements worked on at once: bounds the extra memory, whatever the number of rows


def sample_rows(
    logits: Tensor,
    params: RowParams,
    edits: Edits,
    wanted: LogprobsWanted | None,
    *,
    wide: bool = False,
    streams: tuple[Stream, Stream] = TARGET,
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    n, vocab_size = logits.shape
    if n == 0:
        columns = wanted and Columns.unused(0, wanted.columns).on_device(logits.device)
        nothing = torch.empty(0, dtype=torch.int64, device=logits.device)
        return SampledRows(nothing, nothing.to(torch.uint8), columns)
    step = rows_at_once(vocab_size)
    if n <= step:
        return _sample_chunk(logits, params, edits, wanted, wide, streams)
    parts = []
    for start in range(0, n, step):
        stop = min(n, start + step)
        rows = slice(start, stop)
        part_wanted = wanted and wanted.pick(rows)
        part = _sample_chunk(logits[rows], params.pick(rows), edits.rows(start, stop), part_wanted, wide, streams)
        parts.append(part)
    tokens, status = torch.cat([p.token_ids for p in parts]), torch.cat([p.status for p in parts])
    return SampledRows(tokens, status, joined([p.logprobs for p in parts]))


def rows_at_once(vocab_size: int) -> int:
    """How many rows to work on at a time."""
    return max(1, _CHUNK // (vocab_size + -vocab_size % TILE))


def joined(parts: list[tuple[Tensor, Tensor, Tensor] | None]) -> tuple[Tensor, Tensor, Tensor] | None:
    """The columns of consecutive rows; None where none are wanted."""
    columns = [part for part in parts if part is not None]
    if not columns:
        return None
    ids, values, ranks = (torch.cat(column) for column in zip(*columns))
    return ids, values, ranks


@np.errstate(over="ignore", divide="ignore")  # tiny temperatures send z to -inf, and log(0) is -inf: both are meant
def _sample_chunk(
    logits: Tensor,
    params: RowParams,
    edits: Edits,
    wanted: LogprobsWanted | None,
    wide: bool,
    streams: tuple[Stream, Stream],
) -> SampledRows:
    n, device = len(logits), logits.device
    scanned = scan_rows(logits, params, edits, wanted, wide=wide)
    tokens = np.full(n, -1)
    columns = wanted and Columns.unused(n, wanted.columns)
    good = np.flatnonzero(scanned.status == 0)
    if len(good):
        drawn = draw(scanned.rows.pick(good), scanned.greedy[good], streams)
        tokens[good] = drawn.tokens
        if wanted is not None and columns is not None:
            columns.put(good, scanned.columns(good, drawn, drawn.tokens, wanted))
    return SampledRows(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(scanned.status).to(device),
        columns and columns.on_device(device),
    )
