"""A race among what a cut keeps of a whole row, of which only tiles are read that can win."""

import triton
import triton.language as tl

from drawlot.kernels.triton.lazy_race import race_lazily
from drawlot.kernels.triton.noise import gumbel, gumbel_of_range
from drawlot.kernels.triton.race import TARGET_TILE, log_tile_masses, z_of
from drawlot.kernels.triton.reduce import fixed_sum_of_masses
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.tile_summary import of_each, tile_maxima, tile_sums
from drawlot.kernels.triton.values import MINUS_INF, load_values, slices_of

_LOG_TILE = tl.constexpr(4.852030263919617)


@triton.jit
def tiles_of(rows, tiles, row, row_max, temperature, WIDE: tl.constexpr, T: tl.constexpr):
    """Maxima, sums and z of the maxima of a row's tiles, and the mass of all (int64), if it was summed at T."""
    maxima, sums = load_tiles(tiles, row, T)
    shift, mass = weighed_tiles(maxima, sums, row_max, temperature, WIDE)
    return maxima, sums, shift, mass


@triton.jit
def load_tiles(tiles, row, T: tl.constexpr):
    """Maxima and sums of a row's tiles [T]."""
    tile = tl.arange(0, T)
    at, exists = row * tiles.stride + tile, tile < tiles.num
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    return maxima, tl.load(tiles.sums + at, mask=exists, other=0.0)


@triton.jit
def weighed_tiles(maxima, sums, row_max, temperature, WIDE: tl.constexpr):
    """z of the maxima, and the mass of all, as for `tiles_of`."""
    shift = z_of(tl.where(sums > 0, maxima, row_max), row_max, temperature, WIDE)
    return shift, fixed_sum_of_masses(sums * tl.exp(shift.to(tl.float32)))


@triton.jit
def bounds_of(at_one, maxima, sums, shift, cut_value, temperature, key, WIDE: tl.constexpr, T: tl.constexpr):
    """What the keys of tiles [T] cannot exceed; at_one: the tiles were summed at T = 1."""
    log_sums = tl.where(sums > 0, tl.log(tl.where(sums > 0, sums, 1.0)), float("-inf")).to(shift.dtype)
    if at_one:
        # exp(z) is the power s = 1 / T of what was summed to S: all of it at most S, if s > 1, or 128^(1 - s) S^s.
        s = tl.minimum(scale_of(temperature), 1.0)
        log_sums = s * log_sums + (1 - s) * _LOG_TILE
    noise = gumbel_of_range(0, T, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
    return tl.where((maxima >= cut_value) & (sums > 0), log_sums + shift + noise, MINUS_INF)


@triton.jit
def race_of_cut(rows, row, bounds, law, key, TILES: tl.constexpr, WIDE: tl.constexpr, T: tl.constexpr):
    """What `race_lazily` returns for the tokens that a cut keeps.

    bounds: of `bounds_of`, for this cut or one that keeps more; law: value and id of the last kept token, maximum of
    the row, temperature; key: what `states.noise_key` returns.
    """
    keys_of: tl.constexpr = _wide_keys if WIDE else _keys
    return race_lazily(bounds, keys_of, rows, None, (row, law, key), T, TILES)


@triton.jit
def _keys(rows, _drafts, row, tile, mask):
    return _keys_of_kept(rows, row, tile, mask, False)


@triton.jit
def _wide_keys(rows, _drafts, row, tile, mask):
    return _keys_of_kept(rows, row, tile, mask, True)


@triton.jit
def _keys_of_kept(rows, row, tile, mask, WIDE: tl.constexpr):
    """Keys of tiles by what a cut keeps of them."""
    row, law, key = row
    cut_value, cut_id, row_max, temperature = law
    maxima, sums = kept_tiles(rows, row, tile, mask, cut_value, cut_id, scale_of(temperature))
    log_masses, _shift = log_tile_masses(maxima, sums, row_max, temperature, WIDE)
    return log_masses + gumbel(tile, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)


@triton.jit
def is_kept(x, ids, cut_value, cut_id):
    """Which tokens of these values are not after the last kept one."""
    return (x > cut_value) | ((x == cut_value) & (ids <= cut_id))


@triton.jit
def kept_tiles(rows, row, tile, mask, cut_value, cut_id, scale):
    """Maxima and sums of what a cut keeps of tiles [M], laid out as in the scan; the scan's where it keeps all."""
    ids = slices_of(tile)
    x = load_values(rows, row, ids, of_each(mask, ids))
    x = tl.where(is_kept(x, ids, cut_value, cut_id), x, MINUS_INF)
    maxima = tile_maxima(x)
    return maxima, tile_sums(x, maxima, scale)
