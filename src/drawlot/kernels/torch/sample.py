"""Rows of logits to tokens, in the order of stages that the reference declares."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.torch.draw import Drawn, Rows, draw
from drawlot.kernels.torch.edits import as_tiles, edited_rows, grammar_masked, row_values
from drawlot.kernels.torch.logprobs import Columns, processed_columns, raw_columns
from drawlot.kernels.torch.scan import Tiles, on_host, tile_maxima
from drawlot.outputs import RowStatus

_CHUNK = 1 << 22  # elements worked on at once: bounds the extra memory, whatever the number of rows


def sample_rows(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    n, vocab_size = logits.shape
    step = max(1, _CHUNK // (vocab_size + -vocab_size % TILE))
    if n <= step:
        return _sample_chunk(logits, params, edits, wanted, wide)
    parts = []
    for start in range(0, n, step):
        stop = min(n, start + step)
        rows = slice(start, stop)
        part_wanted = wanted and wanted.pick(rows)
        parts.append(_sample_chunk(logits[rows], params.pick(rows), edits.rows(start, stop), part_wanted, wide))
    tokens, status = torch.cat([p.token_ids for p in parts]), torch.cat([p.status for p in parts])
    if wanted is None:
        return SampledRows(tokens, status, None)
    ids, values, ranks = (torch.cat(column) for column in zip(*(p.logprobs for p in parts if p.logprobs)))
    return SampledRows(tokens, status, (ids, values, ranks))


@np.errstate(over="ignore", divide="ignore")  # tiny temperatures send z to -inf, and log(0) is -inf: both are meant
def _sample_chunk(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, wide: bool
) -> SampledRows:
    n, device = len(logits), logits.device
    logits_tiles = as_tiles(logits)
    raw = grammar_masked(logits_tiles, edits)
    raw_maxima = tile_maxima(raw)
    row_max = raw_maxima.amax(1)
    logits_max = row_max if raw is logits_tiles else tile_maxima(logits_tiles).amax(1)
    values, maxima = Tiles(raw), raw_maxima
    if edits.beyond_bitmask:
        edited = edited_rows(edits)
        own_values = row_values(raw, edits, edited)
        own_maxima = tile_maxima(own_values)
        maxima = raw_maxima.index_copy(0, edited, own_maxima)
        row_max = row_max.index_copy(0, edited, own_maxima.amax(1))
        where = np.arange(n)
        where[on_host(edited)] = n + np.arange(len(edited))
        values = Tiles(raw, own_values, where)
    status = _status(on_host(row_max), on_host(logits_max))
    scale = (1 / params.temperature.clamp(min=SMALLEST_TEMPERATURE)).clamp(min=SMALLEST_TEMPERATURE).float()

    tokens = np.full(n, -1)
    columns = wanted and Columns.unused(n, wanted.columns)
    good = np.flatnonzero(status == 0)
    if len(good):
        rows = Rows(values, maxima, row_max, scale, params, wide).pick(good)
        drawn = draw(rows)
        tokens[good] = drawn.tokens
        if wanted is not None and columns is not None:
            at = torch.from_numpy(good).to(device)
            raw_rows = rows
            if values.edited is not None:
                raw_rows = rows._replace(values=Tiles(raw).pick(good), maxima=raw_maxima[at])
            columns.put(good, _logprobs(raw_rows, rows, drawn, wanted if len(good) == n else wanted.pick(at)))
    return SampledRows(
        torch.from_numpy(tokens).to(device), torch.from_numpy(status).to(device), columns and columns.on_device(device)
    )


def _status(row_max: NDArray[np.float32], logits_max: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    status = np.where(row_max == -np.inf, np.uint8(RowStatus.EMPTY_SUPPORT), np.uint8(RowStatus.OK))
    status[~((row_max < np.inf) & (logits_max < np.inf))] = RowStatus.NONFINITE
    return status


def _logprobs(raw_rows: Rows, rows: Rows, drawn: Drawn, wanted: LogprobsWanted) -> Columns:
    temperature = on_host(rows.params.temperature)
    if wanted.mode.startswith("processed"):
        return processed_columns(rows.values, rows.maxima, drawn.cut, drawn.mass, temperature, drawn.tokens, wanted)
    # The masses of rows drawn from as they came are known; but float64 sums would make a row's bits depend on others.
    known = raw_rows is rows and not rows.wide and bool(((temperature == 1) & (drawn.cut.id == -1)).all())
    return raw_columns(raw_rows.values, raw_rows.maxima, drawn.tokens, wanted, drawn.mass if known else None)
