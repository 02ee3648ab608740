"""A race over the tiles of a row of which only those are read that can still win.

Each tile has a bound that its key cannot exceed: the key it would have if none of its tokens were dropped. Few tiles
have to be read, two or three of a row that keeps a third of its mass; all of one that keeps hardly any.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import best_two_of_groups, largest
from drawlot.kernels.triton.values import MINUS_INF

_SUM_SLACK = tl.constexpr(1e-3)
"""More than what rounding adds to a sum's logarithm"""


@triton.jit
def race_lazily(bounds, keys_of: tl.constexpr, rows, drafts, row, T: tl.constexpr, TILES: tl.constexpr):
    """The winning tile, the lower one among equals; -1 if no key is above -inf.

    bounds: [T], of tiles; keys_of: a function of `rows`, `drafts` and `row`, of tiles [TILES] and of which to read,
    that returns their keys, in the type of the bounds; row: a tuple of what else it needs to know, of tensors alone,
    since numbers would get lost in it; TILES: read at a time, the best of as many groups, then the next of each.
    """
    # Neighbours are of different groups: where a vocabulary is sorted by frequency, likely tiles are neighbours.
    SIDE: tl.constexpr = min(4, T // TILES)
    bounds = bounds.reshape(T // TILES // SIDE, TILES, SIDE)
    tile = tl.arange(0, T).reshape(T // TILES // SIDE, TILES, SIDE)
    best, best_key = tl.full([], -1, tl.int32), tl.full([], float("-inf"), bounds.dtype)
    bound, own, next_bound, next_own = best_two_of_groups(bounds, tile)
    may_change = best < 0
    is_first = best < 0
    while may_change:
        reads = bound + _SUM_SLACK > best_key
        keys = keys_of(rows, drafts, row, own, reads)
        its_key, winner, _ = largest(keys, own, own)
        wins = (its_key > best_key) | ((its_key == best_key) & (winner < best))
        best = tl.where(wins, winner, best)
        best_key = tl.where(wins, its_key, best_key)
        if is_first:
            own, next_own = next_own, own
            bound = next_bound
        else:
            was_read = (tile == own[None, :, None]) | (tile == next_own[None, :, None])
            bounds = tl.where(was_read, MINUS_INF, bounds)
            bound, own, next_bound, next_own = best_two_of_groups(bounds, tile)
        is_first = is_first == 0
        highest = tl.max(bound)
        may_change = (highest > MINUS_INF) & (highest + _SUM_SLACK > best_key)
    return best
