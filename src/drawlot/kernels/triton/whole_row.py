"""What a whole row makes of all that was read of it: its cut, and its token."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of
from drawlot.kernels.triton.cut_in_list import cut_in_list
from drawlot.kernels.triton.lazy_race import race_lazily
from drawlot.kernels.triton.noise import gumbel, gumbel_of_range
from drawlot.kernels.triton.race import TARGET_TILE, log_tile_masses, race_in_tile, z_of
from drawlot.kernels.triton.ranges import (
    MASS_ABOVE,
    MASS_REACHED,
    NUM_ABOVE,
    NUM_RANGES,
    NUM_SUMS,
    REACHED,
    SHARED_OUT,
    has_ranges,
    values_of_cut,
)
from drawlot.kernels.triton.reduce import fixed_sum_of_masses, of_fixed
from drawlot.kernels.triton.scan import of_each, tile_maxima, tile_sums
from drawlot.kernels.triton.slow_cut import mass_up_to, slow_cut
from drawlot.kernels.triton.states import filters_of, noise_key, scale_of, temperature_of
from drawlot.kernels.triton.summary import WHOLE, put, put_cut
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, load_values, order_of, slices_of, value_of

_TILES_OF_RACE = tl.constexpr(32)
_SLACK = tl.constexpr(1e-4)
"""More than what rounding adds to a key"""
_LOG_TILE = tl.constexpr(4.852030263919617)
_ROUNDING = tl.constexpr(2.0**-22)
"""Of a mass, at most"""


@triton.jit
def begin_whole_row(whole, row, slot):
    """Puts a row among those that are read again."""
    tl.store(whole.rows + slot, row)
    tl.store(whole.sums + row * NUM_SUMS + tl.arange(0, NUM_SUMS), tl.zeros([NUM_SUMS], tl.int64))
    tl.store(whole.ranges + row * NUM_RANGES + tl.arange(0, NUM_RANGES), tl.zeros([NUM_RANGES], tl.int64))
    tl.store(whole.listed + row, 0)


@triton.jit
def finish_whole_row(
    rows,
    states,
    tiles,
    lists,
    whole,
    drawn,
    summary,
    row,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Cuts a row and draws its token."""
    state = tl.load(states.index + row)
    filters, temperature = filters_of(states, state), temperature_of(states, state)
    top_k, top_p, min_p = filters
    low, high, line = tl.load(whole.low + row), tl.load(whole.high + row), tl.load(whole.line + row)
    known, listed = whole.sums + row * NUM_SUMS, tl.load(whole.listed + row)
    num_above, mass_above = tl.load(known + NUM_ABOVE), tl.load(known + MASS_ABOVE)
    row_max, scale = tl.load(summary.floats + row).to(tl.float32), scale_of(temperature)
    maxima, sums, shift, all_mass = _tiles(rows, tiles, row, row_max, temperature, WIDE, T)
    reach = num_above, mass_above, tl.load(known + SHARED_OUT)
    # Whether the cut is between low and high.
    holds = (num_above < top_k) & ((num_above + listed >= top_k) | (low <= line))
    if has_ranges(filters):
        reached = tl.load(known + REACHED)
        holds, mass_reached = reached >= 0, tl.where(top_k > 0, mass_above + tl.load(known + MASS_REACHED), reached)
        reach = reached, mass_reached, reach[2]
    elif top_k <= 0:
        holds = row >= 0
    is_cut, mass = holds & (listed <= ROOM), mass_above
    cut_order, cut_id = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    if is_cut:
        cut_order, cut_id, mass = cut_in_list(lists, whole, row, reach, filters, low, high, row_max, scale, ROOM)
    mass = of_fixed(mass)
    if is_cut == 0:
        above = tl.where(top_k > 0, num_above.to(tl.float64), of_fixed(mass_above))
        bracket = holds, low, high, above, of_fixed(tl.load(known + SHARED_OUT))
        order64, cut_id = slow_cut(rows, row, bracket, filters, temperature, row_max, TILES)
        mass = mass_up_to(rows, row, order64, cut_id, row_max, scale, TILES)
        cut_order = order64.to(tl.int32)
    cut_value = value_of(cut_order)
    put_cut(summary, row, cut_value, cut_id)
    draws = row >= 0
    if tiles.undrawn is not None:
        draws = tl.load(tiles.undrawn + row) == 0
    token = tl.full([], -1, tl.int32)
    if draws:
        law = cut_value, cut_id, row_max, temperature
        token = _draw(rows, states, row, state, top_k > 0, maxima, sums, shift, law, WIDE, T)
    # Where nothing is lost but what rounding hides, the law is that of a row without filters, to the bit.
    all_mass = of_fixed(all_mass)
    mass = tl.where((top_k <= 0) & (tl.abs(mass - all_mass) <= _ROUNDING * all_mass), all_mass, mass)
    put(drawn, summary, row, token, 0, WHOLE, row_max, tl.log(mass.to(tl.float32)))


@triton.jit
def _tiles(rows, tiles, row, row_max, temperature, WIDE: tl.constexpr, T: tl.constexpr):
    """Maxima, sums and z of the maxima of a row's tiles, and the mass of all (int64), if it was summed at T."""
    tile = tl.arange(0, T)
    at, exists = row * tiles.stride + tile, tile < rows.num_tiles
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
    shift = z_of(tl.where(sums > 0, maxima, row_max), row_max, temperature, WIDE)
    return maxima, sums, shift, fixed_sum_of_masses(sums * tl.exp(shift.to(tl.float32)))


@triton.jit
def _draw(rows, states, row, state, at_one, maxima, sums, shift, law, WIDE: tl.constexpr, T: tl.constexpr):
    """The token that wins among those that a cut keeps; at_one: the tiles were summed at T = 1."""
    cut_value, cut_id, row_max, temperature = law
    key = noise_key(states, state, row)
    bounds = _bounds(at_one, maxima, sums, shift, cut_value, temperature, key, WIDE, T)
    best, _ = race_lazily(bounds, _wide_keys if WIDE else _keys, rows, None, (row, law, key), T, _TILES_OF_RACE)
    cut_order = order_of(cut_value)
    return race_in_tile(rows, row, best, cut_order, cut_id, row_max, temperature, key, WIDE)


@triton.jit
def _bounds(at_one, maxima, sums, shift, cut_value, temperature, key, WIDE: tl.constexpr, T: tl.constexpr):
    """Of the keys of tiles [T], for a lazy race."""
    log_sums = tl.where(sums > 0, tl.log(tl.where(sums > 0, sums, 1.0)), float("-inf")).to(shift.dtype)
    if at_one:
        # exp(z) is the power s = 1 / T of what was summed to S: all of it at most S, if s > 1, or 128^(1 - s) S^s.
        s = tl.minimum(scale_of(temperature), 1.0)
        log_sums = s * log_sums + (1 - s) * _LOG_TILE
    noise = gumbel_of_range(0, T, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
    return tl.where((maxima >= cut_value) & (sums > 0), log_sums + shift + noise, MINUS_INF)


@triton.jit
def draw_before_cut(rows, states, tiles, whole, drawn, summary, row, WIDE: tl.constexpr, T: tl.constexpr):
    """Whether every cut that a row may have draws the same token; if so, it is stored.

    Raced is as if all were kept that may be. Less than that makes the keys of tiles no larger: so who wins has won if
    it is surely kept, and if its tile would win without what is not sure.
    """
    state = tl.load(states.index + row)
    filters, temperature = filters_of(states, state), temperature_of(states, state)
    low, high = tl.load(whole.low + row), tl.load(whole.high + row)
    dropped_below, kept_from, is_known = values_of_cut(whole, row, filters, low, high)
    is_sure = row < 0
    if is_known:
        row_max, scale = tl.load(summary.floats + row).to(tl.float32), scale_of(temperature)
        maxima, sums, shift, _ = _tiles(rows, tiles, row, row_max, temperature, WIDE, T)
        key, law = noise_key(states, state, row), (dropped_below, tl.full([], LAST_ID, tl.int32), row_max, temperature)
        bounds = _bounds(filters[0] > 0, maxima, sums, shift, dropped_below, temperature, key, WIDE, T)
        tile, best, least = tl.arange(0, T), tl.full([], -1, tl.int32), tl.zeros([], bounds.dtype)
        races = row >= 0
        while races:
            others = tl.where(tile == best, MINUS_INF, bounds)
            winner, its_key = race_lazily(
                others, _wide_keys if WIDE else _keys, rows, None, (row, law, key), T, _TILES_OF_RACE
            )
            races = best < 0
            if races:
                best = winner
                order = order_of(dropped_below)
                token = race_in_tile(rows, row, best, order, LAST_ID, row_max, temperature, key, WIDE)
                ids = best * TILE + tl.arange(0, TILE)
                x = load_values(rows, row, ids, ids >= 0)
                mass = tl.where(x >= dropped_below, mass_of(x, row_max, scale), 0.0)
                is_unsure = (x >= dropped_below) & (x < kept_from)
                is_sure = tl.max(tl.where(ids == token, x, MINUS_INF)) >= kept_from
                tl.store(drawn.token_ids + row, token)
                # The others alone, if something may be missing.
                races = is_sure & (tl.max(is_unsure.to(tl.int32)) != 0)
                least = its_key + tl.log(tl.sum(tl.where(x >= kept_from, mass, 0.0)) / tl.sum(mass)) - _SLACK
            else:
                is_sure = least > its_key
        tl.store(drawn.status + row, 0)
    return is_sure


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
def kept_tiles(rows, row, tile, mask, cut_value, cut_id, scale):
    """Maxima of tiles [M], and sums of what a cut keeps of them, laid out as in the scan."""
    ids = slices_of(tile)
    x = load_values(rows, row, ids, of_each(mask, ids))
    kept = (x > cut_value) | ((x == cut_value) & (ids <= cut_id))
    maxima = tile_maxima(x)
    return maxima, tile_sums(tl.where(kept, x, MINUS_INF), maxima, scale)
