"""Reads of the rows: tile maxima, tile masses, and the few tiles or tokens that reach a line.

Whole rows are torch's business, on their device. What is left of them is small and continues in NumPy on the host,
where an operation costs a quarter of the time.
"""

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import TILE

IntArray = NDArray[np.int64]
FloatArray = NDArray[Any]

_CHUNK = 1 << 17  # elements of a temporary: fits the second-level cache of a core
_LOWEST = np.finfo(np.float32).min


class Tiles(NamedTuple):
    """Some rows of a tensor of tiles, not copied before they are read."""

    tensor: Tensor
    """float32 [M, T, 128]"""
    rows: IntArray | None = None
    """[N], which of the M rows; None: all"""

    def pick(self, index: IntArray) -> "Tiles":
        """Some of the rows."""
        return Tiles(self.tensor, index if self.rows is None else self.rows[index])

    def at(self, rows: IntArray, tile_ids: IntArray) -> Tensor:
        """float32 [P, 128]: single tiles."""
        rows = rows if self.rows is None else self.rows[rows]
        device = self.tensor.device
        return self.tensor[torch.from_numpy(rows).to(device), torch.from_numpy(tile_ids).to(device)]

    def chunk(self, start: int, stop: int) -> Tensor:
        """float32 [stop - start, T, 128]; a view if it is one row, or if all rows are meant."""
        if self.rows is None:
            return self.tensor[start:stop]
        if stop - start == 1:
            return self.tensor[int(self.rows[start])].unsqueeze(0)
        return self.tensor[torch.from_numpy(self.rows[start:stop]).to(self.tensor.device)]

    def row(self, i: int) -> Tensor:
        """float32 [T 128], a view."""
        return self.chunk(i, i + 1).reshape(-1)


class Tokens(NamedTuple):
    """Some tokens of some rows, ordered by row and id."""

    rows: IntArray
    ids: IntArray
    values: NDArray[np.float32]


class TileMasses(NamedTuple):
    """The sums of exp((value - row_max) scale) over the tokens of tiles, as sum exp(shift); on the host."""

    sums: FloatArray
    """float32 or float64 [E], relative to the tile's own maximum; 0 for a tile without mass"""
    shift: FloatArray
    """[E], (tile maximum - row_max) scale; 0 in a row's best tile"""

    def log(self) -> NDArray[np.float64]:
        """[E], -inf for a tile without mass."""
        with np.errstate(divide="ignore"):
            return np.log(self.sums.astype(np.float64)) + self.shift

    def totals(self, rows: IntArray, n: int) -> NDArray[np.float64]:
        """[n]: the mass of each row; rows [E] ascending, none missing."""
        masses = np.multiply(self.sums, np.exp(self.shift), dtype=np.float64)
        totals: NDArray[np.float64] = np.add.reduceat(masses, np.searchsorted(rows, np.arange(n)))
        return totals


def on_host(tensor: Tensor) -> NDArray[Any]:
    """The tensor as a NumPy array; shares memory on a CPU."""
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


def tile_maxima(tiles: Tensor) -> Tensor:
    """float32 [N, T] of tiles [N, T, 128]; NaN where a tile holds one."""
    return tiles.amax(2)


def tile_masses(
    tiles: Tiles,
    maxima: Tensor,
    row_max: Tensor,
    scale: Tensor | None,
    cut: tuple[Tensor, Tensor] | None = None,
    *,
    wide: bool = False,
) -> TileMasses:
    """Each tile's sum of exp((value - row_max) scale).

    Args:
        tiles: Of N rows; maxima: float32 [N, T], theirs; row_max: float32 [N], finite.
        scale: float32 [N], 1 / temperature; None: 1.
        cut: Value float32 [N] and id int64 [N] of the last token that counts; None: all count.
        wide: Float64 sums, for float64 races.

    Returns:
        E = N T masses, row by row.
    """
    n, num_tiles = maxima.shape
    dtype = torch.float64 if wide else torch.float32
    sums = torch.empty(maxima.shape, dtype=dtype, device=maxima.device)
    # An empty tile: -inf - row_max = -inf, exp = 0.
    base = torch.where(maxima == -torch.inf, row_max.unsqueeze(1), maxima)
    step = min(n, max(1, _CHUNK // (num_tiles * TILE)))
    # One temporary for all chunks: fresh memory costs more than the arithmetic.
    temporary = torch.empty((step, num_tiles, TILE), dtype=dtype, device=maxima.device)
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        values = tiles.chunk(rows.start, rows.stop)
        x = temporary[: rows.stop - start]
        torch.sub(values, base[rows].unsqueeze(2), out=x)
        if scale is not None:
            x.mul_(scale[rows].view(-1, 1, 1))
        x.exp_()
        if cut is not None:
            x.mul_(_kept(values, *(part[rows] for part in cut)))
        torch.sum(x, 2, out=sums[rows])
    shift = base - row_max.unsqueeze(1)
    if scale is not None:
        shift *= scale.unsqueeze(1)
    return TileMasses(on_host(sums).reshape(-1), on_host(shift).reshape(-1))


def _kept(tiles: Tensor, cut_value: Tensor, cut_id: Tensor) -> Tensor:
    """bool, like tiles [N, T, 128] of whole rows: the tokens not after the cut [N]."""
    value, last = cut_value.view(-1, 1, 1), cut_id.view(-1, 1, 1)
    ids = torch.arange(tiles.shape[1] * TILE, device=tiles.device).view(-1, TILE)
    return (tiles > value).logical_or_((tiles == value).logical_and_(ids <= last))


def rows_of(maxima: Tensor) -> IntArray:
    """[N T]: the row of each tile."""
    return np.arange(len(maxima)).repeat(maxima.shape[1])


def tiles_at_least(
    tiles: Tiles, maxima: NDArray[np.float32], line: NDArray[np.float32]
) -> tuple[IntArray, IntArray, Tensor]:
    """The tiles that hold a token of at least `line` [N]: rows [P], tile ids [P] and values [P, 128]."""
    # No token of value -inf reaches even the lowest line.
    found = np.flatnonzero(maxima >= np.maximum(line, _LOWEST)[:, None])
    rows, tile_ids = np.divmod(found, maxima.shape[1])
    return rows, tile_ids, tiles.at(rows, tile_ids)


def tokens_at_least(tiles: Tiles, maxima: NDArray[np.float32], line: NDArray[np.float32]) -> Tokens:
    """All tokens of at least `line` [N], but none of value -inf."""
    rows, tile_ids, values = tiles_at_least(tiles, maxima, line)
    x = on_host(values)
    found = np.flatnonzero(x >= np.maximum(line, _LOWEST)[rows, None])
    pairs, lanes = np.divmod(found, TILE)
    return Tokens(rows[pairs], tile_ids[pairs] * TILE + lanes, x.reshape(-1)[found])


def in_order(tokens: Tokens) -> IntArray:
    """[E]: an index that puts each row's tokens in the order (value desc, id asc), the rows as they are."""
    return np.lexsort((-tokens.values, tokens.rows))


def kth_largest_tile(maxima: NDArray[np.float32], k: IntArray) -> NDArray[np.float32]:
    """[N]: the k-th largest tile maximum of each row of [N, T], k in [1, T]. At least k tokens reach it."""
    at = maxima.shape[1] - k
    line: NDArray[np.float32] = np.partition(maxima, np.unique(at), 1)[np.arange(len(k)), at]
    return line
