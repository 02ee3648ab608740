"""The token that a row draws: of what q leaves of it, or of its own law."""

import triton
import triton.language as tl

from drawlot.kernels.triton.lazy_race import race_lazily
from drawlot.kernels.triton.listing import load_list
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.race import log_tile_masses, race, race_of_range, z_of
from drawlot.kernels.triton.reduce import first_largest, sum_by_tile
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.scan import tile_sums
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import LISTED
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of
from drawlot.kernels.triton.verification.leftover import is_kept, load_draft_logits, weights_of
from drawlot.kernels.triton.verification.requests import tile_stream, token_stream


@triton.jit
def draw(
    rows,
    drafts,
    lists,
    refused,
    law,
    path,
    temperature,
    row,
    key,
    maxima,
    sums,
    noise,
    noises,
    residual,
    alone,
    WIDE: tl.constexpr,
    ROOM: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
):
    """Of a row, P being 1. path: of its finish, else -1; maxima, sums, noise: of its tiles [T], if it has no list.

    The rest as for `draw_from_list` and `draw_from_tiles`.
    """
    if path == LISTED:
        token = draw_from_list(drafts, lists, law, temperature, row, key, residual, alone, WIDE, ROOM)
    else:
        log_masses, _z = log_tile_masses(maxima, sums, law[6], temperature, WIDE)
        without = tl.where(residual & (law[0] < 0), law[1], -1)
        if without >= 0:
            left = _masses_without(rows, refused, law, temperature, row, without, tl.arange(0, T), log_masses, WIDE)
            if tl.max(left) == MINUS_INF:
                # Nothing but the draft: then the row's own law.
                residual, without = residual & False, without * 0 - 1
                stream = tile_stream(residual, alone)
                noise = gumbel_of_range(0, T, key[0], key[1], stream, key[2], key[3], WIDE)
            else:
                log_masses = left
        token = draw_from_tiles(
            rows,
            drafts,
            refused,
            law,
            temperature,
            row,
            key,
            log_masses,
            noise,
            noises,
            without,
            residual,
            alone,
            WIDE,
            T,
            TILES,
        )
    return token


@triton.jit
def draw_from_list(drafts, lists, law, temperature, row, key, residual, alone, WIDE: tl.constexpr, ROOM: tl.constexpr):
    """Of a row whose finish has listed all that it keeps.

    law: as for `weights_of`; key: as for `race`; residual: of what q leaves; alone: of a request without drafts.
    """
    x, ids = load_list(lists, row, tl.arange(0, ROOM))
    p, left = weights_of(drafts, law, x, load_draft_logits(drafts, law, ids, ids < LAST_ID), ids, -1)
    total = tl.sum(left)
    # Of an empty or broken law is drawn what the row draws for itself.
    residual = residual & (total > 0) & (total < float("inf")) & ((law[0] < 0) | (law[2] == law[2]))
    weight = tl.where(residual, left, p)
    # An own law's z: the logarithm of a weight that vanishes says less.
    z = z_of(x, law[6], temperature, WIDE)
    z = tl.where(residual, tl.log(tl.where(left > 0, left, 1.0)).to(z.dtype), z)
    kept, tile = weight > 0, ids // TILE
    # The last token of a tile has the tile's mass and wins over those before it, whose noise is the same.
    log_mass = tl.log(sum_by_tile(tl.where(kept, weight, 0.0), tile)).to(z.dtype)
    best, _payload = race(tile, tl.where(kept, log_mass, MINUS_INF), tile, key, tile_stream(residual, alone), WIDE)
    inside = tl.where(kept & (tile == best), z, MINUS_INF)
    token, _payload = race(ids, inside, ids, key, token_stream(residual, alone), WIDE)
    return token


@triton.jit
def draw_from_tiles(
    rows,
    drafts,
    refused,
    law,
    temperature,
    row,
    key,
    log_masses,
    noise,
    noises,
    without,
    residual,
    alone,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
):
    """Of a row by the masses of its tiles; arguments as for `draw_from_list`.

    log_masses, noise: [T]; noises: where the noise lies; without: a token to leave out, which the masses have not, or
    -1; TILES: read at a time.
    """
    line, _, q_shift, _, _, _, _, _, per_mass, prefix = law
    tile = tl.arange(0, T)
    best = tl.full([], -1, tl.int32)
    from_q = residual & (line >= 0)
    if from_q:
        bounds = log_masses + tl.log(prefix * per_mass) + noise
        best = race_lazily(bounds, _keys_of_leftovers, rows, drafts, (refused, law, noises, row), T, TILES)
        # A law of few tokens may be broken where the row keeps none.
        best = tl.where(q_shift == q_shift, best, -1)
        from_q = best >= 0
        residual = from_q
        if best < 0:
            # Nothing is left, or q is no law: then the row's own.
            noise = gumbel_of_range(0, T, key[0], key[1], tile_stream(residual, alone), key[2], key[3], WIDE)
    if best < 0:
        best, _payload = first_largest(log_masses + noise, tile, tile)
    return draw_from_tile(
        rows, drafts, refused, law, temperature, row, key, best, without, from_q, residual, alone, WIDE
    )


@triton.jit
def _masses_without(rows, refused, law, temperature, row, token, tile, log_masses, WIDE: tl.constexpr):
    """Logarithms of the tiles' masses if a token is left out: a point mass leaves all others as they are."""
    _, _, _, _, cut_value, cut_id, row_max, _, _, _ = law
    scale = scale_of(temperature)
    ids = ids_of(token // TILE + tl.arange(0, 1))
    x = load_allowed(rows, refused, row, ids, ids >= 0)
    x = tl.where(is_kept(x, ids, cut_value, cut_id) & (ids != token), x, MINUS_INF)
    maximum = tl.max(x, 1)
    mass = tl.max(tile_sums(x, maximum, scale))
    log_mass, _z = log_tile_masses(tl.max(maximum), mass, row_max, temperature, WIDE)
    return tl.where(tile == token // TILE, log_mass, log_masses)


@triton.jit
def _keys_of_leftovers(rows, drafts, row, tile, mask):
    """Keys of tiles by what q leaves of them."""
    refused, law, noises, row = row
    ids = ids_of(tile)
    x = load_allowed(rows, refused, row, ids, mask[:, None])
    _p, left = weights_of(drafts, law, x, load_draft_logits(drafts, law, ids, mask[:, None]), ids, -1)
    noise = tl.load(noises + tile)
    masses = tl.sum(left, 1)
    return tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + noise, MINUS_INF)


@triton.jit
def draw_from_tile(
    rows, drafts, refused, law, temperature, row, key, tile, without, from_q, residual, alone, WIDE: tl.constexpr
):
    """The race inside a tile, of what q leaves if from_q; arguments as for `draw_from_tiles`."""
    _, _, _, _, cut_value, cut_id, row_max, _, _, _ = law
    ids = tile * TILE + tl.arange(0, TILE)
    x = load_allowed(rows, refused, row, ids, ids >= 0)
    _p, left = weights_of(drafts, law, x, load_draft_logits(drafts, law, ids, ids >= 0), ids, -1)
    kept = is_kept(x, ids, cut_value, cut_id) & (ids != without)
    z = tl.where(kept, z_of(x, row_max, temperature, WIDE), MINUS_INF)
    log_left = tl.where(left > 0, tl.log(tl.where(left > 0, left, 1.0)), MINUS_INF).to(z.dtype)
    z = tl.where(from_q, log_left, z)
    token = race_of_range(tile * TILE, z, key, token_stream(residual, alone), TILE, WIDE)
    return tl.minimum(token, rows.vocab_size - 1)
