"""Reads of the rows: tile maxima, tile masses, and the few tiles or tokens that reach a line.

Whole rows are torch's business, on their device. What is left of them is small and continues in NumPy on the host,
where an operation costs a quarter of the time.
"""

import itertools
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import TILE
from drawlot.kernels.torch.tiles import Cut, FloatArray, IntArray, Tiles, Tokens, on_host

_LOWEST = float(np.finfo(np.float32).min)


_NEAR = 32.0
"""exp of up to so much, and sums of it, lose nothing in float32"""


class TileMasses(NamedTuple):
    """The sums of exp((value - row_max) scale) over the tokens of tiles, as sum exp(shift); on the host."""

    sums: FloatArray
    """float32 or float64 [N, T], as `tile_sums` returns them; 0 for a tile without mass"""
    shift: FloatArray
    """float64 [N, T], or [N, 1] where it is the same for all tiles"""

    @classmethod
    def of(cls, sums: Tensor, maxima: Tensor, row_max: Tensor, scale: Tensor | None) -> "TileMasses":
        """Of N rows, from what was summed; scale None is 1."""
        near, best = _near(maxima, scale), on_host(row_max).astype(np.float64)[:, None]
        shift = -best
        if not near.all():
            with np.errstate(invalid="ignore"):  # rows that are -inf, or not finite, are never drawn from
                shift = np.where(near[:, None], shift, on_host(maxima) - best)
        if scale is not None:
            shift *= on_host(scale)[:, None]
        return cls(on_host(sums), shift)

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


def _near(maxima: Tensor, scale: Tensor | None) -> NDArray[np.bool_]:
    """bool [N]: rows whose tiles have their maxima so near to 0 that their exponentials need no other origin."""
    largest = on_host(maxima.abs().amax(1))
    near: NDArray[np.bool_] = (largest if scale is None else largest * on_host(scale)) <= _NEAR
    return near


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
        Maxima float32 [N, T], and sums as of `tile_sums`.
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
    """The sums that `scan` returns and `TileMasses` wraps; fill_maxima: `maxima` are written, not read.

    Returns:
        Sums of exp((value - origin) scale), float32 or float64 [N, T]; the origin is 0 in rows that are near to it,
        which saves a pass, and the tile's own maximum in others. NaN for rows that are not `summed`.
    """
    dtype = torch.float64 if wide else torch.float32
    if summed is not None and summed.all():
        summed = None
    sums = torch.empty(maxima.shape, dtype=dtype, device=maxima.device)
    n, temporary = len(maxima), None
    cuts = tiles.chunk_borders(n)
    scales = itertools.repeat(None) if scale is None else scale.view(-1, 1, 1).tensor_split(cuts)
    parts = zip(maxima.tensor_split(cuts), sums.tensor_split(cuts), scales)
    for (rows, values), (own_maxima, own_sums, own_scale) in zip(tiles.chunks(n), parts):
        if fill_maxima:
            torch.amax(values, 2, out=own_maxima)
        if summed is not None and not summed[rows].any():
            continue
        if temporary is None:
            # One for all chunks, the first being the largest: fresh memory costs more than the arithmetic.
            temporary = torch.empty(values.shape, dtype=dtype, device=maxima.device)
        x = temporary if values.shape == temporary.shape else temporary[: len(values)]
        _exponentials(values, own_maxima, own_scale, x)
        if cut is not None:
            for i, value, last in zip(range(len(x)), cut.value[rows].tolist(), cut.id[rows].tolist()):
                if last >= 0:
                    _keep_before(x[i].view(-1), values[i].view(-1), value, last)
        torch.sum(x, 2, out=own_sums)
    # Empty tiles, for all rows at once: -inf - -inf made them NaN. Rows that hold a NaN are never drawn from.
    sums.nan_to_num_(0.0)
    if summed is not None:
        sums.masked_fill_(torch.from_numpy(~summed).to(sums.device).unsqueeze(1), torch.nan)
    return sums


def _exponentials(values: Tensor, maxima: Tensor, scale: Tensor | None, out: Tensor) -> None:
    """Writes exp((value - origin) scale) of tiles [N, T, 128], float32 or float64; maxima [N, T], scale [N, 1, 1]."""
    x = values if out.dtype == values.dtype else out.copy_(values)
    # A bound for all rows at once, in few operations: most rows pass, and those that do not lose nothing.
    largest = float(maxima.abs().amax()) * (1.0 if scale is None else max(scale.flatten().tolist()))
    if not largest <= _NEAR:
        far = torch.from_numpy(~_near(maxima, None if scale is None else scale.flatten())).to(maxima.device)
        x = torch.sub(x, torch.where(far.unsqueeze(1), maxima, 0).unsqueeze(2), out=out)
    if scale is not None:
        x = torch.mul(x, scale, out=out)
    torch.exp(x, out=out)


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
