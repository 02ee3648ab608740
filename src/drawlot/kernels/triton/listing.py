"""Short lists of a row's best tokens: a line that enough tokens reach, and the tiles that can hold them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import sum_two
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF_ORDER, ids_of, load_raw, load_values, value_of

_SLACK = tl.constexpr(12)
_COUNT_BITS = tl.constexpr(16)
_SECOND = tl.constexpr(1 << 16)


@triton.jit
def line_of(orders, exists, smallest, largest, num, need):
    """A line (int32, an order) that at least `need` of the orders reach, and few more; all do if they are fewer.

    The k-th largest tile maximum is such a line for k tokens, since a tile's maximum is a token. It is found to within
    a few tiles, by counting above four pivots a round.

    orders: int32 [M]; exists: which count; smallest, largest and num (int32): of those; need: int32. Returns the line,
    and how many reach it.
    """
    reach = num
    low = tl.where(num < need, -LAST_ID, smallest)
    high = largest + 1
    while (reach > need + _SLACK) & (high != low + 1):
        # Orders of either sign: their distance needs all 32 bits.
        step = tl.maximum(((high - low).to(tl.uint32) // 5).to(tl.int32), 1)
        lower = _reaches(orders, low + step, low + 2 * step, exists)
        upper = _reaches(orders, low + 3 * step, low + 4 * step, exists)
        lower, upper = sum_two(lower, upper)
        first = low
        for i in tl.static_range(4):
            count = ((lower if i < 2 else upper) >> (i % 2) * _COUNT_BITS) & 0xFFFF
            pivot = first + (i + 1) * step
            enough = count >= need
            low = tl.where(enough, pivot, low)
            reach = tl.where(enough, count, reach)
            high = tl.where(enough, high, tl.minimum(high, pivot))
    return low, reach


@triton.jit
def _reaches(orders, pivot, next_pivot, exists):
    """int32: two flags of 16 bits; there are fewer orders than 2^15."""
    flags = tl.where(orders >= pivot, 1, 0) + tl.where(orders >= next_pivot, _SECOND, 0)
    return tl.where(exists, flags, 0)


@triton.jit
def select_tiles(lists, row, tile, selected):
    """Lists the ids of the selected tiles [T], ascending. A barrier must follow before they are read."""
    at = tl.cumsum(selected.to(tl.int32), 0) - 1
    tl.store(lists.tile_ids + row * lists.width + at, tile, mask=selected)


@triton.jit
def clear_list(lists, row, ROOM: tl.constexpr):
    """Fills a list with what is after every token, so that it can be read without a mask. A barrier must follow."""
    at = row * lists.room + tl.arange(0, ROOM)
    tl.store(lists.token_values + at, tl.full([ROOM], float("-inf"), tl.float32))
    tl.store(lists.token_ids + at, tl.full([ROOM], LAST_ID, tl.int32))


@triton.jit
def _side_by_side(first, inside):
    """Where tokens are stored. Neighbours are not side by side, but only so does the compiler keep a block's layout.

    The mask, which is of single tokens, keeps it from storing two at once. Nothing else may be computed from these
    places: the compiler would compute it for four of them at once.
    """
    return tl.multiple_of(tl.max_contiguous(first[:, None] + inside, [1, 4]), [1, 4])


@triton.jit
def list_tokens(
    rows, row, lists, num_selected, cut_order, cut_id, RAW: tl.constexpr, ROOM: tl.constexpr, TILES: tl.constexpr
):
    """Lists the tokens of the selected tiles that are not after (cut_order, cut_id), ascending by id.

    Returns how many tokens there are, counting on to the block where the room ends. A barrier must follow before the
    list is read.
    """
    # Every finite value reaches the lowest one.
    cut_value = value_of(tl.maximum(cut_order, MINUS_INF_ORDER + 1))
    listed = 0
    start = 0
    while (start < num_selected) & (listed <= ROOM):
        slot = start + tl.arange(0, TILES)
        exists = slot < num_selected
        tile = tl.load(lists.tile_ids + row * lists.width + slot, mask=exists, other=0)
        ids = ids_of(tile)
        if RAW:
            x = load_raw(rows, row, ids, exists[:, None])
        else:
            x = load_values(rows, row, ids, exists[:, None])
        kept = x >= cut_value
        if cut_id != LAST_ID:
            kept = kept & ((x != cut_value) | (ids <= cut_id))
        number = kept.to(tl.int32)
        of_tile = tl.sum(number, 1)
        first = listed + tl.cumsum(of_tile, 0) - of_tile
        inside = tl.cumsum(number, 1) - number
        fits = kept & (inside < ROOM - first[:, None])
        at = _side_by_side(first, inside)
        tl.store(lists.token_values + row * lists.room + at, x, mask=fits)
        tl.store(lists.token_ids + row * lists.room + at, ids, mask=fits)
        listed += tl.sum(of_tile)
        start += TILES
    return listed


@triton.jit
def append_between(whole, row, x, ids, low, high, ROOM: tl.constexpr):
    """Appends the tokens of a block with low <= value < high to a row's long list, in any order, as room allows."""
    kept = (x >= low) & (x < high)
    number = kept.to(tl.int32)
    of_tile = tl.sum(number, 1)
    count = tl.sum(of_tile)
    if count > 0:
        first = tl.atomic_add(whole.listed + row, count) + tl.cumsum(of_tile, 0) - of_tile
        inside = tl.cumsum(number, 1) - number
        fits = kept & (inside < ROOM - first[:, None])
        at = _side_by_side(first, inside)
        tl.store(whole.token_values + row * ROOM + at, x, mask=fits)
        tl.store(whole.token_ids + row * ROOM + at, ids, mask=fits)


@triton.jit
def load_list(lists, row, slot):
    """Values (float32) and ids (int32) of the slots of a list; past its end -inf and LAST_ID."""
    at = row * lists.room + slot
    return tl.load(lists.token_values + at), tl.load(lists.token_ids + at)


@triton.jit
def comes_before(value, token, other_value, other_token):
    """Whether a token is before another in the order (value desc, id asc)."""
    return (value > other_value) | ((value == other_value) & (token < other_token))
