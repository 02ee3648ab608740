"""Ranges of the values in a bracket: what each weighs, where among them the cut is, and lists of the tokens of one."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import FIXED_POINT
from drawlot.kernels.triton.values import GROUP, order_of, value_of

NUM_RANGES = tl.constexpr(256)
NUM_SUMS = tl.constexpr(8)
NUM_ABOVE, MASS_ABOVE, SHARED_OUT, REACHED, MASS_REACHED = (tl.constexpr(i) for i in range(5))
"""Places in `Whole.sums`: number and mass above the bracket; the mass of which top_p takes its share; where ranges say
what the cut may be, number or mass above that, whichever counts, -1 if it is elsewhere; of a number, the mass of those
of them that are in the bracket"""


@triton.jit
def quarters_of(x):
    """Single tokens of each four: what threads load of a block they have of these, so that stores need no exchange."""
    even, odd = tl.split(x.reshape(x.shape[0] // 4, 2, 2))
    x0, x2 = tl.split(even)
    x1, x3 = tl.split(odd)
    return x0, x1, x2, x3


@triton.jit
def ranges_per_unit(low, high):
    """How many ranges of a bracket go into 1, float32."""
    # A number, though their distance be an infinity, or next to nothing.
    return 1 / tl.maximum(tl.minimum(high, 3e38) / NUM_RANGES - low / NUM_RANGES, 1e-30)


@triton.jit
def _place_of(x, low, per_unit):
    """How many ranges lie between `low` and a value: no less for a larger value, whatever is rounded; maybe +inf."""
    return (x - low) * per_unit


@triton.jit
def has_ranges(filters):
    """Whether ranges say where the cut is: not what top_p takes of what top_k keeps."""
    return (filters[0] > 0) != (filters[1] < 1)


@triton.jit
def add_to_ranges(whole, row, x, mass, is_above, filters, low, per_unit):
    """Adds values x [N] to their ranges, their masses or one each, if they are in the bracket."""
    place = _place_of(x, low, per_unit)
    at = tl.minimum(place, NUM_RANGES - 1.0).to(tl.int32)
    weight = tl.where(filters[0] > 0, 1, (mass * FIXED_POINT).to(tl.int64))
    tl.atomic_add(whole.ranges + row * NUM_RANGES + at, weight, mask=(place >= 0) & (is_above == 0), sem="relaxed")


@triton.jit
def range_of_cut(whole, row, filters):
    """The first and the last place where the cut may be (float32), and what is above them (int64), see `REACHED`."""
    top_k, top_p, _min_p = filters
    sums, by_count = whole.sums + row * NUM_SUMS, top_k > 0
    above = tl.load(sums + tl.where(by_count, NUM_ABOVE, MASS_ABOVE))
    need = tl.ceil(top_p * tl.load(sums + SHARED_OUT).to(tl.float64)).to(tl.int64)
    need = tl.where(by_count, top_k, need)
    # From the highest range down.
    place = NUM_RANGES - 1 - tl.arange(0, NUM_RANGES)
    up_to = above + tl.cumsum(tl.load(whole.ranges + row * NUM_RANGES + place), 0)
    total = tl.max(up_to)
    is_bottom = tl.load(whole.low + row) <= tl.load(whole.line + row)
    holds = (above < need) & (is_bottom | (need <= total))
    before = up_to < tl.minimum(need, total)
    start = (tl.min(tl.where(before, place, NUM_RANGES)) - 1).to(tl.float32)
    reached = tl.maximum(tl.max(tl.where(before, up_to, 0)), above)
    # The distance to a high value may be an infinity, which is a place of the highest range, too.
    last = tl.where(start == NUM_RANGES - 1.0, float("inf"), value_of(order_of(start + 1) - 1))
    return start, last, tl.where(holds, reached, -1)


@triton.jit
def mass_between(x, mass, low, high, per_unit, last):
    """Masses of the values of a bracket whose places are after `last`, else 0."""
    return tl.where((x < high) & (_place_of(x, low, per_unit) > last), mass, 0.0)


@triton.jit
def append_range(whole, row, x, first_id, low, high, per_unit, start, last, ROOM: tl.constexpr):
    """Appends tokens of a bracket, with places from `start` to `last`, to a row's long list, in any order.

    x [N]: values, by ascending id.
    """
    x0, x1, x2, x3 = quarters_of(x)
    kept0, kept1 = _is_in(x0, low, high, per_unit, start, last), _is_in(x1, low, high, per_unit, start, last)
    kept2, kept3 = _is_in(x2, low, high, per_unit, start, last), _is_in(x3, low, high, per_unit, start, last)
    at = _places(whole.listed + row, kept0 + kept1 + kept2 + kept3)
    ids = first_id + GROUP * tl.arange(0, x0.shape[0])
    _put(whole, row, at, x0, ids, kept0, ROOM)
    _put(whole, row, at + kept0, x1, ids + 1, kept1, ROOM)
    _put(whole, row, at + kept0 + kept1, x2, ids + 2, kept2, ROOM)
    _put(whole, row, at + kept0 + kept1 + kept2, x3, ids + 3, kept3, ROOM)


@triton.jit
def _is_in(x, low, high, per_unit, start, last):
    place = _place_of(x, low, per_unit)
    return ((place >= start) & (place <= last) & (x < high)).to(tl.int32)


@triton.jit
def _put(whole, row, at, x, ids, kept, ROOM: tl.constexpr):
    token = (x.to(tl.uint32, bitcast=True).to(tl.int64) << 32) | ids.to(tl.uint32).to(tl.int64)
    tl.store(whole.tokens + row * ROOM + at, token, mask=(kept != 0) & (at < ROOM))


@triton.jit
def _places(count, number):
    """Places for so many of each entry of a block [N], from where `count` ends, which goes up by all.

    What a thread of 8 warps has it places side by side, without a word to other warps.
    """
    THREADS: tl.constexpr = min(256, number.shape[0])
    own = number.reshape(number.shape[0] // THREADS, THREADS)
    of_thread = tl.sum(own, 0)
    # Without a mask the compiler makes one addition of those of a warp: each takes 20 ns where all add to one count.
    at = tl.atomic_add(count + tl.zeros_like(of_thread), of_thread, sem="relaxed")
    return (at[None, :] + tl.cumsum(own, 0) - own).reshape(number.shape[0])
