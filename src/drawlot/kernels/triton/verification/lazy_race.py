"""The race over tiles by what q leaves of them, of which only those are read that can still win.

No tile has more left than it had. A draft is rejected as often as something is left of its row, so that few tiles have
to be read: two or three of a row of which a third is left; all of one of which hardly anything is, but hardly ever.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import best_two_of_groups, largest
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.values import MINUS_INF, ids_of
from drawlot.kernels.triton.verification.leftover import weights_of

_SLACK = tl.constexpr(1e-3)
"""More than what rounding adds to a sum's logarithm"""


@triton.jit
def race_of_leftovers(rows, drafts, refused, law, noises, row, bounds, T: tl.constexpr, TILES: tl.constexpr):
    """The winning tile; -1 if nothing is left of any.

    law: as for `weights_of`; noises: points to the tiles' noise; bounds: [T], what a tile's key would be if q left all
    of it; TILES: that are read at a time, the best of as many groups, then the next of each.
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
        ids, mask = ids_of(own), (bound + _SLACK > best_key)[:, None]
        x = load_allowed(rows, refused, row, ids, mask)
        _p, left = weights_of(drafts, law, x, ids, mask)
        noise = tl.load(noises + own)
        masses = tl.sum(left, 1)
        keys = tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + noise, MINUS_INF)
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
        may_change = (highest > MINUS_INF) & (highest + _SLACK > best_key)
    return best
