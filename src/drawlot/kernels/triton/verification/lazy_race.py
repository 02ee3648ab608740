"""The race over tiles by what q leaves of them, of which only those are read that can still win.

No tile has more left than it had. A draft is rejected as often as something is left of its row, so that few tiles have
to be read: two or three of a row of which a third is left; all of one of which hardly anything is, but hardly ever.
"""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.listing import select_tiles
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.reduce import largest
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of
from drawlot.kernels.triton.verification.leftover import weights_of

_RESIDUAL_TILE = tl.constexpr(int(rng.Stream.RESIDUAL_TILE))
_AT_ONCE = tl.constexpr(1.6)
"""So far behind the best bound are tiles that are read at once: four or five, seldom more than sixteen"""
_SLACK = tl.constexpr(1e-3)
"""More than what rounding adds to a sum's logarithm"""


@triton.jit
def race_of_leftovers(
    rows, drafts, judged, lists, noises, row, bounds, key, T: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr
):
    """The winning tile and what is left of its tokens, float32 [128]; -1 if nothing is left of any.

    noises: scratch; bounds: [T], logs of the tiles' shares of p, -inf for a tile without a token; TILES: read at a time
    """
    tile = tl.arange(0, T)
    noise = gumbel_of_range(0, T, key[0], key[1], _RESIDUAL_TILE, key[2], key[3], WIDE)
    tl.store(noises + row * lists.width + tile, noise)
    bounds += noise
    best, best_key = tl.full([], -1, tl.int32), tl.full([], float("-inf"), bounds.dtype)
    best_left = tl.zeros([TILE], tl.float32)
    highest = tl.max(bounds)
    while (highest > MINUS_INF) & (highest + _SLACK > best_key):
        selected = bounds >= highest - _AT_ONCE
        # The list of the round before has been read.
        tl.debug_barrier()
        select_tiles(lists, row, tile, selected)
        tl.debug_barrier()
        count = tl.sum(selected.to(tl.int32))
        start = 0
        while start < count:
            slot = start + tl.arange(0, TILES)
            own = tl.load(lists.tile_ids + row * lists.width + slot, mask=slot < count, other=0)
            _p, left = weights_of(rows, drafts, judged, row, ids_of(own), (slot < count)[:, None])
            masses = tl.sum(left, 1)
            own_noise = tl.load(noises + row * lists.width + own)
            keys = tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + own_noise, MINUS_INF)
            its_key, winner, place = largest(keys, tl.where(slot < count, own, LAST_ID), slot)
            wins = (its_key > best_key) | ((its_key == best_key) & (winner < best))
            best_left = tl.where(wins, tl.sum(tl.where((slot == place)[:, None], left, 0.0), 0), best_left)
            best = tl.where(wins, winner, best)
            best_key = tl.where(wins, its_key, best_key)
            start += TILES
        bounds = tl.where(selected, MINUS_INF, bounds)
        highest = tl.max(bounds)
    return best, best_left
