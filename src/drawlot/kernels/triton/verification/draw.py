"""The token that a row draws: of what q leaves of it, or of its own law."""

import triton
import triton.language as tl

from drawlot.kernels.triton.from_list import noises_of_list, race_in_list
from drawlot.kernels.triton.lazy_race import race_lazily
from drawlot.kernels.triton.listing import load_keys, value_and_token
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.race import log_tile_masses, race_of_range, z_of
from drawlot.kernels.triton.reduce import first_largest
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import LISTED
from drawlot.kernels.triton.tile_summary import tile_sums
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of
from drawlot.kernels.triton.verification.leftover import is_kept, leftover_of, load_draft_logits
from drawlot.kernels.triton.verification.requests import tile_stream, token_stream


@triton.jit
def draw(
    rows,
    drafts,
    listed,
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
    T: tl.constexpr,
    TILES: tl.constexpr,
):
    """Of a row, P being 1.

    listed: of rows whose path is LISTED, as in `no_list`; None: there are none; maxima, sums, noise: of the tiles [T]
    of others. The rest as for `draw_from_list` and `draw_from_tiles`.
    """
    if listed is not None and path == LISTED:
        token = draw_from_list(drafts, listed, law, temperature, key, residual, alone, WIDE)
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
def load_listed(drafts, lists, row, line, key, residual, WIDE: tl.constexpr, ROOM: tl.constexpr):
    """The list of a row whose line of q is given, as in `no_list`; key, residual: as for `draw_from_list`."""
    x, ids = value_and_token(load_keys(lists, row, tl.arange(0, ROOM)))
    alone = row < 0
    noises = noises_of_list(ids, key, tile_stream(residual, alone), token_stream(residual, alone), WIDE)
    return x, ids, load_draft_logits(drafts, (line,), ids, ids < LAST_ID), noises[0], noises[1]


@triton.jit
def draw_from_list(drafts, listed, law, temperature, key, residual, alone, WIDE: tl.constexpr):
    """Of a row of which all is listed that it keeps.

    listed: as in `no_list`; law: as for `leftover_of`; key: as for `race_of_range`; residual: of what q leaves;
    alone: as ordinary sampling draws, by its streams and to the bit.
    """
    x, ids, draft_logits, tile_noise, token_noise = listed
    left = leftover_of(drafts, law, x, draft_logits, ids, -1)
    kept, z = is_kept(x, ids, law[4], law[5]), z_of(x, law[6], temperature, WIDE)
    weight = tl.where(kept, tl.exp(z), 0.0)
    if residual:
        total = tl.sum(left)
        if (total > 0) & (total < float("inf")) & ((law[0] < 0) | (law[2] == law[2])):
            kept = left > 0
            weight = left.to(z.dtype)
            z = tl.log(tl.where(kept, left, 1.0)).to(z.dtype)
        else:
            # Of an empty or broken law is drawn what the row draws for itself.
            never = residual & False
            noises = noises_of_list(ids, key, tile_stream(never, alone), token_stream(never, alone), WIDE)
            tile_noise, token_noise = noises
    return race_in_list(weight, z, kept, ids, (tile_noise, token_noise))


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
    left = leftover_of(drafts, law, x, load_draft_logits(drafts, law, ids, mask[:, None]), ids, -1)
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
    left = leftover_of(drafts, law, x, load_draft_logits(drafts, law, ids, ids >= 0), ids, -1)
    kept = is_kept(x, ids, cut_value, cut_id) & (ids != without)
    z = tl.where(kept, z_of(x, row_max, temperature, WIDE), MINUS_INF)
    log_left = tl.where(left > 0, tl.log(tl.where(left > 0, left, 1.0)), MINUS_INF).to(z.dtype)
    z = tl.where(from_q, log_left, z)
    token = race_of_range(tile * TILE, z, key, token_stream(residual, alone), TILE, WIDE)
    return tl.minimum(token, rows.vocab_size - 1)
