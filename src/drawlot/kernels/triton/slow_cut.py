"""The exact cut of any row by one program that reads it again and again: where too many tokens are nearly equal."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import min_p_line
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.tile_summary import LOG2_E
from drawlot.kernels.triton.values import (
    LAST_ID,
    MINUS_INF,
    MINUS_INF_ORDER,
    ids_of,
    load_raw,
    load_values,
    order_of,
    value_of,
)

_PIVOT_BITS = tl.constexpr(21)


@triton.jit
def slow_cut(rows, row, bracket, filters, temperature, row_max, TILES: tl.constexpr):
    """Order (int64) and id (int32) of the last kept token.

    bracket: whether the cut is known to have a value of at least low, and below high; these; what is counted, or
    weighed, of those from high on; and the mass of which top_p keeps a share.
    """
    top_k, top_p, min_p = filters
    holds, bracket_low, bracket_high, above, mass = bracket
    scale, highest = scale_of(temperature), order_of(row_max)
    bottom = tl.full([], MINUS_INF_ORDER, tl.int64) + 1
    top = highest.to(tl.int64) + 1
    low = tl.where(holds, order_of(bracket_low).to(tl.int64), bottom)
    high = tl.where(holds, order_of(bracket_high).to(tl.int64), top)
    above = tl.where(holds, above, 0.0)
    cut_order, cut_id = bottom - 1, tl.full([], LAST_ID, tl.int32)
    if top_k > 0:
        cut_order, cut_id = cut_at_count(rows, row, top_k, low, high, above.to(tl.int64), False, TILES)
        low, high, above = cut_order, top, above * 0
    if min_p > 0:
        line = min_p_line(highest, temperature, min_p).to(tl.int64)
        cut_id = tl.where(line > cut_order, LAST_ID, cut_id)
        cut_order = tl.maximum(line, cut_order)
        low = tl.maximum(low, line)
    if top_p < 1:
        if top_k > 0:
            mass = mass_up_to(rows, row, cut_order, cut_id, row_max, scale, TILES)
        target = top_p * mass
        cut_order, cut_id = _cut_at_mass(rows, row, cut_order, cut_id, target, low, high, above, row_max, scale, TILES)
    return cut_order, cut_id


@triton.jit
def cut_at_count(rows, row, count, low, high, above_high, RAW: tl.constexpr, TILES: tl.constexpr):
    """Order (int64) and id (int32) of the count-th token (int64) of a row's order; of its last one, if it has fewer.

    At least `count` tokens reach the order `low` (int64), or all do; `above_high`, and that is fewer, reach `high`.
    """
    low, high, above_high = _int64(low), _int64(high), _int64(above_high)
    while high - low > 1:
        step = tl.maximum((high - low) // 5, 1)
        counts = tl.zeros([], tl.int64)
        top = tl.zeros([], tl.int64)
        start = 0
        while start < rows.num_tiles:
            order, _, _ = _block(rows, row, start, RAW, TILES)
            above = (order >= low + step).to(tl.int64)
            above += (order >= low + 2 * step).to(tl.int64) << _PIVOT_BITS
            above += (order >= low + 3 * step).to(tl.int64) << 2 * _PIVOT_BITS
            counts += tl.sum(tl.sum(above, 1), 0)
            top += tl.sum(tl.sum((order >= low + 4 * step).to(tl.int64), 1), 0)
            start += TILES
        first = low
        for i in tl.static_range(1, 5):
            reach = top if i == 4 else (counts >> (i - 1) * _PIVOT_BITS) & 0x1FFFFF
            pivot = first + i * step
            higher = (reach < count) & (pivot < high)
            above_high = tl.where(higher, reach, above_high)
            low = tl.where(reach >= count, pivot, low)
            high = tl.where(higher, pivot, high)
    return low, _id_of_equal(rows, row, low, count - above_high, RAW, TILES)


@triton.jit
def _int64(x):
    return tl.zeros([], tl.int64) + x


@triton.jit
def _block(rows, row, start, RAW: tl.constexpr, TILES: tl.constexpr):
    """TILES tiles from `start` on: their tokens' order, value and id."""
    tile = start + tl.arange(0, TILES)
    ids = ids_of(tile)
    exists = (tile < rows.num_tiles)[:, None]
    if RAW:
        x = load_raw(rows, row, ids, exists)
    else:
        x = load_values(rows, row, ids, exists)
    return order_of(x), x, ids


@triton.jit
def _id_of_equal(rows, row, order, count, RAW: tl.constexpr, TILES: tl.constexpr):
    """The id of the count-th token that has this order, by id; the last such, if there are fewer."""
    seen = tl.zeros([], tl.int64)
    last = tl.zeros([], tl.int32) - 1
    start = 0
    while (start < rows.num_tiles) & (seen < count):
        own, _, ids = _block(rows, row, start, RAW, TILES)
        equal = (own == order).to(tl.int64)
        of_tile = tl.sum(equal, 1)
        before = seen + (tl.cumsum(of_tile, 0) - of_tile)[:, None] + tl.cumsum(equal, 1)
        last = tl.maximum(last, tl.max(tl.max(tl.where((equal != 0) & (before <= count), ids, -1), 1), 0))
        seen += tl.sum(of_tile)
        start += TILES
    return last


@triton.jit
def _cut_at_mass(rows, row, cut_order, cut_id, target, low, high, above_high, row_max, scale, TILES: tl.constexpr):
    """Where a mass `target` of the tokens up to a cut is reached: order (int64) and id (int32).

    `low` reaches it, `high` does not, with a mass of `above_high`.
    """
    while high - low > 1:
        step = tl.maximum((high - low) // 5, 1)
        mass1 = tl.zeros([], tl.float64)
        mass2 = tl.zeros([], tl.float64)
        mass3 = tl.zeros([], tl.float64)
        mass4 = tl.zeros([], tl.float64)
        start = 0
        while start < rows.num_tiles:
            order, x, ids = _block(rows, row, start, False, TILES)
            mass = _weights(order, x, ids, cut_order, cut_id, row_max, scale)
            mass1 += tl.sum(tl.sum(tl.where(order >= low + step, mass, 0.0), 1), 0)
            mass2 += tl.sum(tl.sum(tl.where(order >= low + 2 * step, mass, 0.0), 1), 0)
            mass3 += tl.sum(tl.sum(tl.where(order >= low + 3 * step, mass, 0.0), 1), 0)
            mass4 += tl.sum(tl.sum(tl.where(order >= low + 4 * step, mass, 0.0), 1), 0)
            start += TILES
        first = low
        for i in tl.static_range(1, 5):
            reach = mass1 if i == 1 else (mass2 if i == 2 else (mass3 if i == 3 else mass4))
            pivot = first + i * step
            higher = (reach < target) & (pivot < high)
            above_high = tl.where(higher, reach, above_high)
            low = tl.where(reach >= target, pivot, low)
            high = tl.where(higher, pivot, high)
    # Among tokens of equal value the lower ids are kept, as many as the target still needs.
    weight = tl.exp2((value_of(low) - row_max) * (scale * LOG2_E)).to(tl.float64)
    count = tl.maximum(tl.ceil((target - above_high) / tl.maximum(weight, 1e-300)), 1).to(tl.int64)
    last = _id_of_equal(rows, row, low, count, False, TILES)
    return low, tl.where(low == cut_order, tl.minimum(last, cut_id), last)


@triton.jit
def mass_up_to(rows, row, cut_order, cut_id, row_max, scale, TILES: tl.constexpr):
    """float64: of the tokens of a row up to a cut."""
    total = tl.zeros([], tl.float64)
    start = 0
    while start < rows.num_tiles:
        order, x, ids = _block(rows, row, start, False, TILES)
        total += tl.sum(tl.sum(_weights(order, x, ids, cut_order, cut_id, row_max, scale), 1), 0)
        start += TILES
    return total


@triton.jit
def _weights(order, x, ids, cut_order, cut_id, row_max, scale):
    """float64: exp(z) of the tokens up to a cut, 0 of others."""
    kept = (x > MINUS_INF) & ((order > cut_order) | ((order == cut_order) & (ids <= cut_id)))
    return tl.where(kept, tl.exp2((x - row_max) * (scale * LOG2_E)), 0.0).to(tl.float64)
