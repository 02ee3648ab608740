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
_LANES = np.arange(TILE)


class Tokens(NamedTuple):
    """Some tokens of some rows, ordered by row and id."""

    rows: IntArray
    ids: IntArray
    values: NDArray[np.float32]


def on_host(tensor: Tensor) -> NDArray[Any]:
    """The tensor as a NumPy array; shares memory on a CPU."""
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


def tile_maxima(tiles: Tensor) -> Tensor:
    """float32 [N, T] of tiles [N, T, 128]; NaN where a tile holds one."""
    return tiles.amax(2)


def tile_log_masses(
    tiles: Tensor,
    maxima: Tensor,
    row_max: Tensor,
    scale: Tensor | None,
    cut: tuple[Tensor, Tensor] | None = None,
    *,
    wide: bool = False,
) -> Tensor:
    """log of each tile's sum of exp((value - row_max) scale); -inf for a tile without mass.

    Args:
        tiles: float32 [N, T, 128]; maxima: float32 [N, T], theirs; row_max: float32 [N], finite.
        scale: float32 [N], 1 / temperature; None: 1.
        cut: Value float32 [N] and id int64 [N] of the last token that counts; None: all count.
        wide: Float64 sums, for float64 races.

    Returns:
        float32 or float64 [N, T].
    """
    n, num_tiles, _ = tiles.shape
    dtype = torch.float64 if wide else torch.float32
    sums = torch.empty(maxima.shape, dtype=dtype, device=tiles.device)
    # An empty tile: -inf - 0 = -inf, exp = 0.
    base = torch.where(maxima == -torch.inf, 0.0, maxima)
    step = min(n, max(1, _CHUNK // (num_tiles * TILE)))
    # One temporary for all chunks: fresh memory costs more than the arithmetic.
    temporary = torch.empty((step, num_tiles, TILE), dtype=dtype, device=tiles.device)
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        x = temporary[: rows.stop - start]
        torch.sub(tiles[rows], base[rows].unsqueeze(2), out=x)
        if scale is not None:
            x.mul_(scale[rows].view(-1, 1, 1))
        x.exp_()
        if cut is not None:
            x.mul_(_kept(tiles[rows], *(part[rows] for part in cut)))
        torch.sum(x, 2, out=sums[rows])
    shift = (base - row_max.unsqueeze(1)).to(dtype)
    return sums.log_().add_(shift if scale is None else shift * scale.unsqueeze(1))


def _kept(tiles: Tensor, cut_value: Tensor, cut_id: Tensor) -> Tensor:
    """bool, like tiles [N, T, 128] of whole rows: the tokens not after the cut [N]."""
    value, last = cut_value.view(-1, 1, 1), cut_id.view(-1, 1, 1)
    ids = torch.arange(tiles.shape[1] * TILE, device=tiles.device).view(-1, TILE)
    return (tiles > value).logical_or_((tiles == value).logical_and_(ids <= last))


def log_total(log_masses: FloatArray, rows: IntArray, n: int) -> NDArray[np.float64]:
    """float64 [n]: log of each row's sum of exp(log_masses [E]), rows [E] ascending, none missing."""
    starts = np.searchsorted(rows, np.arange(n))
    largest = np.maximum.reduceat(log_masses, starts).astype(np.float64)
    return largest + np.log(np.add.reduceat(np.exp(log_masses - largest[rows]), starts))


def tiles_at_least(
    tiles: Tensor, maxima: NDArray[np.float32], line: NDArray[np.float32]
) -> tuple[IntArray, IntArray, Tensor]:
    """The tiles that hold a token of at least `line` [N]: rows [P], tile ids [P] and values [P, 128]."""
    rows, tile_ids = np.nonzero((maxima >= line[:, None]) & (maxima > -np.inf))
    index = torch.from_numpy(rows).to(tiles.device), torch.from_numpy(tile_ids).to(tiles.device)
    return rows, tile_ids, tiles[index]


def tokens_at_least(tiles: Tensor, maxima: NDArray[np.float32], line: NDArray[np.float32]) -> Tokens:
    """All tokens of at least `line` [N], but none of value -inf."""
    rows, tile_ids, values = tiles_at_least(tiles, maxima, line)
    x = on_host(values)
    found = np.flatnonzero((x >= line[rows, None]) & (x > -np.inf))
    pairs = found // TILE
    return Tokens(rows[pairs], tile_ids[pairs] * TILE + found % TILE, x.reshape(-1)[found])


def in_order(tokens: Tokens) -> Tokens:
    """The same tokens, each row's in the order (value desc, id asc)."""
    order = np.lexsort((-tokens.values, tokens.rows))
    return Tokens(tokens.rows, tokens.ids[order], tokens.values[order])


def kth_largest_tile(maxima: Tensor, k: IntArray) -> NDArray[np.float32]:
    """float32 [N]: the k-th largest tile maximum of each row, k in [1, T]. At least k tokens reach it."""
    best = on_host(maxima.topk(int(k.max()), 1).values)
    line: NDArray[np.float32] = best[np.arange(len(k)), k - 1]
    return line
