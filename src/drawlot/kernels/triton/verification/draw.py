"""The token after the accepted drafts, one program a request: from what is left of a row, or from the row's own law."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.race import race, z_of
from drawlot.kernels.triton.scan import tile_sums
from drawlot.kernels.triton.states import scale_of, temperature_of
from drawlot.kernels.triton.values import MINUS_INF, TILE, ids_of
from drawlot.kernels.triton.verification.acceptance import DONE, DRAW, WEIGH, coins, put_verdict
from drawlot.kernels.triton.verification.lazy_race import race_of_leftovers
from drawlot.kernels.triton.verification.leftover import weights_of
from drawlot.kernels.triton.verification.requests import (
    is_filtered,
    load_allowed,
    looks_at_q,
    rows_of_request,
    step_key,
)

_RESIDUAL_TILE, _RESIDUAL_TOKEN = (
    tl.constexpr(int(rng.Stream.RESIDUAL_TILE)),
    tl.constexpr(int(rng.Stream.RESIDUAL_TOKEN)),
)
_BONUS_TILE, _BONUS_TOKEN = tl.constexpr(int(rng.Stream.BONUS_TILE)), tl.constexpr(int(rng.Stream.BONUS_TOKEN))


@triton.jit
def draw_kernel(
    rows,
    step,
    tiles,
    lists,
    judged,
    leftovers,
    verdicts,
    methods,
    verified,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request. T: power of two >= number of tiles; TILES: read at a time; COLUMNS: power of two > K."""
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    tile = tl.arange(0, T)
    follow(OVERLAP)
    outcome = tl.load(verdicts.outcome + request)
    if outcome == DONE:
        return
    states = step.states
    first, _num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    n = tl.load(verdicts.num_drafts + request)
    accepted = tl.load(verified.num_accepted + request)
    if outcome == WEIGH:
        accepted = _longest(rows, states, judged, leftovers, verdicts, state, request, first, n, tile, WIDE)
    row = first + accepted
    key = step_key(states, state, first, accepted)
    temperature, row_max = temperature_of(states, state), tl.load(judged.maxima + row)
    filtered = is_filtered(states, state)
    residual = (accepted < n) & looks_at_q(states, methods, state)
    is_point = tl.load(judged.lines + row) < 0
    # A point mass leaves all tiles as they are but the draft's.
    without = tl.where(residual & is_point, tl.load(judged.drafts + row), -1)
    from_left = residual & (filtered | (is_point == 0))
    at = row * leftovers.stride + tile
    masses, shift = tl.zeros([T], tl.float32), tl.zeros([T], tl.float32)
    if WIDE:
        shift = tl.zeros([T], tl.float64)
    best = tl.full([], -1, tl.int32)
    if from_left & (filtered == 0) & (outcome == DRAW):
        masses, shift = _tiles_of(rows, tiles, judged, row, tile, row_max, temperature, -1, WIDE)
        bounds = _log_masses(masses, shift) - tl.log(tl.load(judged.masses + row)).to(shift.dtype)
        best = race_of_leftovers(rows, step.drafts, judged, lists, row, tile, bounds, key, TILES, WIDE)
        residual = best >= 0
        from_left = residual
    elif from_left:
        masses = tl.load(leftovers.left + at, mask=tile < rows.num_tiles, other=0.0)
        total = tl.sum(masses)
        # Of an empty or broken law is drawn what the row draws for itself.
        residual = (total > 0) & (total < float("inf"))
        from_left = residual
        without = tl.where(residual, without, -1)
    if from_left == 0:
        if filtered:
            masses = tl.load(leftovers.kept + at, mask=tile < rows.num_tiles, other=0.0)
        else:
            masses, shift = _tiles_of(rows, tiles, judged, row, tile, row_max, temperature, without, WIDE)
            if tl.max(masses) <= 0:
                residual = residual & False
                without = without * 0 - 1
                masses, shift = _tiles_of(rows, tiles, judged, row, tile, row_max, temperature, without, WIDE)
    if best < 0:
        stream = tl.where(residual, _RESIDUAL_TILE, _BONUS_TILE)
        best, _payload = race(tile, _log_masses(masses, shift), tile, key, stream, WIDE)
    ids = best * TILE + tl.arange(0, TILE)
    z = _own_z(rows, judged, row, ids, row_max, temperature, without, WIDE)
    if from_left:
        _p, left = weights_of(rows, step.drafts, judged, row, ids, ids >= 0)
        z = tl.where(left > 0, tl.log(tl.where(left > 0, left, 1.0)).to(z.dtype), MINUS_INF)
    token, _payload = race(ids, z, ids, key, tl.where(residual, _RESIDUAL_TOKEN, _BONUS_TOKEN), WIDE)
    token = tl.minimum(token, rows.vocab_size - 1)
    draft = tl.load(judged.drafts + first + column, mask=column < n, other=-1)
    put_verdict(verified, verdicts, request, column, DONE, draft, accepted, token, K)
    emitted = tl.where(column < accepted, draft, token)
    tl.store(verified.emitted + first + column, emitted, mask=column <= accepted)


@triton.jit
def _longest(rows, states, judged, leftovers, verdicts, state, request, first, n, tile, WIDE: tl.constexpr):
    """Of `block`: how many drafts are accepted, by the masses that are left."""
    lowest = tl.load(verdicts.lowest + request)
    accepted = n
    below = accepted != n
    while (accepted > lowest) & (below == 0):
        accepted -= 1
        row = first + accepted
        left = tl.sum(tl.load(leftovers.left + row * leftovers.stride + tile, mask=tile < rows.num_tiles, other=0.0))
        prefix = tl.load(judged.prefixes + row)
        rest = left + 1 - prefix
        h = tl.where(rest == 0, 1.0, left / rest)
        coin = coins(step_key(states, state, first, accepted - 1), WIDE)
        # Rows whose coin is not below P_i, of which h_i is a part, have not been weighed.
        below = (accepted == lowest) | ((coin < prefix) & (coin < h))
    return accepted


@triton.jit
def _log_masses(masses, shift):
    """Logs of tile masses; -inf for an empty one."""
    return tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + shift, MINUS_INF)


@triton.jit
def _tiles_of(rows, tiles, judged, row, tile, row_max, temperature, without, WIDE: tl.constexpr):
    """Sums of the tiles of a row without filters, and z of their maxima; without: a token to leave out, or -1."""
    at = row * tiles.stride + tile
    maxima = tl.load(tiles.maxima + at, mask=tile < rows.num_tiles, other=MINUS_INF)
    sums = tl.load(tiles.sums + at, mask=tile < rows.num_tiles, other=0.0)
    if without >= 0:
        ids = ids_of(without // TILE + tl.arange(0, 1))
        x = tl.where(ids == without, MINUS_INF, load_allowed(rows, judged, row, ids, ids >= 0))
        its_maximum = tl.max(x, 1)
        its_sum = tl.max(tile_sums(x, its_maximum, scale_of(temperature)))
        maxima = tl.where(tile == without // TILE, tl.max(its_maximum), maxima)
        sums = tl.where(tile == without // TILE, its_sum, sums)
    return sums, z_of(tl.where(sums > 0, maxima, row_max), row_max, temperature, WIDE)


@triton.jit
def _own_z(rows, judged, row, ids, row_max, temperature, without, WIDE: tl.constexpr):
    """z of the tokens that a row keeps, -inf for others and for `without`."""
    x = load_allowed(rows, judged, row, ids, ids >= 0)
    cut_value, cut_id = tl.load(judged.cut_values + row), tl.load(judged.cut_ids + row)
    kept = ((x > cut_value) | ((x == cut_value) & (ids <= cut_id))) & (x > MINUS_INF) & (ids != without)
    return tl.where(kept, z_of(x, row_max, temperature, WIDE), MINUS_INF)
