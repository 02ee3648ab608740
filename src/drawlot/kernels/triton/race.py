"""The draw: a race over tiles of 128 ids, then a race inside the winning tile."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.reduce import first_largest, sum_of_masses
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.values import TILE, load_values, order_of

TARGET_TILE = tl.constexpr(int(rng.Stream.TARGET_TILE))
TARGET_TOKEN = tl.constexpr(int(rng.Stream.TARGET_TOKEN))
_NOISES, _MORE_NOISES = tl.constexpr(1024), tl.constexpr(256)
"""Of tiles: so many are made at once, and then so many at a time"""


@triton.jit
def race_of_range(first, z, key, stream, N: tl.constexpr, WIDE: tl.constexpr):
    """The id (int32) of first .. first + N - 1 with the largest z + noise, the lower one among equals.

    first: a multiple of 4; z: float32 or, if WIDE, float64; -inf where an id may not win; key: what `states.noise_key`
    returns.
    """
    ids = first + tl.arange(0, N)
    noise = gumbel_of_range(first, N, key[0], key[1], stream, key[2], key[3], WIDE)
    winner, _ = first_largest(z + noise, ids, ids)
    return winner


@triton.jit
def z_of(x, row_max, temperature, WIDE: tl.constexpr):
    """(x - row_max) / T of float32 values, in float32; in float64 if WIDE."""
    if WIDE:
        z = (x.to(tl.float64) - row_max) / temperature
    else:
        # The difference first: scaled values would tie where logits do not.
        z = (x - row_max) * scale_of(temperature)
    return z


@triton.jit
def log_tile_masses(maxima, sums, row_max, temperature, WIDE: tl.constexpr):
    """Logarithms of the masses of tiles relative to row_max, -inf for one without mass; and what z of the maxima is."""
    has_mass = sums > 0
    shift = z_of(tl.where(has_mass, maxima, row_max), row_max, temperature, WIDE)
    return tl.where(has_mass, tl.log(tl.where(has_mass, sums, 1.0)) + shift, float("-inf")), shift


@triton.jit
def store_noises(whole, row, num_tiles, key, T: tl.constexpr, WIDE: tl.constexpr):
    """Stores the noise of a row's tiles, and no more than some beyond, up to T; key: as for `race_of_range`."""
    FIRST: tl.constexpr = T if T < _NOISES else _NOISES
    at = whole.noises + row * T
    noise = gumbel_of_range(0, FIRST, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
    tl.store(at + tl.arange(0, FIRST), noise)
    if T > FIRST:
        first = num_tiles * 0 + FIRST
        while first < num_tiles:
            more = gumbel_of_range(first, _MORE_NOISES, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
            tl.store(at + first + tl.arange(0, _MORE_NOISES), more)
            first += _MORE_NOISES


@triton.jit
def race_of_tiles(maxima, sums, row_max, temperature, noise, WIDE: tl.constexpr):
    """The winning tile, the keys of all, and the row's mass (float32).

    maxima, sums: float32 [T], of kept tokens, the sums relative to the tile's maximum; 0 for a tile that keeps none;
    noise: of the tiles.
    """
    log_mass, shift = log_tile_masses(maxima, sums, row_max, temperature, WIDE)
    tile = tl.arange(0, log_mass.shape[0])
    best, _ = first_largest(log_mass + noise, tile, tile)
    return best, log_mass + noise, sum_of_masses(sums * tl.exp(shift.to(tl.float32)))


@triton.jit
def race_in_tile(rows, row, tile, cut_order, cut_id, row_max, temperature, key, WIDE: tl.constexpr):
    """The winner among the tokens of one tile that a cut keeps."""
    ids = ids_of_tile(tile)
    x = load_values(rows, row, ids, ids >= 0)
    return race_of_tile(tile, x, cut_order, cut_id, row_max, temperature, key, WIDE)


@triton.jit
def ids_of_tile(tile):
    """int32 [128]."""
    return tile * TILE + tl.arange(0, TILE)


@triton.jit
def race_of_tile(tile, x, cut_order, cut_id, row_max, temperature, key, WIDE: tl.constexpr):
    """As `race_in_tile`, of values [128]."""
    ids, order = ids_of_tile(tile), order_of(x)
    kept = (x > float("-inf")) & ((order > cut_order) | ((order == cut_order) & (ids <= cut_id)))
    z = tl.where(kept, z_of(x, row_max, temperature, WIDE), float("-inf"))
    return race_of_range(tile * TILE, z, key, TARGET_TOKEN, TILE, WIDE)
