"""Stages 3 and 4: where each filtered row is cut, from its best tokens if they suffice, else from the whole row."""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import TILE
from drawlot.kernels.torch.nucleus import cut_among_many
from drawlot.kernels.torch.scan import in_order, line_of, tokens_at_least
from drawlot.kernels.torch.tiles import Cut, IntArray, Tiles, Tokens, on_host

_MOST_LISTED = 1024  # a larger top_k is cut from the whole row
_LISTED_WITHOUT_K = 64  # rows without top_k list at least so many tokens,
_WHOLE_UP_TO = 2048  # and all of a vocabulary so small
_NUM_BUCKETS, _BUCKET_SHIFT = 1 << 14, 18  # sign, exponent and five bits of the mantissa
_FLOAT32_MAX = float(np.finfo(np.float32).max)
_FIXED_POINT = 2.0**44  # integer masses add up alike in any order; 2^44 * 2^18 tokens stay below 2^63


class Filters(NamedTuple):
    """The filters of some rows, on the host; off: top_k 0, top_p 1, min_p 0."""

    top_k: IntArray
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]

    @property
    def some_on(self) -> NDArray[np.bool_]:
        """bool [N]: rows with some filter."""
        on: NDArray[np.bool_] = (self.top_k > 0) | (self.top_p < 1) | (self.min_p > 0)
        return on

    @property
    def top_p_alone(self) -> NDArray[np.bool_]:
        """bool [N]: rows cut by top_p without another filter."""
        alone: NDArray[np.bool_] = (self.top_k <= 0) & (self.top_p < 1) & (self.min_p == 0)
        return alone

    @property
    def needs_masses(self) -> NDArray[np.bool_]:
        """bool [N]: rows that no list serves without the masses of all tiles."""
        return ~self.some_on | self.top_p_alone

    def pick(self, index: IntArray) -> "Filters":
        """Those of some rows."""
        return Filters(self.top_k[index], self.top_p[index], self.min_p[index])


class Listed(NamedTuple):
    """The kept tokens of some rows, listed."""

    kept: Tokens
    z: NDArray[np.float64]
    """Of each kept token"""
    cut: Cut
    exact: NDArray[np.bool_]
    """[N]: the list holds all that the row keeps; other rows need `exact_cut`"""
    keeps_list: NDArray[np.bool_]
    """[N]: the row keeps its whole list, so perhaps the whole row"""


def listable(filters: Filters) -> NDArray[np.bool_]:
    """bool [N]: rows whose cut may be found in a short list of their best tokens."""
    return filters.top_k <= _MOST_LISTED


def kept_of_best_tokens(
    tiles: Tiles,
    maxima: NDArray[np.float32],
    row_max: NDArray[np.float32],
    temperature: NDArray[np.float64],
    tile_mass: NDArray[np.float64],
    filters: Filters,
) -> Listed:
    """Cuts rows within the list of all their tokens above a line.

    At least k tokens reach the line of a row with top_k. The list of a row without top_k holds at least 64 tokens, and
    is exact if what its other filters keep lies above its line.

    Args:
        tiles: Of N rows; maxima: [N, T], theirs. All the rest is on the host.
        row_max and temperature: [N].
        tile_mass: [N, T], the tiles' sums of exp(z) where top_p alone cuts the row, else NaN.
        filters: Of these rows, `listable`.
    """
    n = len(maxima)
    has_k = filters.top_k > 0
    without_k = _WHOLE_UP_TO if maxima.shape[1] * TILE <= _WHOLE_UP_TO else _LISTED_WITHOUT_K
    line = line_of(tiles, maxima, np.where(has_k, filters.top_k, without_k))
    row_mass = tile_mass.sum(1)
    if filters.top_p_alone.any():
        # Where even all tokens of the tiles that reach the line are not enough, the best token alone is listed.
        reached = np.where(maxima >= line[:, None], tile_mass, 0).sum(1)
        line = np.where(reached < filters.top_p * row_mass, row_max, line)
    tokens = tokens_at_least(tiles, maxima, line)
    rows = tokens.rows
    order = in_order(tokens)
    starts = np.searchsorted(rows, np.arange(n + 1))
    first, listed = starts[:-1], np.diff(starts)
    z = (tokens.values.astype(np.float64) - row_max[rows]) / temperature[rows]
    mass = np.exp(z)

    count = np.where(has_k, np.minimum(filters.top_k, listed), listed)
    limited = has_k | (line == -np.inf)
    if (filters.min_p > 0).any():
        above = np.add.reduceat((z >= np.log(filters.min_p)[rows]).astype(np.int64), first)
        limited |= above < listed
        count = np.minimum(count, above)
    exact = limited
    if (filters.top_p < 1).any():
        running = np.zeros((n, listed.max()))
        running[rows, np.arange(len(rows)) - first[rows]] = mass[order]
        running = running.cumsum(1)
        total = np.where(limited, running[np.arange(n), count - 1], row_mass)
        needed = (running < (filters.top_p * total)[:, None]).sum(1) + 1
        # Where a list ends above the min-p line, the mass that top_p counts is not known: NaN, which crosses nothing.
        crossed = (filters.top_p < 1) & (needed <= count) & ~np.isnan(total)
        count = np.where(crossed, needed, count)
        exact = limited | crossed
    count = np.maximum(count, 1)
    last = order[first + count - 1]
    cut = Cut(tokens.values[last], tokens.ids[last])
    kept = (tokens.values > cut.value[rows]) | ((tokens.values == cut.value[rows]) & (tokens.ids <= cut.id[rows]))
    return Listed(tokens.pick(kept), z[kept], cut, exact, count == listed)


def exact_cut(
    values: Tensor, row_max: float, temperature: float, filters: Filters, row: int, mass: float
) -> tuple[float, int]:
    """The cut of one row of any shape.

    Args:
        values: float32 [V]; row_max: the largest; temperature: > 0.
        filters: Of several rows; row: which of them this is. Some filter is on.
        mass: The row's sum of exp(z), where top_p alone cuts it.

    Returns:
        Value and id of the last kept token.
    """
    top_k, top_p, min_p = int(filters.top_k[row]), float(filters.top_p[row]), float(filters.min_p[row])
    if filters.top_p_alone[row]:
        cut = cut_among_many(on_host(values), row_max, temperature, top_p * mass)
        if cut is not None:
            return cut
    return _cut_by_buckets(values, row_max, temperature, top_k, top_p, min_p)


def _cut_by_buckets(
    values: Tensor, row_max: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[float, int]:
    """The cut from counts and masses of 2^14 buckets of values; only the bucket of the cut is put in order."""
    # In place where it can be: fresh memory costs more than the arithmetic.
    bits = (values + 0.0).view(torch.int32)  # -0.0 and 0.0 are one value
    bits ^= (bits >> 31).bitwise_and_(0x7FFFFFFF)  # now ascending, as the values
    bucket = torch.sub(_NUM_BUCKETS // 2 - 1, bits.bitwise_right_shift_(_BUCKET_SHIFT), out=bits)  # best first
    before = torch.zeros(1, dtype=torch.int64, device=values.device)

    def in_order(index: Tensor) -> Tensor:
        """The ids of a bucket, its best token first."""
        ids = torch.from_numpy(np.flatnonzero(on_host(bucket) == int(index))).to(values.device)
        return ids[values[ids].sort(descending=True, stable=True).indices]

    limit = None
    if top_k > 0 or min_p > 0:
        count = min(top_k or len(values), int(np.count_nonzero(on_host(values) > -np.inf)))
        if min_p > 0:
            z = (values.to(torch.float64) - row_max) / temperature
            count = min(count, int((z >= math.log(min_p)).count_nonzero()))
        counts = torch.cat((before, torch.bincount(bucket, minlength=_NUM_BUCKETS).cumsum(0)))
        index = torch.searchsorted(counts, count) - 1
        limit = in_order(index)[: count - int(counts[index])]
    if top_p < 1:
        weights = (values - row_max).mul_(min(1 / temperature, _FLOAT32_MAX)).exp_().mul_(_FIXED_POINT).to(torch.int64)
        masses = torch.zeros(_NUM_BUCKETS, dtype=torch.int64, device=values.device).index_add_(0, bucket, weights)
        masses = torch.cat((before, masses.cumsum(0)))
        total = int(masses[-1]) if limit is None else int(masses[index] + weights[limit].sum())
        target = math.ceil(top_p * total)
        index = torch.searchsorted(masses, target) - 1
        ids = in_order(index)
        running = weights[ids].cumsum(0) + masses[index]
        limit = ids[: int(torch.searchsorted(running, target)) + 1]
    assert limit is not None, "a row without filters has no cut"
    last = int(limit[-1])
    return float(values[last]), last
