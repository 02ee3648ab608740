"""The exact cut, once all tokens that it may be are in one list, in any order: sums of integers have no order."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LOG2_E, min_p_line
from drawlot.kernels.triton.reduce import span, sum_four
from drawlot.kernels.triton.states import filters_of, scale_of, temperature_of
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF_ORDER, order_of

_FIXED_POINT = tl.constexpr(2.0**44)


@triton.jit
def cut_in_list(states, whole, state, row, highest, row_max, ROOM: tl.constexpr):
    """Order and id (int32) of the last kept token of a row whose list has room for all between its bracket."""
    top_k, top_p, min_p = filters_of(states, state)
    temperature = temperature_of(states, state)
    slot = tl.arange(0, ROOM)
    listed = tl.load(whole.listed + row)
    x = tl.load(whole.token_values + row * ROOM + slot, mask=slot < listed, other=float("-inf"))
    ids = tl.load(whole.token_ids + row * ROOM + slot, mask=slot < listed, other=LAST_ID)
    order = order_of(x)
    exists = slot < listed
    weight = (tl.exp2((x - row_max) * (scale_of(temperature) * LOG2_E)).to(tl.float64) * _FIXED_POINT).to(tl.int64)
    weight = tl.where(exists, weight, 0)
    cut_order, cut_id = tl.full([], MINUS_INF_ORDER, tl.int32), tl.full([], LAST_ID, tl.int32)
    if top_k > 0:
        one = exists.to(tl.int64)
        cut_order, cut_id = _cut(order, ids, one, one, top_k)
        if min_p > 0:
            line = min_p_line(highest, temperature, min_p)
            cut_id = tl.where(line > cut_order, LAST_ID, cut_id)
            cut_order = tl.maximum(line, cut_order)
    if top_p < 1:
        kept = (order > cut_order) | ((order == cut_order) & (ids <= cut_id))
        weight = tl.where(kept, weight, 0)
        need = top_p * tl.sum(weight).to(tl.float64)
        if top_k <= 0:
            need = (tl.load(whole.target + row) - tl.load(whole.above + row)) * _FIXED_POINT
        need = tl.maximum(tl.ceil(need).to(tl.int64), 1)
        cut_order, cut_id = _cut(order, ids, weight, (weight > 0).to(tl.int64), need)
    return cut_order, cut_id


@triton.jit
def _cut(order, ids, weight, exists, need):
    """The token at which the running weight in the order (value desc, id asc) reaches `need`, or the last one."""
    largest, smallest, _count = span(tl.where(exists != 0, order, -LAST_ID), tl.where(exists != 0, order, LAST_ID), ids)
    cut_order, above = _search(order, weight, need, smallest, largest)
    equal = (order == cut_order) & (exists != 0)
    last, first, num_equal = span(tl.where(equal, ids, -LAST_ID), tl.where(equal, ids, LAST_ID), equal.to(tl.int32))
    cut_id = last
    if num_equal > 1:
        of_each = tl.maximum(tl.max(tl.where(equal, weight, 0)), 1)
        count = tl.minimum((need - above + of_each - 1) // of_each, num_equal)
        # The count-th lowest id is the largest -id that so many reach.
        negative, _above = _search(-ids, equal.to(tl.int64), count, -last, -first)
        cut_id = -negative
    return cut_order, cut_id


@triton.jit
def _search(number, weight, need, lowest, highest):
    """The largest number that as much weight as `need` reaches, or the lowest; and the weight above it."""
    low, high = lowest.to(tl.int64), highest.to(tl.int64) + 1
    above = tl.zeros([], tl.int64)
    while high - low > 1:
        step = tl.maximum((high - low) // 5, 1)
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
    return low.to(tl.int32), above
