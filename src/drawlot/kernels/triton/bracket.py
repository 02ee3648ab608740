"""Where the cut of a whole row lies: between two values, closer with every read."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import sum_four
from drawlot.kernels.triton.states import filters_of, temperature_of
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF_ORDER, TILE, order_of, value_of

PIVOTS = tl.constexpr(8)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def put_first_bracket(rows, states, whole, state, row, lowest, highest, num_tiles, log_mass):
    """Stores low, high, what is to be reached at the cut, and what is above high, before any read.

    Tokens that top_k keeps are counted, those of other rows weighed: low is reached by as much as the cut must be, as
    far as can be known; `narrow` sees whether it is so.

    lowest, highest: orders of the row's tile maxima; num_tiles: that have one; log_mass: of the row at T.
    """
    top_k, top_p, min_p = filters_of(states, state)
    temperature = temperature_of(states, state)
    row_max = value_of(highest)
    if top_k > 0:
        bottom = value_of(lowest)
        low = tl.where(num_tiles >= top_k, bottom, bottom - (row_max - bottom))
        target = top_k.to(tl.float64)
    elif min_p > 0:
        low = value_of(min_p_line(highest, temperature, min_p))
        # A share of what reaches the line, which the first read will tell.
        target = tl.full([], -1.0, tl.float64)
    else:
        # Even if all tokens were just below it, they would not weigh what top_p leaves out.
        z = tl.log(1 - top_p) + log_mass - tl.log(tl.zeros([], tl.float64) + rows.num_tiles * TILE)
        low = (row_max + temperature * z).to(tl.float32)
        target = top_p * tl.exp(log_mass.to(tl.float64))
    # So close that their difference is no infinity.
    tl.store(whole.low + row, tl.maximum(low, row_max - 3e38))
    tl.store(whole.high + row, value_of(highest + 1))
    tl.store(whole.target + row, target)
    tl.store(whole.above + row, 0.0)
    tl.store(whole.listed + row, 0)
    tl.store(whole.most_listed + row, LAST_ID)


@triton.jit
def min_p_line(highest, temperature, min_p):
    """The lowest order (int32) whose z reaches log(min_p)."""
    row_max = value_of(highest).to(tl.float64)
    log_min_p = tl.log(min_p)
    # Rounding decides only near the value that the real line has.
    near = order_of((row_max + temperature * log_min_p).to(tl.float32)).to(tl.int64) + tl.arange(0, 8) - 4
    near = tl.minimum(tl.maximum(near, MINUS_INF_ORDER), highest.to(tl.int64))
    reach = (value_of(near).to(tl.float64) - row_max) / temperature >= log_min_p
    low = tl.max(tl.where(reach, MINUS_INF_ORDER, near))
    high = tl.min(tl.where(reach, near, highest.to(tl.int64)))
    while high - low > 1:
        middle = (low + high) // 2
        reaches = (value_of(middle).to(tl.float64) - row_max) / temperature >= log_min_p
        high = tl.where(reaches, middle, high)
        low = tl.where(reaches, low, middle)
    return high.to(tl.int32)


@triton.jit
def pivot(low, high, i):
    """Pivot i of 8 from low on, evenly to high."""
    return low + (high - low) * (i * 0.125)


@triton.jit
def put_reaches(whole, row, part, num_parts, x, weight):
    """Stores how much of a block's weight [M] reaches each pivot."""
    low, high = tl.load(whole.low + row), tl.load(whole.high + row)
    a, b, c, d = sum_four(
        tl.where(x >= low, weight, 0.0),
        tl.where(x >= pivot(low, high, 1), weight, 0.0),
        tl.where(x >= pivot(low, high, 2), weight, 0.0),
        tl.where(x >= pivot(low, high, 3), weight, 0.0),
    )
    e, f, g, h = sum_four(
        tl.where(x >= pivot(low, high, 4), weight, 0.0),
        tl.where(x >= pivot(low, high, 5), weight, 0.0),
        tl.where(x >= pivot(low, high, 6), weight, 0.0),
        tl.where(x >= pivot(low, high, 7), weight, 0.0),
    )
    at = whole.reaches + (row * num_parts + part) * PIVOTS
    tl.store(at, a)
    tl.store(at + 1, b)
    tl.store(at + 2, c)
    tl.store(at + 3, d)
    tl.store(at + 4, e)
    tl.store(at + 5, f)
    tl.store(at + 6, g)
    tl.store(at + 7, h)


@triton.jit
def narrow(states, whole, state, row, num_parts, row_max, scale, PARTS: tl.constexpr):
    """Puts the bracket between the two pivots where the target is reached; target NaN: it was not, from low on."""
    low, high = tl.load(whole.low + row), tl.load(whole.high + row)
    part, i = tl.arange(0, PARTS)[:, None], tl.arange(0, PIVOTS)[None, :]
    at = whole.reaches + (row * num_parts + part) * PIVOTS + i
    reach = tl.sum(tl.load(at, mask=part < num_parts, other=0.0).to(tl.float64), 0)
    pivots = pivot(low, high, tl.arange(0, PIVOTS))
    top_k, top_p, min_p = filters_of(states, state)
    target = tl.load(whole.target + row)
    all_of_it = tl.max(reach)
    if target < 0:
        target = top_p * all_of_it
    enough = reach >= target
    new_low = tl.max(tl.where(enough, pivots, low))
    tl.store(whole.low + row, new_low)
    tl.store(whole.high + row, tl.min(tl.where(enough, high, pivots)))
    above = tl.maximum(tl.load(whole.above + row), tl.max(tl.where(enough, 0.0, reach)))
    tl.store(whole.above + row, above)
    # Of what top_k keeps all is listed; else what is between, of which each weighs at least as much as one at `low`.
    most = tl.min(tl.where(enough, reach, all_of_it))
    if top_k <= 0:
        most = (most - above) / tl.exp((new_low - row_max) * scale).to(tl.float64)
    tl.store(whole.most_listed + row, tl.minimum(most, 2e9).to(tl.int32))
    tl.store(whole.target + row, tl.where(all_of_it >= target, target, float("nan")))
