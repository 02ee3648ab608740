"""Reads of the rows: tile maxima, tile masses, and the few tiles or tokens that reach a line.

Whole rows are torch's business, on their device. What is left of them is small and continues in NumPy on the host,
where an operation costs a quarter of the time.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import TILE
from drawlot.kernels.torch.tiles import Cut, FloatArray, IntArray, Tiles, Tokens, on_host

_LOWEST = float(np.finfo(np.float32).min)


class TileMasses(NamedTuple):
    """The sums of exp((value - row_max) scale) over the tokens of tiles, as sum exp(shift); on the host."""

    sums: FloatArray
    """float32 or float64 [N, T], relative to the tile's own maximum; 0 for a tile without mass"""
    shift: FloatArray
    """[N, T], (tile maximum - row_max) scale; 0 in a row's best tile"""

    @classmethod
    def of(cls, sums: Tensor, maxima: Tensor, row_max: Tensor, scale: Tensor | None) -> "TileMasses":
        """Of N rows, from what was summed; scale None is 1."""
        shift = maxima - row_max.unsqueeze(1)
        if scale is not None:
            shift *= scale.unsqueeze(1)
        return cls(on_host(sums), on_host(shift))

    def pick(self, index: IntArray) -> "TileMasses":
        """Those of some rows."""
        return TileMasses(self.sums[index], self.shift[index])

    def log(self) -> NDArray[np.float64]:
        """[N, T], -inf for a tile without mass."""
        return np.log(self.sums.astype(np.float64)) + self.shift

    def of_tiles(self) -> NDArray[np.float64]:
        """[N, T]: the mass of each tile."""
        masses: NDArray[np.float64] = np.multiply(self.sums, np.exp(self.shift), dtype=np.float64)
        return masses

    def totals(self) -> NDArray[np.float64]:
        """[N]: the mass of each row."""
        totals: NDArray[np.float64] = self.of_tiles().sum(1)
        return totals


def tile_maxima(tiles: Tensor) -> Tensor:
    """float32 [N, T] of tiles [N, T, 128]; NaN where a tile holds one."""
    return tiles.amax(2)


def scan(
    tiles: Tensor, scale: Tensor | None, summed: NDArray[np.bool_] | None = None, *, wide: bool = False
) -> tuple[Tensor, Tensor]:
    """Maxima and sums of the tiles of whole rows while each row is at hand, in one read.

    Args:
        tiles: float32 [N, T, 128].
        scale: float32 [N], 1 / temperature; None: 1.
        summed: bool [N], rows whose sums are wanted; None: all.
        wide: Float64 sums.

    Returns:
        Maxima float32 [N, T], and sums of exp((value - maximum of the tile) scale), float32 or float64 [N, T]; NaN for
        rows that are not `summed`.
    """
    maxima = tiles.new_empty(tiles.shape[:2])
    return maxima, tile_sums(Tiles(tiles), maxima, scale, summed=summed, wide=wide, fill_maxima=True)


def tile_masses(
    tiles: Tiles,
    maxima: Tensor,
    row_max: Tensor,
    scale: Tensor | None,
    cut: Cut | None = None,
    *,
    wide: bool = False,
) -> TileMasses:
    """Each tile's sum of exp((value - row_max) scale).

    Args:
        tiles: Of N rows; maxima: float32 [N, T], theirs; row_max: float32 [N], finite.
        scale: float32 [N], 1 / temperature; None: 1.
        cut: The tokens that count; None: all do.
        wide: Float64 sums, for float64 races.
    """
    return TileMasses.of(tile_sums(tiles, maxima, scale, cut, wide=wide), maxima, row_max, scale)


def tile_sums(
    tiles: Tiles,
    maxima: Tensor,
    scale: Tensor | None,
    cut: Cut | None = None,
    *,
    summed: NDArray[np.bool_] | None = None,
    wide: bool = False,
    fill_maxima: bool = False,
) -> Tensor:
    """The sums that `scan` returns and `tile_masses` wraps; fill_maxima: `maxima` are written, not read."""
    dtype = torch.float64 if wide else torch.float32
    if summed is not None and summed.all():
        summed = None
    sums = torch.empty(maxima.shape, dtype=dtype, device=maxima.device)
    temporary: Tensor | None = None
    for rows, values in tiles.chunks(len(maxima)):
        own_maxima = maxima[rows]
        if fill_maxima:
            torch.amax(values, 2, out=own_maxima)
        if summed is not None and not summed[rows].any():
            continue
        if temporary is None:
            # One for all chunks, the first being the largest: fresh memory costs more than the arithmetic.
            temporary = torch.empty(values.shape, dtype=dtype, device=maxima.device)
        x = temporary if values.shape == temporary.shape else temporary[: len(values)]
        torch.sub(values, own_maxima.unsqueeze(2), out=x)
        if scale is not None:
            x.mul_(scale[rows].view(-1, 1, 1))
        x.exp_()
        if cut is not None:
            for i, value, last in zip(range(len(x)), cut.value[rows].tolist(), cut.id[rows].tolist()):
                if last >= 0:
                    _keep_before(x[i].view(-1), values[i].view(-1), value, last)
        torch.sum(x, 2, out=sums[rows])
    # Empty tiles, for all rows at once: -inf - -inf made them NaN. Rows that hold a NaN are never drawn from.
    sums.nan_to_num_(0.0)
    if summed is not None:
        sums.masked_fill_(torch.from_numpy(~summed).to(sums.device).unsqueeze(1), torch.nan)
    return sums


def _keep_before(weights: Tensor, tokens: Tensor, value: float, last: int) -> None:
    """Zeroes the weights [V] of tokens [V] after (value, last) in the order: equals count up to the last kept id."""
    # A comparison into floats, then a product: a fifth of the time of a comparison into booleans.
    kept = torch.empty_like(weights)
    torch.ge(tokens[: last + 1], value, out=kept[: last + 1])
    torch.gt(tokens[last + 1 :], value, out=kept[last + 1 :])
    weights.mul_(kept)


def tiles_at_least(
    tiles: Tiles, maxima: NDArray[np.float32], line: NDArray[np.float32]
) -> tuple[IntArray, IntArray, NDArray[np.float32]]:
    """The tiles that hold a token of at least `line` [N]: rows [P], tile ids [P] and values [P, 128]."""
    # No token of value -inf reaches even the lowest line.
    found = np.flatnonzero(maxima >= np.maximum(line, np.float32(_LOWEST))[:, None])
    rows, tile_ids = np.divmod(found, maxima.shape[1])
    return rows, tile_ids, tiles.at(rows, tile_ids)


def tokens_at_least(tiles: Tiles, maxima: NDArray[np.float32], line: NDArray[np.float32]) -> Tokens:
    """All tokens of at least `line` [N], but none of value -inf."""
    rows, tile_ids, x = tiles_at_least(tiles, maxima, line)
    found = np.flatnonzero(x >= np.maximum(line, np.float32(_LOWEST))[rows, None])
    pairs, lanes = np.divmod(found, TILE)
    return Tokens(rows[pairs], tile_ids[pairs] * TILE + lanes, x.reshape(-1)[found])


def in_order(tokens: Tokens) -> IntArray:
    """[E]: an index that puts each row's tokens in the order (value desc, id asc), the rows as they are."""
    # One sort of integers: the row above the value's bits, larger values first. -0.0 + 0 is 0.0: one value.
    bits = (-tokens.values + np.float32(0)).view(np.int32).astype(np.int64)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    return np.argsort((tokens.rows << 32) + bits, kind="stable")


def line_of(tiles: Tiles, maxima: NDArray[np.float32], k: IntArray) -> NDArray[np.float32]:
    """A line [N] that at least k [N] tokens of each row reach, if it has so many, and seldom more than twice as many.

    It is the k-th largest maximum of a row's tiles, or, where there are not enough of them, of its parts of 64, 32, ..
    1 tokens.
    """
    wanted = 1.5 * int(k.max())
    lanes = TILE
    while lanes > 1 and maxima.shape[1] * (TILE // lanes) < wanted:
        lanes //= 2
    best = maxima
    if lanes < TILE:
        parts = [values.view(len(values), -1, lanes).amax(2) for _, values in tiles.chunks(len(maxima))]
        best = on_host(torch.cat(parts))
    at = best.shape[1] - k
    # A sort of so few takes no longer than a partition.
    line: NDArray[np.float32] = np.sort(best, 1)[np.arange(len(k)), at.clip(0)]
    return np.where(at > 0, line, np.float32(-np.inf))
