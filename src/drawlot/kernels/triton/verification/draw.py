"""The token after the accepted drafts: from what is left of a row, or from the row's own law."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.listing import load_list
from drawlot.kernels.triton.race import TARGET_TILE, TARGET_TOKEN, race, race_of_range, z_of
from drawlot.kernels.triton.reduce import sum_by_tile
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.scan import tile_sums
from drawlot.kernels.triton.states import scale_of, temperature_of
from drawlot.kernels.triton.summary import LISTED, WHOLE
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of
from drawlot.kernels.triton.verification.lazy_race import race_of_leftovers
from drawlot.kernels.triton.verification.leftover import weights_of
from drawlot.kernels.triton.verification.requests import is_filtered, looks_at_q, step_key

_RESIDUAL_TILE, _RESIDUAL_TOKEN = (
    tl.constexpr(int(rng.Stream.RESIDUAL_TILE)),
    tl.constexpr(int(rng.Stream.RESIDUAL_TOKEN)),
)
_BONUS_TILE, _BONUS_TOKEN = tl.constexpr(int(rng.Stream.BONUS_TILE)), tl.constexpr(int(rng.Stream.BONUS_TOKEN))


@triton.jit
def draw_after(
    rows,
    step,
    tiles,
    lists,
    whole,
    methods,
    judged,
    leftovers,
    summary,
    state,
    first,
    accepted,
    n,
    alone,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
):
    """The token of row `accepted` of a request that samples and is not `coupled`.

    n: drafts that may be accepted; alone: a request without drafts draws as ordinary sampling does.
    """
    row = first + accepted
    key = step_key(step.states, state, first, accepted)
    residual = (accepted < n) & looks_at_q(step.states, methods, state)
    path = tl.full([], -1, tl.int32)
    if is_filtered(step.states, state):
        path = tl.load(summary.path + row)
    if path == LISTED:
        token = _draw_from_list(rows, step, lists, judged, state, row, key, residual, WIDE, ROOM)
    else:
        token = _draw_from_tiles(
            rows, step, tiles, lists, whole, judged, leftovers, state, row, key, residual, alone, path, WIDE, T, TILES
        )
    return tl.minimum(token, rows.vocab_size - 1)


@triton.jit
def _draw_from_list(rows, step, lists, judged, state, row, key, residual, WIDE: tl.constexpr, ROOM: tl.constexpr):
    """Of a row whose finish has listed all that it keeps."""
    value, ids = load_list(lists, row, tl.arange(0, ROOM))
    p, left = weights_of(rows, step.drafts, judged, row, ids, ids < LAST_ID)
    total = tl.sum(left)
    # Of an empty or broken law is drawn what the row draws for itself.
    residual = residual & (total > 0) & (total < float("inf"))
    weight = tl.where(residual, left, p)
    # An own law's z: the logarithm of a weight that vanishes says less.
    z = z_of(value, tl.load(judged.maxima + row), temperature_of(step.states, state), WIDE)
    z = tl.where(residual, tl.log(tl.where(left > 0, left, 1.0)).to(z.dtype), z)
    kept, tile = weight > 0, ids // TILE
    # The last token of a tile has the tile's mass and wins over those before it, whose noise is the same.
    log_mass = tl.log(sum_by_tile(tl.where(kept, weight, 0.0), tile)).to(z.dtype)
    stream = tl.where(residual, _RESIDUAL_TILE, _BONUS_TILE)
    best, _payload = race(tile, tl.where(kept, log_mass, MINUS_INF), tile, key, stream, WIDE)
    inside = tl.where(kept & (tile == best), z, MINUS_INF)
    token, _payload = race(ids, inside, ids, key, tl.where(residual, _RESIDUAL_TOKEN, _BONUS_TOKEN), WIDE)
    return token


@triton.jit
def _draw_from_tiles(
    rows,
    step,
    tiles,
    lists,
    whole,
    judged,
    leftovers,
    state,
    row,
    key,
    residual,
    alone,
    path,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
):
    tile = tl.arange(0, T)
    temperature, row_max = temperature_of(step.states, state), tl.load(judged.maxima + row)
    is_point = tl.load(judged.lines + row) < 0
    # A point mass leaves all tiles as they are but the draft's.
    without = tl.where(residual & is_point, tl.load(judged.drafts + row), -1)
    log_masses = _tiles_of(rows, tiles, whole, judged, row, tile, row_max, temperature, without, path, WIDE, T)
    if (without >= 0) & (tl.max(log_masses) == MINUS_INF):
        # Nothing but the draft: then the row's own law.
        residual, without = residual & False, without * 0 - 1
        log_masses = _tiles_of(rows, tiles, whole, judged, row, tile, row_max, temperature, without, path, WIDE, T)
    from_left = residual & (is_point == 0)
    best = tl.full([], -1, tl.int32)
    left = tl.zeros([TILE], tl.float32)
    if from_left:
        share = tl.log(tl.load(judged.prefixes + row).to(tl.float32) / tl.load(judged.masses + row))
        bounds = log_masses + share
        best, left = race_of_leftovers(
            rows, step.drafts, judged, lists, leftovers.noises, row, bounds, key, T, TILES, WIDE
        )
        from_left = best >= 0
        residual = from_left
    if best < 0:
        stream = tl.where(residual, _RESIDUAL_TILE, tl.where(alone, TARGET_TILE, _BONUS_TILE))
        best = race_of_range(0, log_masses, key, stream, T, WIDE)
    if from_left:
        z = tl.where(left > 0, tl.log(tl.where(left > 0, left, 1.0)), MINUS_INF).to(log_masses.dtype)
    else:
        x = _kept(rows, judged, row, best * TILE + tl.arange(0, TILE), without)
        z = tl.where(x > MINUS_INF, z_of(x, row_max, temperature, WIDE), MINUS_INF)
    stream = tl.where(residual, _RESIDUAL_TOKEN, tl.where(alone, TARGET_TOKEN, _BONUS_TOKEN))
    return race_of_range(best * TILE, z, key, stream, TILE, WIDE)


@triton.jit
def _tiles_of(
    rows,
    tiles,
    whole,
    judged,
    row,
    tile,
    row_max,
    temperature,
    without,
    path,
    WIDE: tl.constexpr,
    T: tl.constexpr,
):
    """Logs of the masses of a row's tiles, -inf for an empty one; without: a token to leave out, or -1."""
    exists = tile < rows.num_tiles
    maxima = tl.load(tiles.maxima + row * tiles.stride + tile, mask=exists, other=MINUS_INF)
    if path == WHOLE:
        sums = tl.load(whole.kept_sums + row * T + tile, mask=exists, other=0.0)
    else:
        sums = tl.load(tiles.sums + row * tiles.stride + tile, mask=exists, other=0.0)
    if without >= 0:
        ids = ids_of(without // TILE + tl.arange(0, 1))
        x = _kept(rows, judged, row, ids, without)
        its_maximum = tl.max(x, 1)
        its_sum = tl.max(tile_sums(x, its_maximum, scale_of(temperature)))
        maxima = tl.where(tile == without // TILE, tl.max(its_maximum), maxima)
        sums = tl.where(tile == without // TILE, its_sum, sums)
    shift = z_of(tl.where(sums > 0, maxima, row_max), row_max, temperature, WIDE)
    return tl.where(sums > 0, tl.log(tl.where(sums > 0, sums, 1.0)) + shift, MINUS_INF)


@triton.jit
def _kept(rows, judged, row, ids, without):
    """Values of the tokens that a row keeps, -inf for others and for `without`."""
    x = load_allowed(rows, tl.load(judged.refused + row), row, ids, ids >= 0)
    cut_value, cut_id = tl.load(judged.cut_values + row), tl.load(judged.cut_ids + row)
    kept = ((x > cut_value) | ((x == cut_value) & (ids <= cut_id))) & (ids != without)
    return tl.where(kept, x, MINUS_INF)
