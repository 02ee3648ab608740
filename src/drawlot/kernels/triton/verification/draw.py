"""The token after the accepted drafts: from what is left of a row, or from the row's own law."""

import triton
import triton.language as tl

from drawlot.kernels.triton.listing import load_list
from drawlot.kernels.triton.race import race, race_of_range, z_of
from drawlot.kernels.triton.reduce import first_largest, sum_by_tile
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.summary import LISTED
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE
from drawlot.kernels.triton.verification.laws import NOTHING_ELSE
from drawlot.kernels.triton.verification.lazy_race import race_of_leftovers
from drawlot.kernels.triton.verification.leftover import is_kept, law_of_row, weights_of
from drawlot.kernels.triton.verification.requests import (
    is_filtered,
    looks_at_q,
    step_key,
    tile_stream,
    token_stream,
)


@triton.jit
def draw_after(
    rows,
    step,
    lists,
    methods,
    judged,
    leftovers,
    summary,
    state,
    first,
    accepted,
    n,
    prefix,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of row `accepted` of a request that samples and is not `coupled`.

    n: drafts that may be accepted; prefix: P of the accepted ones, float64.
    """
    row = first + accepted
    key = step_key(step.states, state, first, accepted)
    residual = (accepted < n) & looks_at_q(step.states, methods, state)
    law = law_of_row(judged, row, prefix)
    path = tl.full([], -1, tl.int32)
    if is_filtered(step.states, state):
        path = tl.load(summary.path + row)
    if path == LISTED:
        token = _draw_from_list(step, lists, law, state, row, key, residual, WIDE, ROOM)
    else:
        token = _draw_from_tiles(rows, step, judged, leftovers, law, state, row, key, residual, n == 0, WIDE, T, TILES)
    return tl.minimum(token, rows.vocab_size - 1)


@triton.jit
def _draw_from_list(step, lists, law, state, row, key, residual, WIDE: tl.constexpr, ROOM: tl.constexpr):
    """Of a row whose finish has listed all that it keeps."""
    x, ids = load_list(lists, row, tl.arange(0, ROOM))
    p, left = weights_of(step.drafts, law, x, ids, ids < LAST_ID)
    total = tl.sum(left)
    # Of an empty or broken law is drawn what the row draws for itself.
    residual = residual & (total > 0) & (total < float("inf"))
    weight = tl.where(residual, left, p)
    # An own law's z: the logarithm of a weight that vanishes says less.
    z = z_of(x, law[6], temperature_of(step.states, state), WIDE)
    z = tl.where(residual, tl.log(tl.where(left > 0, left, 1.0)).to(z.dtype), z)
    kept, tile = weight > 0, ids // TILE
    # The last token of a tile has the tile's mass and wins over those before it, whose noise is the same.
    log_mass = tl.log(sum_by_tile(tl.where(kept, weight, 0.0), tile)).to(z.dtype)
    best, _payload = race(tile, tl.where(kept, log_mass, MINUS_INF), tile, key, tile_stream(residual, False), WIDE)
    inside = tl.where(kept & (tile == best), z, MINUS_INF)
    token, _payload = race(ids, inside, ids, key, token_stream(residual, False), WIDE)
    return token


@triton.jit
def _draw_from_tiles(
    rows,
    step,
    judged,
    leftovers,
    law,
    state,
    row,
    key,
    residual,
    alone,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
):
    """Of a row whose tiles have been weighed by `law_kernel`."""
    tile = tl.arange(0, T)
    refused, without = tl.load(judged.refused + row), tl.load(judged.without + row)
    residual = residual & (without != NOTHING_ELSE)
    line, _, _, _, cut_value, cut_id, row_max, _, per_mass, prefix = law
    from_q = residual & (line >= 0)
    best = tl.full([], -1, tl.int32)
    if from_q:
        log_scale = tl.log(prefix * per_mass)
        best = race_of_leftovers(rows, step.drafts, refused, law, leftovers, row, log_scale, T, TILES)
        from_q = best >= 0
        residual = from_q
    if best < 0:
        log_masses = tl.load(leftovers.log_masses + row * leftovers.width + tile)
        if line >= 0:
            # Nothing is left, or q is no law: then the row's own, whose noise is another.
            best = race_of_range(0, log_masses, key, tile_stream(False, alone), T, WIDE)
        else:
            noise = tl.load(leftovers.noises + row * leftovers.width + tile)
            best, _payload = first_largest(log_masses + noise, tile, tile)
    ids = best * TILE + tl.arange(0, TILE)
    x = load_allowed(rows, refused, row, ids, ids >= 0)
    if from_q:
        _p, left = weights_of(step.drafts, law, x, ids, ids >= 0)
        z = tl.where(left > 0, tl.log(tl.where(left > 0, left, 1.0)), MINUS_INF).to(tl.float64 if WIDE else tl.float32)
    else:
        kept = is_kept(x, ids, cut_value, cut_id) & (ids != without)
        z = tl.where(kept, z_of(x, row_max, temperature_of(step.states, state), WIDE), MINUS_INF)
    return race_of_range(best * TILE, z, key, token_stream(residual, alone), TILE, WIDE)
