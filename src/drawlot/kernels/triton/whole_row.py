"""What a whole row makes of the tokens that its cut may be: the cut, and the token that it draws."""

import triton
import triton.language as tl

from drawlot.kernels.triton.cut_in_list import cut_in_list
from drawlot.kernels.triton.cut_race import bounds_of, race_of_cut, tiles_of
from drawlot.kernels.triton.race import race_in_tile
from drawlot.kernels.triton.ranges import (
    MASS_ABOVE,
    MASS_REACHED,
    NUM_ABOVE,
    NUM_RANGES,
    NUM_SUMS,
    REACHED,
    SHARED_OUT,
    has_ranges,
)
from drawlot.kernels.triton.reduce import of_fixed
from drawlot.kernels.triton.slow_cut import mass_up_to, slow_cut
from drawlot.kernels.triton.states import filters_of, noise_key, scale_of, temperature_of
from drawlot.kernels.triton.summary import WHOLE, put, put_cut
from drawlot.kernels.triton.values import order_of, value_of

_TILES_OF_RACE = tl.constexpr(32)
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
    maxima, sums, shift, all_mass = tiles_of(rows, tiles, row, row_max, temperature, WIDE, T)
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
def _draw(rows, states, row, state, at_one, maxima, sums, shift, law, WIDE: tl.constexpr, T: tl.constexpr):
    """The token that wins among those that a cut keeps; at_one: the tiles were summed at T = 1."""
    cut_value, cut_id, row_max, temperature = law
    key = noise_key(states, state, row)
    bounds = bounds_of(at_one, maxima, sums, shift, cut_value, temperature, key, WIDE, T)
    best = race_of_cut(rows, row, bounds, law, key, _TILES_OF_RACE, WIDE, T)
    cut_order = order_of(cut_value)
    return race_in_tile(rows, row, best, cut_order, cut_id, row_max, temperature, key, WIDE)
