"""A row without a token that the scan saw: a draft that a constraint refuses."""

import triton
import triton.language as tl

from drawlot.kernels.triton.states import scan_scale
from drawlot.kernels.triton.tile_summary import best_group, tile_sums
from drawlot.kernels.triton.values import MINUS_INF, TILE, ids_of, load_values, touches, under_overlay


@triton.jit
def load_allowed(rows, refused, row, ids, mask):
    """The values of a row, without the refused token, if there may be one: as under an overlay, in fewer registers."""
    return _without(load_values(rows, row, ids, mask), ids, refused)


@triton.jit
def allowed(rows, refused, row, x, ids):
    """As `load_allowed`, of edited values that are there."""
    return _without(under_overlay(rows, row, x, ids), ids, refused)


@triton.jit
def _without(x, ids, refused):
    if refused is not None:
        x = tl.where(ids == refused, MINUS_INF, x)
    return x


@triton.jit
def without_refused(rows, states, tiles, state, row, refused, tile, maxima, sums, best_groups):
    """Stores and returns a row's tiles without a token; raw logprobs keep what the scan found.

    What the tiles have stored of `best_groups` still bounds them.
    """
    at, exists = row * tiles.stride + tile, tile < tiles.num
    if tiles.raw_sums is not None:
        # Otherwise the scan has stored them.
        if (scan_scale(states, state) == 1.0) & (touches(rows.edits, row) == 0):
            tl.store(tiles.raw_maxima + at, maxima, mask=exists)
            tl.store(tiles.raw_sums + at, sums, mask=exists)
    touched = refused // TILE + tl.arange(0, 1)
    x = load_allowed(rows, refused, row, ids_of(touched), touched[:, None] >= 0)
    new_maxima, new_best_groups = best_group(x)
    new_sum = tl.max(tile_sums(x, new_maxima, scan_scale(states, state)))
    maxima = tl.where(tile == refused // TILE, tl.max(new_maxima), maxima)
    best_groups = tl.where(tile == refused // TILE, tl.max(new_best_groups), best_groups)
    # What the mask hides may have been bad.
    sums = tl.where((tile == refused // TILE) & (sums == sums), new_sum, sums)
    tl.store(tiles.maxima + at, maxima, mask=tile == refused // TILE)
    tl.store(tiles.sums + at, sums, mask=tile == refused // TILE)
    return maxima, sums, best_groups
