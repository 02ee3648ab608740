"""The exact cut, once all tokens that it may be are in one list, in any order: sums of integers have no order.

Two pivots are set around where the cut would be if the list were evenly spread, until few tokens are between them; of
these all pairs are compared.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of
from drawlot.kernels.triton.listing import clear_list, load_list, ranks_of_list
from drawlot.kernels.triton.reduce import FIXED_POINT, sum_two, total_of
from drawlot.kernels.triton.values import LAST_ID, order_of, value_of

_FEW = tl.constexpr(128)


@triton.jit
def cut_in_list(lists, whole, row, reach, filters, low, high, row_max, scale, vocab_size, ROOM: tl.constexpr):
    """See `_cut_in_list`; a list that fills no half of its room takes half as long."""
    if tl.load(whole.listed + row) <= ROOM // 2:
        cut = _cut_in_list(lists, whole, row, reach, filters, low, high, row_max, scale, vocab_size, ROOM, ROOM // 2)
    else:
        cut = _cut_in_list(lists, whole, row, reach, filters, low, high, row_max, scale, vocab_size, ROOM, ROOM)
    return cut


@triton.jit
def _cut_in_list(
    lists,
    whole,
    row,
    reach,
    filters,
    low,
    high,
    row_max,
    scale,
    vocab_size,
    ROOM: tl.constexpr,
    SLOTS: tl.constexpr,
):
    """Order and id (int32) of the last kept token, how many are kept, and their mass (int64).

    lists: where the few find room; reach: how many tokens reach `high`, what these weigh, and what that weighs of which
    top_p takes its share; low, high: between which the list has all tokens, at most SLOTS. If more is asked for than
    there is, the last one is kept.
    """
    top_k, top_p, _min_p = filters
    num_above, mass_above, shared_out = reach
    slot = tl.arange(0, SLOTS)
    listed = tl.load(whole.listed + row)
    kept = slot < listed
    order = order_of(tl.load(whole.token_values + row * ROOM + slot, mask=kept, other=float("-inf")))
    # Of an empty list all above is kept.
    cut_order, cut_id, num_kept = order_of(low), tl.full([], LAST_ID, tl.int32), listed
    kept_mass = tl.sum(tl.where(kept, _mass_of(order, row_max, scale), 0))
    # First what top_k keeps, then what top_p keeps of that; each token counts one, or its mass.
    by_mass, last = tl.where(top_k > 0, 0, 1), tl.where(top_p < 1, 1, 0)
    while (by_mass <= last) & (listed > 0):
        need, total = top_k - num_above, num_kept.to(tl.int64)
        if by_mass:
            need = tl.ceil(top_p * tl.where(top_k > 0, kept_mass, shared_out).to(tl.float64)).to(tl.int64)
            need, total = need - mass_above, kept_mass
        weight = tl.where(by_mass != 0, _mass_of(order, row_max, scale), 1)
        weight, need = tl.where(kept, weight, 0), tl.minimum(tl.maximum(need, 1), total)
        bottom, top = order_of(low), order_of(high)
        lowest, highest, num, above = _narrowed(order, weight, kept, bottom, top, num_kept, total, need)
        few = kept & (order >= lowest) & (order < highest)
        ids = tl.load(whole.token_ids + row * ROOM + slot)
        if num > _FEW:
            # All are equal. The lower ids come first, as the larger negative ones do.
            inside = tl.where(few, weight, 0)
            last_id, first_id, num, beyond = _narrowed(
                -ids, inside, few, num * 0 - vocab_size, num * 0 + 1, num, tl.sum(inside), need - above
            )
            few = few & (-ids >= last_id) & (-ids < first_id)
            above += beyond
        _take(lists, row, order, ids, few)
        cut_order, cut_id = _cut_of_few(lists, row, num, need - above, by_mass, row_max, scale)
        kept = kept & ((order > cut_order) | ((order == cut_order) & (ids <= cut_id)))
        num_kept, kept_mass = sum_two(kept.to(tl.int32), tl.where(kept, _mass_of(order, row_max, scale), 0))
        by_mass += 1
    return cut_order, cut_id, num_above + num_kept, mass_above + kept_mass


@triton.jit
def _mass_of(order, row_max, scale):
    """int64; none weighs nothing, so that the last token is where all is reached."""
    return tl.maximum((mass_of(value_of(order), row_max, scale).to(tl.float64) * FIXED_POINT).to(tl.int64), 1)


@triton.jit
def _narrowed(number, weight, exists, low, high, num, total, need):
    """Bounds of the numbers (int32) where the running weight, from high to low, reaches `need`: of few numbers, or one.

    num, total: of those that exist, all in [low, high). Returns the bounds, how many are between, and the weight above.
    """
    above, num_above, turn = total * 0, num * 0, 0
    reach, num_reach = total, num
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
        of_first, of_second = sum_two(tl.where(number >= first, weight, 0), tl.where(number >= second, weight, 0))
        # Two numbers of 16 bits, since a list is shorter than 2^15.
        flags = (exists & (number >= first)).to(tl.int32) + ((exists & (number >= second)).to(tl.int32) << 16)
        numbers = total_of(flags)
        num_first, num_second = numbers & 0xFFFF, numbers >> 16
        if of_second >= need:
            low, reach, num_reach = second, of_second, num_second
        else:
            high, above, num_above = second, of_second, num_second
            if of_first >= need:
                low, reach, num_reach = first, of_first, num_first
            else:
                high, above, num_above = first, of_first, num_first
        turn += 1
    return low, high, num_reach - num_above, above


@triton.jit
def _take(lists, row, order, ids, few):
    """Puts few tokens in a short list."""
    clear_list(lists, row, _FEW)
    tl.debug_barrier()
    at = row * lists.room + tl.cumsum(few.to(tl.int32), 0) - 1
    tl.store(lists.token_values + at, value_of(order), mask=few)
    tl.store(lists.token_ids + at, ids, mask=few)
    tl.debug_barrier()


@triton.jit
def _cut_of_few(lists, row, num, need, by_mass, row_max, scale):
    """Order and id of the token of a short list where `need` is reached."""
    slot = tl.arange(0, _FEW)
    value, token = load_list(lists, row, slot)
    rank = ranks_of_list(lists, row, num, value, token, slot, _FEW)
    weight = tl.where(by_mass != 0, _mass_of(order_of(value), row_max, scale), 1)
    tl.store(lists.masses + row * lists.room + rank, tl.where(slot < num, weight, 0))
    tl.debug_barrier()
    in_order = tl.load(lists.masses + row * lists.room + slot)
    num_kept = tl.sum(((tl.cumsum(in_order, 0) - in_order < need) & (slot < num)).to(tl.int32))
    is_cut = rank == num_kept - 1
    cut_order = tl.max(tl.where(is_cut, order_of(value), -LAST_ID))
    cut_id = tl.max(tl.where(is_cut, token, -1))
    # Others may still read what the next cut stores.
    tl.debug_barrier()
    return cut_order, cut_id
