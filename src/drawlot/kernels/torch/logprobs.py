"""Logprobs in the four modes, top tokens, the ids asked for, and the rank of the drawn token."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, LogprobsWanted
from drawlot.kernels.torch.edits import as_tiles
from drawlot.kernels.torch.scan import TileMasses, in_order, line_of, scan, tile_masses, tiles_at_least, tokens_at_least
from drawlot.kernels.torch.tiles import Cut, IntArray, Tiles, on_host

_FLOAT32_MAX = float(np.finfo(np.float32).max)


class Columns(NamedTuple):
    """The logprob columns of some rows, on the host."""

    ids: IntArray
    """[N, C]"""
    logprobs: NDArray[np.float32]
    """[N, C]"""
    ranks: IntArray
    """[N], of the drawn tokens"""

    @classmethod
    def unused(cls, n: int, columns: int) -> "Columns":
        """Rows without a token, or that want none."""
        empty = np.full((n, columns), -np.inf, np.float32)
        return cls(np.full((n, columns), -1), empty, np.zeros(n, np.int64))

    def put(self, index: IntArray, part: "Columns") -> None:
        """Set some rows."""
        self.ids[index], self.logprobs[index], self.ranks[index] = part

    def on_device(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """As tensors."""
        ids, logprobs, ranks = (torch.from_numpy(column).to(device) for column in self)
        return ids, logprobs, ranks


def logprobs_of(logits: Tensor, token_ids: Tensor, wanted: LogprobsWanted) -> tuple[Tensor, Tensor, Tensor]:
    """Raw logprobs of given tokens [N] of logits [N, V], nothing drawn: ids [N, C], logprobs [N, C], ranks [N]."""
    tiles = as_tiles(logits)
    maxima, sums = scan(tiles, None)
    own_sums = None if wanted.mode.endswith("logits") else sums
    unknown = np.zeros(len(token_ids), np.int64)
    columns = raw_columns(Tiles(tiles), maxima, own_sums, on_host(token_ids), unknown, wanted)
    return columns.on_device(logits.device)


def raw_columns(
    tiles: Tiles,
    maxima: Tensor,
    sums: Tensor | None,
    tokens: IntArray,
    rank: IntArray,
    wanted: LogprobsWanted,
) -> Columns:
    """The columns of the raw modes.

    Args:
        tiles: Of N rows, the logits with the grammar bitmask alone; maxima: float32 [N, T], theirs.
        sums: float32 [N, T] of `scan`; raw_logits needs none.
        tokens: [N]; rank: [N], theirs, 0 where it is not known.
        wanted: Of these rows.
    """
    n = len(tokens)
    mass = np.ones(n) if sums is None else TileMasses.of(sums, maxima, maxima.amax(1), None).totals()
    return _columns(tiles, maxima, Cut.nowhere(n), mass, np.ones(n), tokens, rank, wanted)


def processed_columns(
    tiles: Tiles,
    maxima: Tensor,
    cut: Cut,
    mass: NDArray[np.float64],
    temperature: NDArray[np.float64],
    tokens: IntArray,
    rank: IntArray,
    wanted: LogprobsWanted,
) -> Columns:
    """The columns of the processed modes.

    Args:
        tiles: Of N rows, the values of stage 2; maxima: float32 [N, T], theirs.
        cut: Of the rows; mass: [N], the kept tokens' sum of exp(z).
        temperature: [N]; greedy rows, at 0, are taken at 1 and without filters.
        tokens: [N]; rank: [N], theirs, 0 where it is not known.
        wanted: Of these rows.
    """
    greedy = temperature == 0
    temperature = np.where(greedy, 1.0, np.maximum(temperature, SMALLEST_TEMPERATURE))
    if greedy.any():
        mass = np.where(greedy, _mass(tiles, maxima, wanted.mode), mass)
        cut = Cut(np.where(greedy, np.float32(-np.inf), cut.value), np.where(greedy, -1, cut.id))
    return _columns(tiles, maxima, cut, mass, temperature, tokens, rank, wanted)


def _mass(tiles: Tiles, maxima: Tensor, mode: str) -> NDArray[np.float64]:
    """[N]: the rows' sum of exp(value - maximum); 1 in the logits modes, which need none."""
    if mode.endswith("logits"):
        return np.ones(len(maxima))
    return tile_masses(tiles, maxima, maxima.amax(1), None).totals()


def _columns(
    tiles: Tiles,
    maxima: Tensor,
    cut: Cut,
    mass: NDArray[np.float64],
    temperature: NDArray[np.float64],
    tokens: IntArray,
    rank: IntArray,
    wanted: LogprobsWanted,
) -> Columns:
    n = len(tokens)
    use = on_host(wanted.wanted)
    columns = Columns.unused(n, wanted.columns)
    ids = columns.ids
    ids[:, 0] = np.where(use, tokens, -1)
    if wanted.max_top:
        num_top = np.where(use, on_host(wanted.num_top), 0)
        ids[:, 1 : 1 + wanted.max_top] = _top_tokens(tiles, maxima, cut, num_top, wanted.max_top)
    if wanted.token_ids.shape[1]:
        custom = on_host(wanted.token_ids)
        asks = use & (custom[:, 0] >= 0)
        ids[asks, 1 : 1 + custom.shape[1]] = custom[asks]

    rows = np.arange(n)[:, None].repeat(wanted.columns, 1).reshape(-1)
    tile_ids, lanes = np.divmod(np.maximum(ids, 0).reshape(-1), TILE)
    x = tiles.at(rows, tile_ids)[np.arange(len(rows)), lanes].reshape(ids.shape)
    kept = (x > cut.value[:, None]) | ((x == cut.value[:, None]) & (ids <= cut.id[:, None]))
    kept &= (x > -np.inf) & (ids >= 0)
    with np.errstate(invalid="ignore", over="ignore"):
        if wanted.mode.endswith("logits"):
            result = (x / temperature[:, None]).clip(-_FLOAT32_MAX, _FLOAT32_MAX)
        else:
            row_max = on_host(maxima.amax(1))
            z = (x.astype(np.float64) - row_max[:, None]) / temperature[:, None]
            result = z - np.log(mass)[:, None]
    columns.logprobs[kept] = result[kept]
    columns.ranks[use] = rank[use]
    unknown = np.flatnonzero(use & (rank == 0))
    if len(unknown):
        own_maxima, value, after = on_host(maxima)[unknown], x[unknown, 0], tokens[unknown]
        # Tokens without a probability, which some synthetic step accepts, come after all that are kept.
        lost = ~kept[unknown, 0]
        value = np.where(lost, cut.value[unknown], value)
        after = np.where(lost, cut.id[unknown] + 1, after)
        columns.ranks[unknown] = _ranks(tiles.pick(unknown), own_maxima, value, after)
    return columns


def _top_tokens(tiles: Tiles, maxima: Tensor, cut: Cut, num_top: IntArray, columns: int) -> IntArray:
    """[N, columns]: the first num_top [N] tokens of the order, -1 past the last one that is kept."""
    n = len(maxima)
    line = line_of(tiles, on_host(maxima), num_top.clip(min=1))
    line = np.where(num_top > 0, np.maximum(line, cut.value), np.float32(np.inf))
    rows, ids, values = tokens = tokens_at_least(tiles, on_host(maxima), line)
    order = in_order(tokens)
    ids, values = ids[order], values[order]
    column = np.arange(len(rows)) - np.searchsorted(rows, np.arange(n))[rows]
    kept = (values > cut.value[rows]) | (ids <= cut.id[rows])
    chosen = kept & (column < num_top[rows])
    top = np.full((n, columns), -1)
    top[rows[chosen], column[chosen]] = ids[chosen]
    return top


def _ranks(tiles: Tiles, maxima: NDArray[np.float32], x: NDArray[np.float32], tokens: IntArray) -> IntArray:
    """[N]: 1 + the tokens before (x, tokens) [N] in the order."""
    counts = np.zeros(len(x), np.int64)
    wide = (maxima >= x[:, None]).sum(1) > maxima.shape[1] // 4
    for i in np.flatnonzero(wide).tolist():
        row, token = on_host(tiles.row(i)).reshape(-1), tokens[i]
        counts[i] = np.count_nonzero(row[:token] >= x[i]) + np.count_nonzero(row[token:] > x[i])
    # Rows in which few tiles can hold an earlier token: those tiles of all of them at once.
    rows, tile_ids, values = tiles_at_least(tiles, maxima, np.where(wide, np.float32(np.inf), x))
    own = x[rows, None]
    ids = tile_ids[:, None] * TILE + np.arange(TILE)
    earlier = (values > own) | ((values == own) & (ids < tokens[rows, None]))
    # At most 128 fit in a byte, and torch sums bytes as bytes fifty times faster than booleans.
    before = torch.from_numpy(earlier.view(np.uint8)).sum(1, dtype=torch.uint8).numpy()
    return 1 + counts + np.bincount(rows, before, len(x)).astype(np.int64)
