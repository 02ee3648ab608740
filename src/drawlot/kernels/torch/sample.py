"""Rows of logits to tokens, in the order of stages that the reference declares."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.torch.draw import Rows, draw
from drawlot.kernels.torch.edits import as_tiles, edited_rows, grammar_masked, row_values
from drawlot.kernels.torch.filters import Filters
from drawlot.kernels.torch.logprobs import Columns, processed_columns, raw_columns
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.scan import TileMasses, scan, tile_maxima, tile_sums
from drawlot.kernels.torch.tiles import Tiles, on_host
from drawlot.outputs import RowStatus

_CHUNK = 1 << 22  # elements worked on at once: bounds the extra memory, whatever the number of rows


def sample_rows(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    n, vocab_size = logits.shape
    if n == 0:
        columns = wanted and Columns.unused(0, wanted.columns).on_device(logits.device)
        nothing = torch.empty(0, dtype=torch.int64, device=logits.device)
        return SampledRows(nothing, nothing.to(torch.uint8), columns)
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
    temperature, top_k, top_p, min_p = (on_host(column) for column in params[:4])
    greedy, filters = temperature == 0, Filters(top_k, top_p, min_p)
    temperature = np.maximum(temperature, SMALLEST_TEMPERATURE)
    # Not 0 either, so that -inf / T is not NaN.
    scale = torch.from_numpy(np.maximum(1 / temperature, SMALLEST_TEMPERATURE).astype(np.float32)).to(device)
    edited = edited_rows(edits)
    summed = ~greedy & filters.needs_masses
    raw_summed = summed.copy()
    raw_summed[edited] = False
    raw_sums = sums = None
    if wanted is not None and wanted.mode == "raw_logprobs":
        raw_maxima, raw_sums = scan(raw, None)
        if summed.any():
            sums = tile_sums(Tiles(raw), raw_maxima, scale, summed=raw_summed, wide=wide)
    elif summed.any():
        raw_maxima, sums = scan(raw, scale, raw_summed, wide=wide)
    else:
        raw_maxima = tile_maxima(raw)
    row_max = raw_maxima.amax(1)
    logits_max = row_max if raw is logits_tiles else tile_maxima(logits_tiles).amax(1)
    values, maxima = Tiles(raw), raw_maxima
    if len(edited):
        at = torch.from_numpy(edited).to(device)
        own_values = row_values(raw, edits, edited)
        own_maxima, own_sums = scan(own_values, scale[at], summed[edited], wide=wide)
        maxima = raw_maxima.index_copy(0, at, own_maxima)
        row_max = row_max.index_copy(0, at, own_maxima.amax(1))
        if sums is not None:
            sums.index_copy_(0, at, own_sums)
        where = np.arange(n)
        where[edited] = n + np.arange(len(edited))
        values = Tiles(raw, own_values, where)
    status = _status(on_host(row_max), on_host(logits_max))

    tokens = np.full(n, -1)
    columns = wanted and Columns.unused(n, wanted.columns)
    good = np.flatnonzero(status == 0)
    if len(good):
        keys = NoiseKeys.of(params, wide=wide)
        rows = Rows(
            values,
            on_host(maxima),
            on_host(row_max),
            on_host(scale),
            temperature,
            filters,
            keys,
            wide,
            wanted is not None,
            None if sums is None else TileMasses.of(sums, maxima, row_max, scale),
        ).pick(good)
        drawn = draw(rows, greedy[good])
        tokens[good] = drawn.tokens
        if wanted is not None and columns is not None:
            if len(good) < n:
                at = torch.from_numpy(good).to(device)
                wanted, raw_maxima, maxima = wanted.pick(at), raw_maxima[at], maxima[at]
                raw_sums = None if raw_sums is None else raw_sums[at]
            if wanted.mode.startswith("raw"):
                rank = drawn.rank if values.edited is None else np.zeros_like(drawn.rank)
                part = raw_columns(Tiles(raw).pick(good), raw_maxima, raw_sums, drawn.tokens, rank, wanted)
            else:
                part = processed_columns(
                    rows.values,
                    maxima,
                    drawn.cut,
                    drawn.mass,
                    np.where(greedy[good], 0, rows.temperature),
                    drawn.tokens,
                    drawn.rank,
                    wanted,
                )
            columns.put(good, part)
    return SampledRows(
        torch.from_numpy(tokens).to(device), torch.from_numpy(status).to(device), columns and columns.on_device(device)
    )


def _status(row_max: NDArray[np.float32], logits_max: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    status = np.where(row_max == -np.inf, np.uint8(RowStatus.EMPTY_SUPPORT), np.uint8(RowStatus.OK))
    status[~((row_max < np.inf) & (logits_max < np.inf))] = RowStatus.NONFINITE
    return status
