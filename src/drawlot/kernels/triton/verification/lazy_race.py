"""The race over tiles by what q leaves of them, of which only those are read that can still win.

No tile has more left than it had. A draft is rejected as often as something is left of its row, so that few tiles are
read in the mean: some dozen of a row of which a third is left; all of one of which hardly anything is, but hardly ever.
"""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.listing import select_tiles
from drawlot.kernels.triton.noise import gumbel
from drawlot.kernels.triton.reduce import first_largest
from drawlot.kernels.triton.values import MINUS_INF, ids_of
from drawlot.kernels.triton.verification.leftover import weights_of

_RESIDUAL_TILE = tl.constexpr(int(rng.Stream.RESIDUAL_TILE))
_FIRST = tl.constexpr(2.5)
"""So far behind the best bound are tiles that are read at once: a dozen"""
_SLACK = tl.constexpr(1e-3)
"""More than what rounding adds to a sum's logarithm"""


@triton.jit
def race_of_leftovers(rows, drafts, judged, lists, row, tile, bounds, key, TILES: tl.constexpr, WIDE: tl.constexpr):
    """The winning tile; -1 if nothing is left of any.

    bounds: [T], logs of the tiles' shares of p; -inf for a tile without a token; TILES: read at a time.
    """
    keys = bounds + gumbel(tile, key[0], key[1], _RESIDUAL_TILE, key[2], key[3], WIDE)
    line = tl.max(keys) - _FIRST
    best, best_key = _best_among(rows, drafts, judged, lists, row, tile, keys >= line, key, TILES, WIDE)
    others = (keys < line) & (keys + _SLACK > best_key)
    if tl.max(others.to(tl.int32)) != 0:
        other, other_key = _best_among(rows, drafts, judged, lists, row, tile, others, key, TILES, WIDE)
        best = tl.where((other_key > best_key) | ((other_key == best_key) & (other < best)), other, best)
    return best


@triton.jit
def _best_among(rows, drafts, judged, lists, row, tile, selected, key, TILES: tl.constexpr, WIDE: tl.constexpr):
    """The winner among selected tiles and its key; -1 and -inf if nothing is left of them."""
    # The list of the round before has been read.
    tl.debug_barrier()
    select_tiles(lists, row, tile, selected)
    tl.debug_barrier()
    count = tl.sum(selected.to(tl.int32))
    best = tl.full([], -1, tl.int32)
    best_key = tl.full([], float("-inf"), tl.float64)
    start = 0
    while start < count:
        slot = start + tl.arange(0, TILES)
        own = tl.load(lists.tile_ids + row * lists.width + slot, mask=slot < count, other=0)
        _p, left = weights_of(rows, drafts, judged, row, ids_of(own), (slot < count)[:, None])
        masses = tl.sum(left, 1)
        noise = gumbel(own, key[0], key[1], _RESIDUAL_TILE, key[2], key[3], WIDE)
        keys = tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + noise, MINUS_INF).to(tl.float64)
        highest = tl.max(keys)
        winner, _payload = first_largest(keys, own, own)
        best = tl.where(highest > best_key, winner, best)
        best_key = tl.maximum(highest, best_key)
        start += TILES
    return best, best_key
