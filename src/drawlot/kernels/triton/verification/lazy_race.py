"""The race over tiles by what q leaves of them, of which only those are read that can still win.

No tile has more left than it had. A draft is rejected as often as something is left of its row, so that few tiles have
to be read: two or three of a row of which a third is left; all of one of which hardly anything is, but hardly ever.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import largest, largest_of_columns
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.values import MINUS_INF, ids_of
from drawlot.kernels.triton.verification.leftover import weights_of

_SLACK = tl.constexpr(1e-3)
"""More than what rounding adds to a sum's logarithm"""


@triton.jit
def race_of_leftovers(rows, drafts, refused, law, leftovers, row, log_scale, T: tl.constexpr, TILES: tl.constexpr):
    """The winning tile; -1 if nothing is left of any.

    law: as for `weights_of`; log_scale: of P / mass; TILES: that are read at a time, the best of as many groups.
    """
    # Neighbours are of different groups: where a vocabulary is sorted by frequency, likely tiles are neighbours.
    tile = tl.arange(0, T // TILES)[:, None] * TILES + tl.arange(0, TILES)[None, :]
    noises = leftovers.noises + row * leftovers.width
    bounds = tl.load(leftovers.log_masses + row * leftovers.width + tile) + log_scale + tl.load(noises + tile)
    best, best_key = tl.full([], -1, tl.int32), tl.full([], float("-inf"), bounds.dtype)
    bound, own = largest_of_columns(bounds, tile)
    highest = tl.max(bound)
    while (highest > MINUS_INF) & (highest + _SLACK > best_key):
        may_win = (bound > MINUS_INF) & (bound + _SLACK > best_key)
        ids, mask = ids_of(own), may_win[:, None]
        x = load_allowed(rows, refused, row, ids, mask)
        _p, left = weights_of(drafts, law, x, ids, mask)
        masses = tl.sum(left, 1)
        keys = tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + tl.load(noises + own), MINUS_INF)
        its_key, winner, _ = largest(keys, own, own)
        wins = (its_key > best_key) | ((its_key == best_key) & (winner < best))
        best = tl.where(wins, winner, best)
        best_key = tl.where(wins, its_key, best_key)
        bounds = tl.where(tile == own[None, :], MINUS_INF, bounds)
        bound, own = largest_of_columns(bounds, tile)
        highest = tl.max(bound)
    return best
