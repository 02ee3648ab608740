"""Stages 3 and 4: where each filtered row is cut, from its best tokens if they suffice, else from the whole row."""

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.torch.scan import IntArray, in_order, kth_largest_tile, on_host, tokens_at_least

_SMALL_VOCAB_TILES = 16  # so few tiles are listed whole
_MOST_LISTED = 1024  # a larger top_k is cut from the whole row
_TILES_WITHOUT_K = 64  # rows without top_k list what reaches their 64th largest tile maximum
_FIXED_POINT = 2.0**44  # integer masses add up alike in any order; 2^44 * 2^18 tokens stay below 2^63


class Filters(NamedTuple):
    """The filters of some rows, on the host; off: top_k 0, top_p 1, min_p 0."""

    top_k: IntArray
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]

    def pick(self, index: IntArray) -> "Filters":
        """Those of some rows."""
        return Filters(self.top_k[index], self.top_p[index], self.min_p[index])


class Cut(NamedTuple):
    """The last kept token of each row; a token is kept if it is not after it in the order (value desc, id asc).

    Without filters: (-inf, -1), since no token of value -inf is ever kept.
    """

    value: NDArray[np.float32]
    id: IntArray


def listable(filters: Filters, num_tiles: int) -> NDArray[np.bool_]:
    """bool [N]: rows whose cut may be found in a short list of their best tokens."""
    return (filters.top_k <= min(num_tiles, _MOST_LISTED)) | (num_tiles <= _SMALL_VOCAB_TILES)


def cut_from_best_tokens(
    tiles: Tensor,
    maxima: Tensor,
    row_max: NDArray[np.float32],
    temperature: NDArray[np.float64],
    row_mass: NDArray[np.float64] | None,
    filters: Filters,
) -> tuple[Cut, NDArray[np.bool_]]:
    """Cuts rows within the list of all their tokens above a line.

    The k-th largest tile maximum is such a line for a row with top_k: at least k tokens reach it. A row without top_k
    is certified if what its other filters keep lies above the line of its 64th largest tile maximum.

    Args:
        tiles: float32 [N, T, 128]; maxima: float32 [N, T]; row_max and temperature: [N].
        row_mass: [N], the whole rows' sum of exp(z); None if every row has top_k.
        filters: Of these rows, `listable`.

    Returns:
        The cut, and bool [N]: it is exact; the other rows need `exact_cut`.
    """
    n, num_tiles = maxima.shape
    has_k = filters.top_k > 0
    if num_tiles <= _SMALL_VOCAB_TILES:
        line = np.full(n, -np.inf, np.float32)
    else:
        line = kth_largest_tile(maxima, np.where(has_k, filters.top_k, min(_TILES_WITHOUT_K, num_tiles)))
    tokens = in_order(tokens_at_least(tiles, on_host(maxima), line))
    starts = np.searchsorted(tokens.rows, np.arange(n + 1))
    listed = np.diff(starts)

    count = np.where(has_k, np.minimum(filters.top_k, listed), listed)
    limited = has_k | (line == -np.inf)
    z = (tokens.values.astype(np.float64) - row_max[tokens.rows]) / temperature[tokens.rows]
    if (filters.min_p > 0).any():
        floor = np.log(filters.min_p)
        above = np.add.reduceat((z >= floor[tokens.rows]).astype(np.int64), starts[:-1])
        limited |= above < listed
        count = np.minimum(count, above)
    certified = limited
    if (filters.top_p < 1).any():
        column = np.arange(len(z)) - starts[tokens.rows]
        mass = np.zeros((n, listed.max()))
        mass[tokens.rows, column] = np.exp(z)
        mass = mass.cumsum(1)
        total = mass[np.arange(n), count - 1]
        if row_mass is not None:
            total = np.where(limited, total, row_mass)
        needed = (mass < (filters.top_p * total)[:, None]).sum(1) + 1
        crossed = (filters.top_p < 1) & (needed <= count)
        count = np.where(crossed, needed, count)
        # top_p counts what min_p keeps: where the list ends above the min-p line, that mass is not known.
        certified = limited | (crossed & (filters.min_p == 0))
    last = starts[:-1] + np.maximum(count, 1) - 1
    return Cut(tokens.values[last], tokens.ids[last]), certified


def exact_cut(
    values: Tensor, row_max: float, temperature: float, top_k: int, top_p: float, min_p: float
) -> tuple[float, int]:
    """The cut of one row of any shape, from counts and masses of 2^16 buckets of values; the row is not sorted.

    Args:
        values: float32 [V]; row_max: the largest; temperature: > 0.
        top_k: 0 is off; top_p: 1 is off; min_p: 0 is off.

    Returns:
        Value and id of the last kept token.
    """
    bits = (values + 0.0).view(torch.int32)  # -0.0 and 0.0 are one value
    ascending = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    bucket = 32767 - (ascending >> 16)  # best first
    counts = torch.bincount(bucket, minlength=1 << 16).cumsum(0)
    z = (values.to(torch.float64) - row_max) / temperature
    count = int((values > -torch.inf).count_nonzero())
    if top_k > 0:
        count = min(count, top_k)
    if min_p > 0:
        count = min(count, int((z >= math.log(min_p)).count_nonzero()))

    def ids_in_order(index: int) -> tuple[Tensor, int]:
        """The ids of a bucket in order, and the number of tokens before it."""
        ids = (bucket == index).nonzero().squeeze(1)
        order = values[ids].sort(descending=True, stable=True).indices
        return ids[order], int(counts[index - 1]) if index else 0

    if top_p < 1:
        fixed = z.exp_().mul_(_FIXED_POINT).round_().to(torch.int64)
        masses = torch.zeros(1 << 16, dtype=torch.int64, device=values.device)
        masses = masses.index_add_(0, bucket, fixed).cumsum(0)

        def running_masses(index: int) -> tuple[Tensor, int]:
            """The masses of the first tokens of the row, up to each token of a bucket, and the tokens before it."""
            ids, before = ids_in_order(index)
            return fixed[ids].cumsum(0) + (masses[index - 1] if index else 0), before

        running, before = running_masses(int(torch.searchsorted(counts, count)))
        target = math.ceil(top_p * int(running[count - before - 1]))
        running, before = running_masses(int(torch.searchsorted(masses, target)))
        count = before + int(torch.searchsorted(running, target)) + 1
    count = max(1, count)
    ids, before = ids_in_order(int(torch.searchsorted(counts, count)))
    last = int(ids[count - before - 1])
    return float(values[last]), last
