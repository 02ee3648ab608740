"""The exact cut, once all tokens that it may be are in one list, in any order: sums of integers have no order.

Two pivots are set around where the cut would be if the list were evenly spread, until few tokens are between; of these
all pairs are compared. The list is read anew for each: it lies near, and registers are few.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of
from drawlot.kernels.triton.listing import clear_list, load_list, ranks_of_list
from drawlot.kernels.triton.reduce import sum_two
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF_ORDER, order_of, value_of

FIXED_POINT = tl.constexpr(2.0**42)
"""What masses are multiplied with to become integers: those of 2^20 tokens are added"""
_BLOCK = tl.constexpr(4096)
_FEW = tl.constexpr(128)


@triton.jit
def cut_in_list(lists, whole, row, reach, filters, low, high, row_max, scale, vocab_size, ROOM: tl.constexpr):
    """Order and id (int32) of the last kept token, how many are kept, and their mass (int64).

    lists: where the few find room; reach: how many tokens reach `high`, what these weigh, and what all weigh from the
    min-p line on; low, high: between which the list has all tokens. If top_p asks for more, the last one is kept.
    """
    top_k, top_p, _min_p = filters
    num_above, mass_above, mass_from_line = reach
    listed = tl.load(whole.listed + row)
    # All tokens are before this end, and of an empty list all above is kept.
    lowest, highest = order_of(low), order_of(high)
    cut_order, cut_id, num_kept, kept_mass = lowest, tl.full([], LAST_ID, tl.int32), listed * 0, mass_above * 0
    if listed > 0:
        num_kept = listed
        if top_k > 0:
            need = tl.minimum(top_k - num_above, ROOM).to(tl.int32)
            law = row_max, scale, cut_order, cut_id
            cut_order, cut_id, num_kept, _ = _cut(
                lists, whole, row, law, lowest, highest, vocab_size, listed, listed, need, False, ROOM
            )
        law = row_max, scale, cut_order, cut_id
        kept_mass = _mass(whole, row, law, listed, ROOM)
        if top_p < 1:
            shared_out = tl.where(top_k > 0, kept_mass, mass_from_line).to(tl.float64)
            need = tl.maximum(tl.ceil(top_p * shared_out).to(tl.int64) - mass_above, 1)
            cut_order, cut_id, num_kept, kept_mass = _cut(
                lists, whole, row, law, lowest, highest, vocab_size, num_kept, kept_mass, need, True, ROOM
            )
    return cut_order, cut_id, num_above + num_kept, mass_above + kept_mass


@triton.jit
def _cut(
    lists,
    whole,
    row,
    law,
    lowest,
    highest,
    vocab_size,
    num,
    total,
    need,
    BY_MASS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """The token at which the running weight in the order (value desc, id asc) reaches `need`, or the last one.

    law: what masses are relative to and how they are scaled, and the token after which none counts; lowest, highest:
    orders of all that do are at least, and below; num, total: how many they are, and what they weigh: their masses, or
    one each. Returns order and id, how many tokens are not after it, and what they weigh.
    """
    need, everything = tl.minimum(need, total), (lowest, highest)
    low, high, num, above, num_above = _narrowed(
        whole, row, law, everything, lowest, highest, num, total, need, False, BY_MASS, ROOM
    )
    values = low, high
    low_id, high_id = high * 0 - vocab_size, high * 0 + 1
    if num > _FEW:
        # All are equal. The lower ids come first, as the larger negative ones do.
        inside = num * _weight_of(low, law, BY_MASS)
        low_id, high_id, num, beyond, num_beyond = _narrowed(
            whole, row, law, values, low_id, high_id, num, inside, need - above, True, BY_MASS, ROOM
        )
        above += beyond
        num_above += num_beyond
    _take(lists, whole, row, law, values, low_id, high_id, ROOM)
    cut_order, cut_id, num_kept, kept = _cut_of_few(lists, row, law, num, need - above, BY_MASS)
    # Others may still read what the next cut stores.
    tl.debug_barrier()
    return cut_order, cut_id, num_above + num_kept, above + kept


@triton.jit
def _weight_of(order, law, BY_MASS: tl.constexpr):
    """int64 mass or int32 one, of tokens with this order."""
    if BY_MASS:
        row_max, scale, _, _ = law
        # None weighs nothing, so that the last token is where all is reached.
        weight = tl.maximum((mass_of(value_of(order), row_max, scale).to(tl.float64) * FIXED_POINT).to(tl.int64), 1)
    else:
        weight = order * 0 + 1
    return weight


@triton.jit
def _load(whole, row, law, values, start, ROOM: tl.constexpr):
    """Orders and ids of a block of the list, and which of them count, with these values and not after the law's end."""
    _, _, end_order, end_id = law
    low, high = values
    slot = start + tl.arange(0, _BLOCK)
    listed = tl.load(whole.listed + row)
    value = tl.load(whole.token_values + row * ROOM + slot, mask=slot < listed, other=float("-inf"))
    ids = tl.load(whole.token_ids + row * ROOM + slot, mask=slot < listed, other=LAST_ID)
    order = order_of(value)
    counts = (slot < listed) & (order >= low) & (order < high)
    return order, ids, counts & ((order > end_order) | ((order == end_order) & (ids <= end_id)))


@triton.jit
def _mass(whole, row, law, listed, ROOM: tl.constexpr):
    """int64: of all tokens that are not after the law's end."""
    values = tl.full([], MINUS_INF_ORDER, tl.int32), tl.full([], LAST_ID, tl.int32)
    total = tl.zeros([], tl.int64)
    start = 0
    while start < listed:
        order, _ids, counts = _load(whole, row, law, values, start, ROOM)
        total += tl.sum(tl.where(counts, _weight_of(order, law, True), 0))
        start += _BLOCK
    return total


@triton.jit
def _narrowed(
    whole, row, law, values, low, high, num, total, need, BY_ID: tl.constexpr, BY_MASS: tl.constexpr, ROOM: tl.constexpr
):
    """Bounds (int32) of the orders, or negative ids, among which the running weight reaches `need`: of few, or of one.

    The weight runs from high down to low. num, total: of all that count, which are in [low, high). Returns the bounds,
    how many are between, the weight above, and how many are above.
    """
    above, num_above, turn = total * 0, num * 0, 0
    reach, num_reach = total, num
    listed = tl.load(whole.listed + row)
    # Orders of either sign: their distance needs all 32 bits.
    while (num_reach - num_above > _FEW) & ((high - low).to(tl.uint32) > 1):
        width = (high - low).to(tl.uint32).to(tl.float32)
        # Two standard deviations on either side; every other time thirds, lest an uneven list takes long.
        middle = 1 - (need - above).to(tl.float32) / tl.maximum(reach - above, 1).to(tl.float32)
        side = tl.rsqrt((num_reach - num_above).to(tl.float32))
        if turn % 2 == 1:
            middle, side = middle * 0 + 0.5, side * 0 + 1 / 6
        first = low + tl.minimum(tl.maximum(width * (middle - side), 1.0), width - 1).to(tl.uint32).to(tl.int32)
        second = low + tl.minimum(tl.maximum(width * (middle + side), 1.0), width - 1).to(tl.uint32).to(tl.int32)
        of_first, of_second, num_first, num_second = total * 0, total * 0, num * 0, num * 0
        start = 0
        while start < listed:
            order, ids, counts = _load(whole, row, law, values, start, ROOM)
            number = order
            if BY_ID:
                number = -ids
            is_first, is_second = counts & (number >= first), counts & (number >= second)
            if BY_MASS:
                weight = _weight_of(order, law, True)
                a, b = sum_two(tl.where(is_first, weight, 0), tl.where(is_second, weight, 0))
                c, d = sum_two(is_first.to(tl.int32), is_second.to(tl.int32))
            else:
                c, d = sum_two(is_first.to(tl.int32), is_second.to(tl.int32))
                a, b = c, d
            of_first, of_second, num_first, num_second = of_first + a, of_second + b, num_first + c, num_second + d
            start += _BLOCK
        if of_second >= need:
            low, reach, num_reach = second, of_second, num_second
        else:
            high, above, num_above = second, of_second, num_second
            if of_first >= need:
                low, reach, num_reach = first, of_first, num_first
            else:
                high, above, num_above = first, of_first, num_first
        turn += 1
    return low, high, num_reach - num_above, above, num_above


@triton.jit
def _take(lists, whole, row, law, values, low_id, high_id, ROOM: tl.constexpr):
    """Puts the few tokens that are between all bounds in a short list."""
    clear_list(lists, row, _FEW)
    tl.debug_barrier()
    listed = tl.load(whole.listed + row)
    taken, start = tl.zeros([], tl.int32), 0
    while start < listed:
        order, ids, counts = _load(whole, row, law, values, start, ROOM)
        few = counts & (-ids >= low_id) & (-ids < high_id)
        place = taken + tl.cumsum(few.to(tl.int32), 0) - 1
        at, fits = row * lists.room + place, few & (place < _FEW)
        tl.store(lists.token_values + at, value_of(order), mask=fits)
        tl.store(lists.token_ids + at, ids, mask=fits)
        taken += tl.sum(few.to(tl.int32))
        start += _BLOCK
    tl.debug_barrier()


@triton.jit
def _cut_of_few(lists, row, law, num, need, BY_MASS: tl.constexpr):
    """As `_cut`, of the first tokens of a short list."""
    slot = tl.arange(0, _FEW)
    value, token = load_list(lists, row, slot)
    weight = tl.where(slot < num, _weight_of(order_of(value), law, BY_MASS), 0)
    rank = ranks_of_list(lists, row, num, value, token, slot, _FEW)
    tl.store(lists.masses + row * lists.room + rank, weight.to(tl.int64))
    tl.debug_barrier()
    in_order = tl.load(lists.masses + row * lists.room + slot)
    num_kept = tl.sum(((tl.cumsum(in_order, 0) - in_order < need) & (slot < num)).to(tl.int32))
    is_cut, kept = rank == num_kept - 1, rank < num_kept
    cut_order = tl.max(tl.where(is_cut, order_of(value), -LAST_ID))
    cut_id = tl.max(tl.where(is_cut, token, -1))
    return cut_order, cut_id, num_kept, tl.sum(tl.where(kept, weight, 0))
