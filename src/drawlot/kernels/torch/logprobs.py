"""Logprobs in the four modes, top tokens, the ids asked for, and the rank of the drawn token."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, LogprobsWanted, RowParams
from drawlot.kernels.torch.edits import as_tiles
from drawlot.kernels.torch.filters import Cut
from drawlot.kernels.torch.scan import (
    IntArray,
    in_order,
    kth_largest_tile,
    on_host,
    rows_of,
    tile_masses,
    tile_maxima,
    tiles_at_least,
    tokens_at_least,
)

_FLOAT32_MAX = float(np.finfo(np.float32).max)

Columns = tuple[Tensor, Tensor, Tensor]
"""ids int64 [N, C], logprobs float32 [N, C], rank of the drawn token int64 [N]"""


def logprobs_of(logits: Tensor, token_ids: Tensor, wanted: LogprobsWanted) -> Columns:
    """Raw logprobs of given tokens [N] of logits [N, V], nothing drawn."""
    tiles = as_tiles(logits)
    return _raw_columns(tiles, tile_maxima(tiles), on_host(token_ids), wanted)


def row_logprobs(
    raw: Tensor,
    raw_maxima: Tensor,
    values: Tensor,
    maxima: Tensor,
    cut: Cut,
    mass: NDArray[np.float64],
    tokens: IntArray,
    params: RowParams,
    wanted: LogprobsWanted,
) -> Columns:
    """The columns of drawn rows.

    Args:
        raw: float32 [N, T, 128], logits with the grammar bitmask alone; raw_maxima: their tile maxima [N, T].
        values: float32 [N, T, 128], the values of stage 2; maxima: their tile maxima [N, T].
        cut: Of the drawn rows.
        mass: [N], the kept tokens' sum of exp(z).
        tokens: [N], -1 for a bad row.
        params: Of all rows.
        wanted: Of all rows.
    """
    temperature = on_host(params.temperature)
    if wanted.mode.startswith("raw"):
        # Rows drawn from as they came have just been summed up.
        summed = values is raw and bool(((temperature == 1) & (cut.id == -1)).all())
        return _raw_columns(raw, raw_maxima, tokens, wanted, mass if summed else None)
    greedy = temperature == 0
    temperature = np.where(greedy, 1.0, np.maximum(temperature, SMALLEST_TEMPERATURE))
    if greedy.any():
        # Greedy rows: the values at T = 1, no filters.
        mass = np.where(greedy, _mass(values, maxima, wanted.mode), mass)
        cut = Cut(np.where(greedy, np.float32(-np.inf), cut.value), np.where(greedy, -1, cut.id))
    return _columns(values, maxima, cut, mass, temperature, tokens, wanted)


def _raw_columns(
    tiles: Tensor,
    maxima: Tensor,
    tokens: IntArray,
    wanted: LogprobsWanted,
    mass: NDArray[np.float64] | None = None,
) -> Columns:
    n = len(tokens)
    if mass is None:
        mass = _mass(tiles, maxima, wanted.mode)
    return _columns(tiles, maxima, Cut.nowhere(n), mass, np.ones(n), tokens, wanted)


def _mass(tiles: Tensor, maxima: Tensor, mode: str) -> NDArray[np.float64]:
    """[N]: the rows' sum of exp(value - maximum); 1 in the logits modes, which need none."""
    if mode.endswith("logits"):
        return np.ones(len(tiles))
    masses = tile_masses(tiles, maxima, maxima.amax(1), None)
    with np.errstate(invalid="ignore"):  # bad rows
        return masses.totals(rows_of(tiles), len(tiles))


def _columns(
    tiles: Tensor,
    maxima: Tensor,
    cut: Cut,
    mass: NDArray[np.float64],
    temperature: NDArray[np.float64],
    tokens: IntArray,
    wanted: LogprobsWanted,
) -> Columns:
    n, device = len(tokens), tiles.device
    use = on_host(wanted.wanted) & (tokens >= 0)
    ids = np.full((n, wanted.columns), -1)
    ids[:, 0] = np.where(use, tokens, -1)
    if wanted.max_top:
        ids[:, 1 : 1 + wanted.max_top] = _top_tokens(tiles, maxima, cut, use, on_host(wanted.num_top), wanted.max_top)
    if wanted.token_ids.shape[1]:
        custom = on_host(wanted.token_ids)
        asks = use & (custom[:, 0] >= 0)
        ids[asks, 1 : 1 + custom.shape[1]] = custom[asks]

    at = np.arange(n)[:, None], *np.divmod(np.maximum(ids, 0), TILE)
    x = on_host(tiles[tuple(torch.from_numpy(part).to(device) for part in at)])
    kept = (x > cut.value[:, None]) | ((x == cut.value[:, None]) & (ids <= cut.id[:, None]))
    kept &= (x > -np.inf) & (ids >= 0)
    with np.errstate(invalid="ignore", over="ignore"):
        if wanted.mode.endswith("logits"):
            result = (x / temperature[:, None]).clip(-_FLOAT32_MAX, _FLOAT32_MAX)
        else:
            row_max = on_host(maxima.amax(1))
            z = (x.astype(np.float64) - row_max[:, None]) / temperature[:, None]
            result = z - np.log(mass)[:, None]
    result = np.where(kept, result, -np.inf).astype(np.float32)
    ranks = _ranks(tiles, on_host(maxima), np.where(use, x[:, 0], np.float32(np.inf)), tokens)
    ranks = np.where(use, ranks, 0)
    return torch.from_numpy(ids).to(device), torch.from_numpy(result).to(device), torch.from_numpy(ranks).to(device)


def _top_tokens(
    tiles: Tensor, maxima: Tensor, cut: Cut, use: NDArray[np.bool_], num_top: IntArray, columns: int
) -> IntArray:
    """[N, columns]: the first num_top [N] tokens of the order, -1 past the last one that is kept."""
    n, num_tiles = maxima.shape
    use = use & (num_top > 0)
    line = kth_largest_tile(on_host(maxima), num_top.clip(1, num_tiles))
    # More tokens than tiles are asked for: every token is listed.
    line = np.where(num_top > num_tiles, np.float32(-np.inf), line)
    line = np.where(use, np.maximum(line, cut.value), np.float32(np.inf))
    rows, ids, values = tokens = tokens_at_least(tiles, on_host(maxima), line)
    order = in_order(tokens)
    ids, values = ids[order], values[order]
    column = np.arange(len(rows)) - np.searchsorted(rows, np.arange(n))[rows]
    kept = (values > cut.value[rows]) | (ids <= cut.id[rows])
    chosen = kept & use[rows] & (column < num_top[rows])
    top = np.full((n, columns), -1)
    top[rows[chosen], column[chosen]] = ids[chosen]
    return top


def _ranks(tiles: Tensor, maxima: NDArray[np.float32], x: NDArray[np.float32], tokens: IntArray) -> IntArray:
    """[N]: 1 + the tokens before (x, tokens) [N] in the order."""
    reaching = (maxima >= x[:, None]).sum(1)
    wide = reaching > maxima.shape[1] // 4
    # Rows in which few tiles can hold an earlier token: those tiles of all of them at once.
    rows, tile_ids, values = tiles_at_least(tiles, maxima, np.where(wide, np.float32(np.inf), x))
    own = torch.from_numpy(x[rows]).to(values.device).unsqueeze(1)
    # At most 128 fit in a byte, and summing bytes as bytes is fifty times faster than as int64.
    before = on_host((values > own).view(torch.uint8).sum(1, dtype=torch.uint8))
    pairs, lanes = np.divmod(np.flatnonzero(on_host(values == own)), TILE)
    lower = tile_ids[pairs] * TILE + lanes < tokens[rows[pairs]]
    counts = np.bincount(rows, before, len(x)) + np.bincount(rows[pairs], lower, len(x))
    for i in np.flatnonzero(wide & (tokens >= 0)):
        row, token, own_value = tiles[i].reshape(-1), int(tokens[i]), float(x[i])
        counts[i] = np.count_nonzero(on_host(row[:token] >= own_value))
        counts[i] += np.count_nonzero(on_host(row[token:] > own_value))
    return 1 + counts.astype(np.int64)
