"""The exact cut, once all tokens that it may be are in one list, in any order: sums of integers have no order."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import span, sum_four, sum_two
from drawlot.kernels.triton.bracket import mass_of
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.values import LAST_ID, order_of, value_of

FIXED_POINT = tl.constexpr(2.0**42)
"""What masses are multiplied with to become integers: those of 2^20 tokens are added"""


@triton.jit
def cut_in_list(whole, row, reach, filters, temperature, low, row_max, ROOM: tl.constexpr):
    """Order and id (int32) of the last kept token, how many are kept (int32), and their mass (int64).

    reach: how many tokens reach the bracket's high, what these weigh, and what all from the min-p line on weigh.
    """
    top_k, top_p, _min_p = filters
    num_above, mass_above, mass_from_line = reach
    slot = tl.arange(0, ROOM)
    listed = tl.load(whole.listed + row)
    order = order_of(tl.load(whole.token_values + row * ROOM + slot, mask=slot < listed, other=float("-inf")))
    # Of an empty list all above is kept.
    cut_order, cut_id = order_of(low), tl.full([], LAST_ID, tl.int32)
    kept = slot < listed
    if (top_k > 0) & (listed > 0):
        need = tl.minimum(top_k - num_above, ROOM).to(tl.int32)
        cut_order, cut_id = _cut(whole, row, order, kept.to(tl.int32), kept, need, ROOM)
        kept = _is_kept(whole, row, order, kept, cut_order, cut_id, ROOM)
    mass = (mass_of(value_of(order), row_max, scale_of(temperature)).to(tl.float64) * FIXED_POINT).to(tl.int64)
    mass = tl.where(kept, mass, 0)
    if (top_p < 1) & (listed > 0):
        shared_out = tl.where(top_k > 0, tl.sum(mass), mass_from_line)
        need = tl.maximum(tl.ceil(top_p * shared_out.to(tl.float64)).to(tl.int64) - mass_above, 1)
        cut_order, cut_id = _cut(whole, row, order, mass, kept, need, ROOM)
        kept = _is_kept(whole, row, order, kept, cut_order, cut_id, ROOM)
    num_kept, mass_kept = sum_two(kept.to(tl.int32), tl.where(kept, mass, 0))
    return cut_order, cut_id, num_above + num_kept, mass_above + mass_kept


@triton.jit
def _ids(whole, row, ROOM: tl.constexpr):
    """Loaded where they are needed: registers are needed for other things."""
    return tl.load(whole.token_ids + row * ROOM + tl.arange(0, ROOM))


@triton.jit
def _is_kept(whole, row, order, kept, cut_order, cut_id, ROOM: tl.constexpr):
    return kept & ((order > cut_order) | ((order == cut_order) & (_ids(whole, row, ROOM) <= cut_id)))


@triton.jit
def _cut(whole, row, order, weight, exists, need, ROOM: tl.constexpr):
    """The token at which the running weight in the order (value desc, id asc) reaches `need`, or the last one."""
    largest, smallest, _count = span(
        tl.where(exists, order, -LAST_ID), tl.where(exists, order, LAST_ID), exists.to(tl.int32)
    )
    cut_order, above = _search(order, weight, need, smallest, largest)
    equal, ids = (order == cut_order) & exists, _ids(whole, row, ROOM)
    last, first, num_equal = span(tl.where(equal, ids, -LAST_ID), tl.where(equal, ids, LAST_ID), equal.to(tl.int32))
    cut_id = last
    if num_equal > 1:
        of_each = tl.maximum(tl.max(tl.where(equal, weight, 0)), 1)
        count = tl.minimum((need - above + of_each - 1) // of_each, num_equal).to(tl.int32)
        # The count-th lowest id is the largest -id that so many reach.
        negative, _above = _search(-ids, equal.to(tl.int32), count, -last, -first)
        cut_id = -negative
    return cut_order, cut_id


@triton.jit
def _search(number, weight, need, lowest, highest):
    """The largest number (int32) that as much weight as `need` reaches, or the lowest; and the weight above it."""
    low, high = lowest, highest + 1
    above = need * 0
    # Orders of either sign: their distance needs all 32 bits.
    while (high - low).to(tl.uint32) > 1:
        step = tl.maximum(((high - low).to(tl.uint32) // 5).to(tl.int32), 1)
        a, b, c, d = sum_four(
            tl.where(number >= low + step, weight, 0),
            tl.where(number >= low + 2 * step, weight, 0),
            tl.where(number >= low + 3 * step, weight, 0),
            tl.where(number >= low + 4 * step, weight, 0),
        )
        first = low
        for i in tl.static_range(1, 5):
            reach = a if i == 1 else (b if i == 2 else (c if i == 3 else d))
            pivot = first + i * step
            higher = (reach < need) & (pivot < high)
            above = tl.where(higher, reach, above)
            low = tl.where(reach >= need, pivot, low)
            high = tl.where(higher, pivot, high)
    return low, above
