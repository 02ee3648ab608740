"""The exact cut, once all tokens that it may be are in one list, in any order: sums of integers have no order.

Tokens are numbers in the order of values, so that a cut is one. What 256 ranges of these numbers weigh says in which it
lies; ranges of that one say more, until few tokens are in it; of these all pairs are compared.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of
from drawlot.kernels.triton.listing import NO_KEY, clear_list, key_of, load_keys, ranks_of_list, token_of
from drawlot.kernels.triton.ranges import NUM_RANGES, has_ranges
from drawlot.kernels.triton.reduce import FIXED_POINT
from drawlot.kernels.triton.values import LAST_ID, value_of

_BITS = tl.constexpr(8)
_FEW_LISTED = tl.constexpr(128)
_LISTED_BLOCK = tl.constexpr(4096)
"""Tokens of a list that are read at a time"""


@triton.jit
def cut_in_list(lists, whole, row, reach, filters, low, high, row_max, scale, ROOM: tl.constexpr):
    """Order and id (int32) of the last kept token, and the kept mass (int64).

    lists: where the few find room; reach: how many tokens come before those of the list, what these weigh, and what
    that weighs of which top_p takes its share; low, high: between which the list has all tokens, or all of which this
    is known. If more is asked for than there is, the last one is kept.
    """
    top_k, top_p, _min_p = filters
    num_above, mass_above, shared_out = reach
    listed = tl.load(whole.listed + row)
    cut, highest = _first_key(low), tl.minimum(_first_key(high) - 1, key_of(row_max, 0))
    mass = tl.zeros([], tl.int64)
    # First what top_k keeps, then what that weighs and top_p keeps of it; each token counts one, or its mass.
    by_mass = tl.where(top_k > 0, 0, 1)
    while (by_mass < 2) & (listed > 0):
        first, last, above, num = cut, highest, mass * 0, listed
        need = tl.ceil(top_p * shared_out.to(tl.float64)).to(tl.int64) - mass_above
        need = tl.where(by_mass != 0, need, top_k - num_above)
        is_narrow = (listed <= _FEW_LISTED) & has_ranges(filters)
        if is_narrow:
            _copy_few(lists, whole, row, listed, ROOM)
            # The few tell their mass, too.
            by_mass += tl.where(top_k > 0, 2, 0)
        is_first = row >= 0
        while is_narrow == 0:
            shift = _shift_of(first, last)
            _clear(lists, whole, row)
            start = 0
            while start < listed:
                key = _load_keys(whole, row, start, listed, ROOM)
                inside = (key >= first) & (key <= last)
                weight = tl.where(by_mass != 0, _mass_of(key, row_max, scale), 1)
                at = ((key - first).to(tl.uint64) >> shift.to(tl.uint64)).to(tl.int32) & (NUM_RANGES - 1)
                tl.atomic_add(whole.ranges + row * NUM_RANGES + at, weight, mask=inside, sem="relaxed")
                start += _LISTED_BLOCK
            tl.debug_barrier()
            # From the highest range down.
            place = NUM_RANGES - 1 - tl.arange(0, NUM_RANGES)
            up_to = tl.cumsum(tl.load(whole.ranges + row * NUM_RANGES + place), 0)
            if is_first:
                total = tl.max(up_to)
                if (by_mass != 0) & (top_k > 0):
                    share = tl.ceil(top_p * total.to(tl.float64)).to(tl.int64)
                    need = tl.where(top_p < 1, share, total)
                need = tl.minimum(tl.maximum(need, 1), total)
                is_first = row < 0
            before = above + up_to < need
            place_of_cut = tl.min(tl.where(before, place, NUM_RANGES)) - 1
            above += tl.max(tl.where(before, up_to, 0))
            first += place_of_cut.to(tl.int64) << shift
            width = tl.full([], 1, tl.int64) << shift
            last = tl.where((last - first).to(tl.uint64) < width.to(tl.uint64), last, first + width - 1)
            num = _take(lists, whole, row, first, last, listed, ROOM)
            is_narrow = (num <= _FEW_LISTED) | (first >= last)
            if is_narrow == 0:
                first, last = _ends(whole, row, first, last, listed, ROOM)
        cut, mass = _cut_of_few(lists, row, num, tl.maximum(need - above, 1), by_mass, row_max, scale)
        mass += above
        by_mass += 1
    return (cut >> 32).to(tl.int32), token_of(cut), mass_above + mass


@triton.jit
def _first_key(value):
    """The lowest number that a token of this value may have."""
    return key_of(value, LAST_ID)


@triton.jit
def _shift_of(first, last):
    """By how much the distance to the first number is to be shifted, so that all are below `NUM_RANGES`."""
    # The exponent of the distance, at most one too high.
    distance = (last - first).to(tl.uint64).to(tl.float32).to(tl.int32, bitcast=True) >> 23
    return tl.maximum(distance - 127 - (_BITS - 1), 0).to(tl.int64)


@triton.jit
def _mass_of(key, row_max, scale):
    """int64; none weighs nothing, so that the last token is where all is reached."""
    return tl.maximum((mass_of(value_of(key >> 32), row_max, scale) * FIXED_POINT).to(tl.int64), 1)


@triton.jit
def _load_keys(whole, row, start, listed, ROOM: tl.constexpr):
    """A block of a list as numbers, the lowest where there is no token."""
    slot = start + tl.arange(0, _LISTED_BLOCK)
    value, token = _load(whole, row, slot, slot < listed, ROOM)
    return tl.where(slot < listed, key_of(value, token), -(2**63))


@triton.jit
def _load(whole, row, slot, mask, ROOM: tl.constexpr):
    token = tl.load(whole.tokens + row * ROOM + slot, mask=mask, other=0)
    return (token >> 32).to(tl.int32).to(tl.float32, bitcast=True), (token & LAST_ID).to(tl.int32)


@triton.jit
def _copy_few(lists, whole, row, listed, ROOM: tl.constexpr):
    """Puts a list of few in the short list."""
    slot = tl.arange(0, _FEW_LISTED)
    value, token = _load(whole, row, slot, slot < listed, ROOM)
    # Others may still read what was there before.
    tl.debug_barrier()
    tl.store(lists.keys + row * lists.room + slot, tl.where(slot < listed, key_of(value, token), NO_KEY))
    tl.debug_barrier()


@triton.jit
def _clear(lists, whole, row):
    """Weights of ranges, and the room of the few."""
    # Others may still read what was there before.
    tl.debug_barrier()
    tl.store(whole.ranges + row * NUM_RANGES + tl.arange(0, NUM_RANGES), tl.zeros([NUM_RANGES], tl.int64))
    tl.store(whole.taken + row, 0)
    clear_list(lists, row, _FEW_LISTED)
    tl.debug_barrier()


@triton.jit
def _take(lists, whole, row, first, last, listed, ROOM: tl.constexpr):
    """Puts tokens from `first` to `last` in a short list, in any order, and returns how many there are."""
    start = 0
    while start < listed:
        key = _load_keys(whole, row, start, listed, ROOM)
        inside = (key >= first) & (key <= last)
        at = tl.atomic_add(whole.taken + row + tl.zeros([_LISTED_BLOCK], tl.int32), 1, mask=inside, sem="relaxed")
        tl.store(lists.keys + row * lists.room + at, key, mask=inside & (at < _FEW_LISTED))
        start += _LISTED_BLOCK
    tl.debug_barrier()
    return tl.load(whole.taken + row)


@triton.jit
def _ends(whole, row, first, last, listed, ROOM: tl.constexpr):
    """The lowest and the highest number that a token has from `first` to `last`: equal tokens differ in few bits."""
    lowest, highest = last, first
    start = 0
    while start < listed:
        key = _load_keys(whole, row, start, listed, ROOM)
        inside = (key >= first) & (key <= last)
        lowest = tl.minimum(lowest, tl.min(tl.where(inside, key, last)))
        highest = tl.maximum(highest, tl.max(tl.where(inside, key, first)))
        start += _LISTED_BLOCK
    return lowest, highest


@triton.jit
def _cut_of_few(lists, row, num, need, by_mass, row_max, scale):
    """The number of the token of a short list where `need` is reached, and the mass of all up to it.

    by_mass: 1, or each counts one; 0: their mass is not asked for.
    """
    slot = tl.arange(0, _FEW_LISTED)
    key = load_keys(lists, row, slot)
    rank = ranks_of_list(lists, row, num, key, slot, _FEW_LISTED)
    mass = _mass_of(key, row_max, scale)
    tl.store(lists.masses + row * lists.room + rank, tl.where(slot < num, tl.where(by_mass == 1, mass, 1), 0))
    tl.debug_barrier()
    in_order = tl.load(lists.masses + row * lists.room + slot)
    kept = (tl.cumsum(in_order, 0) - in_order < need) & (slot < num)
    num_kept = tl.sum(kept.to(tl.int32))
    return tl.max(tl.where(rank == num_kept - 1, key, -(2**63))), tl.sum(tl.where(rank < num_kept, mass, 0))
