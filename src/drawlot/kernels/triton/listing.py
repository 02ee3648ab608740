"""Short lists of a row's best tokens: a line that enough tokens reach, and the groups that can hold them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import span_and_moments, span_moments_and_largest, sum_two
from drawlot.kernels.triton.refused import allowed
from drawlot.kernels.triton.tile_summary import GROUPS, group_of, others_of
from drawlot.kernels.triton.values import (
    GROUP,
    LAST_ID,
    MINUS_INF,
    MINUS_INF_ORDER,
    TILE,
    load_edits_of_groups,
    load_raw,
    order_of,
    value_of,
    with_edits_of_groups,
)

_LINE_SLACK = tl.constexpr(12)
_CHUNK = tl.constexpr(32)
_SCALE_OF_GUMBEL = tl.constexpr(6**0.5 / 3.141592653589793)
"""Of one with deviation 1"""
_MEAN_OF_GUMBEL = tl.constexpr(0.5772156649015329)
"""Of one with mode 0 and scale 1"""
_LN2 = tl.constexpr(0.6931471805599453)
_COUNT_BITS = tl.constexpr(16)
_SECOND = tl.constexpr(1 << 16)
NO_KEY = tl.constexpr(-0x7F800001 << 32)
"""Of a list past its end: what -inf with the last id would have"""


@triton.jit
def survey(x, is_bad):
    """What a line is drawn by: highest and lowest order of the finite values [M], their number, mean and deviation.

    Of more than 1,024 values all is said of the highest of each few, see `_thinned`.
    is_bad: their maximum is LAST_ID then, above all orders.
    """
    largest, smallest, count, finite = _surveyed(x, is_bad)
    return _found(span_and_moments(largest, smallest, count, finite))


@triton.jit
def survey_beside(x, is_bad, first, second):
    """What `survey` returns, and the largest of each of two more int32 blocks [M]: by one exchange."""
    largest, smallest, count, finite = _surveyed(x, is_bad)
    span, first, second = span_moments_and_largest(largest, smallest, count, finite, _thinned(first), _thinned(second))
    return _found(span), first, second


@triton.jit
def _surveyed(x, is_bad):
    x, is_bad = _thinned(x), _thinned(is_bad.to(tl.int32)) != 0
    exists, orders = x > MINUS_INF, order_of(x)
    largest, smallest = tl.where(is_bad, LAST_ID, orders), tl.where(exists, orders, LAST_ID)
    return largest, smallest, exists.to(tl.int32), tl.where(exists, x, 0.0)


@triton.jit
def _found(span):
    highest, lowest, num, total, squares = span
    mean = total / num
    return highest, lowest, num, mean, tl.sqrt(tl.maximum(squares / num - mean * mean, 0.0))


@triton.jit
def _thinned(x):
    """Of more than 1,024 numbers the highest of each so many that a thread has: a line through these is one, too."""
    N: tl.constexpr = x.shape[0]
    if N > 1024:
        x = tl.max(x.reshape(N // 1024, 1024), 0)
    return x


@triton.jit
def line_of(orders, found, need):
    """A line (int32, an order) that at least `need` of the orders reach, and few more; all do if they are fewer.

    The k-th largest tile maximum is such a line for k tokens, since a tile's maximum is a token. It is found to within
    a few tiles, by counting above four pivots a round. The first are quantiles of a Gumbel law, which maxima of many
    values have (Fisher and Tippett, 1928): mostly one round does.

    orders: int32 [M]; found: what `survey` says of them; need: int32. Returns the line, and how many reach it. Pivots
    are above the lowest order of a finite value, so that no other reaches them.
    """
    highest, lowest, num, mean, deviation = found
    orders, reach = _thinned(orders), num
    low = tl.where(num < need, -LAST_ID, lowest)
    high = highest + 1
    pivots = _likely_lines(mean, deviation, need.to(tl.float32) / num, low, high)
    # Nothing is added to the need: of a row that lists all it is the largest number there is.
    while (reach - _LINE_SLACK > need) & (high != low + 1):
        lower, upper = _reaches(orders, pivots[0], pivots[1]), _reaches(orders, pivots[2], pivots[3])
        lower, upper = sum_two(lower, upper)
        for i in tl.static_range(4):
            count = ((lower if i < 2 else upper) >> (i % 2) * _COUNT_BITS) & 0xFFFF
            enough = count >= need
            low = tl.where(enough, pivots[i], low)
            reach = tl.where(enough, count, reach)
            high = tl.where(enough, high, tl.minimum(high, pivots[i]))
        # Orders of either sign: their distance needs all 32 bits.
        step = tl.maximum(((high - low).to(tl.uint32) // 5).to(tl.int32), 1)
        pivots = low + step, low + 2 * step, low + 3 * step, low + 4 * step
    return low, reach


@triton.jit
def _likely_lines(mean, deviation, share, low, high):
    """Four orders, ascending, between low and high: above them should lie little more or less than a share."""
    scale = deviation * _SCALE_OF_GUMBEL
    mode, log_share = mean - scale * _MEAN_OF_GUMBEL, tl.log2(share) * _LN2
    return (
        _likely_line(mode, scale, log_share, share, 1.7, 0.5306, low, high),
        _likely_line(mode, scale, log_share, share, 1.25, 0.2231, low, high),
        _likely_line(mode, scale, log_share, share, 1.1, 0.0953, low, high),
        _likely_line(mode, scale, log_share, share, 0.95, -0.0513, low, high),
    )


@triton.jit
def _likely_line(mode, scale, log_share, share, times: tl.constexpr, log_times: tl.constexpr, low, high):
    # log(-log(1 - s)) is near log(s) + s / 2.
    quantile = mode - scale * (log_share + log_times + share * (times / 2))
    return tl.minimum(tl.maximum(order_of(quantile), low + 1), high - 1)


@triton.jit
def _reaches(orders, pivot, next_pivot):
    """int32: two flags of 16 bits; there are fewer orders than 2^15."""
    return tl.where(orders >= pivot, 1, 0) + tl.where(orders >= next_pivot, _SECOND, 0)


@triton.jit
def select_tiles(lists, row, tile, selected):
    """Lists the ids of the selected tiles [T], ascending. A barrier must follow before they are read."""
    # See `select_groups`.
    at = tl.max_contiguous(tl.multiple_of(tl.cumsum(selected.to(tl.int32), 0) - 1, 4), 4)
    tl.store(lists.tile_ids + row * lists.width + at, tile, mask=selected)


@triton.jit
def clear_list(lists, row, ROOM: tl.constexpr):
    """Fills a list with what is after every token, so that it can be read without a mask. A barrier must follow."""
    tl.store(lists.keys + row * lists.room + tl.arange(0, ROOM), tl.full([ROOM], NO_KEY, tl.int64))


@triton.jit
def select_groups(lists, row, orders, best_groups, cut_order, cut_id):
    """Lists the groups of four that may have tokens which are not after (cut_order, cut_id), and their numbers.

    orders, best_groups: [T], of tile maxima and as in `Tiles`. Tiles of which one group does are listed by this group,
    from the front; the others by themselves, from the back: so the numbers are two. A barrier must follow.
    """
    tile = tl.arange(0, orders.shape[0])
    line = tl.maximum(cut_order, MINUS_INF_ORDER + 1)
    best = tile * GROUPS + group_of(best_groups)
    crowded = (others_of(best_groups) >= line) & ((orders > line) | (tile * TILE <= cut_id))
    alone = (others_of(best_groups) < line) & ((orders > line) | ((orders == line) & (best * GROUP <= cut_id)))
    flags = tl.where(alone, 1, tl.where(crowded, _SECOND, 0))
    up_to = tl.cumsum(flags, 0)
    before = up_to - flags
    at = tl.where(alone, before & 0xFFFF, lists.width - 1 - (before >> _COUNT_BITS))
    last: tl.constexpr = orders.shape[0] - 1
    # As if each four places were side by side, so that threads store what they have: else all is exchanged before. No
    # mask may be computed from such places: it would be taken to be the same for four.
    at = tl.max_contiguous(tl.multiple_of(at, 4), 4)
    tl.store(lists.tile_ids + row * lists.width + at, tl.where(alone, best, tile), mask=alone | crowded)
    # Who needs it waits for the list as well: quicker than a sum.
    tl.store(lists.numbers + 4 * row + tl.multiple_of(tile - last, 4), up_to, mask=tile == last)


@triton.jit
def load_numbers(lists, row):
    """How many groups, and how many tiles `select_groups` has listed."""
    number = tl.load(lists.numbers + 4 * row)
    return number & 0xFFFF, number >> _COUNT_BITS


@triton.jit
def begin_groups(rows, row, kind, lists, RAW: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr):
    """What `load_numbers` returns, and what `load_groups` returns of the first ones; a barrier comes before.

    kind: of `kind_of`, which who has it does not load behind what comes in turn.
    """
    tl.debug_barrier()
    num_alone, num_crowded = load_numbers(lists, row)
    group, raw, touched, new = load_groups(rows, row, kind, lists, 0, num_alone, num_crowded, RAW, ROOM, BLOCK)
    return num_alone, num_crowded, group, raw, touched, new


@triton.jit
def load_groups(
    rows,
    row,
    kind,
    lists,
    start,
    num_alone,
    num_crowded,
    RAW: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Selected groups from a place on, int32 [BLOCK], and what `values_of_groups` makes their values of.

    The first ROOM places are those of groups, then come the crowded tiles, all of each.
    """
    slot = start + tl.arange(0, BLOCK)
    is_alone, crowded = slot < ROOM, (slot - ROOM) // GROUPS
    exists = tl.where(is_alone, slot < num_alone, crowded < num_crowded)
    at = tl.where(is_alone, slot, lists.width - 1 - crowded)
    # All that there is room for, since the numbers may still be on their way.
    has_room = tl.where(is_alone, slot, crowded) < lists.width
    group = tl.load(lists.tile_ids + row * lists.width + at, mask=has_room, other=0)
    group = tl.where(exists, tl.where(is_alone, group, group * GROUPS + slot % GROUPS), 0)
    raw = load_raw(rows, row, _ids_of_groups(group), exists[:, None])
    # Without edits they are anything, since a loop carries them.
    touched, new = group, raw
    if rows.edits is not None and not RAW:
        touched, new = load_edits_of_groups(rows.edits, row, kind, group, _ids_of_groups(group), exists)
    return group, raw, touched, new


@triton.jit
def values_of_groups(rows, refused, row, kind, group, raw, touched, new, RAW: tl.constexpr):
    """Values of groups [BLOCK, 4], -inf where there is no group; the others: what `load_groups` returns.

    Put together where they are needed, since who edits a row would wait for its edits elsewhere. refused: as for
    `load_allowed`.
    """
    x = raw
    if not RAW:
        ids = _ids_of_groups(group)
        x = allowed(rows, refused, row, with_edits_of_groups(rows, kind, group, ids, x, touched, new), ids)
    return x


@triton.jit
def _ids_of_groups(group):
    return group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]


@triton.jit
def list_tokens(
    rows,
    refused,
    row,
    kind,
    lists,
    begun,
    cut_order,
    cut_id,
    RAW: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Lists the tokens of the selected groups that are not after (cut_order, cut_id).

    refused: as for `values_of_groups`; kind: of `kind_of`; begun: what `begin_groups` returns.

    Returns how many tokens there are, counting on to the block where the room ends, and the keys of all slots: if
    there are more than these, anything.
    """
    num_alone, num_crowded, group, raw, touched, new = begun
    # Every finite value reaches the lowest one.
    cut_value = value_of(tl.maximum(cut_order, MINUS_INF_ORDER + 1))
    num_slots = ROOM + num_crowded * GROUPS
    # More groups than room have more tokens.
    listed = tl.where(num_alone > ROOM, num_alone, 0)
    slot = tl.arange(0, ROOM)
    keys = tl.full([ROOM], NO_KEY, tl.int64)
    start = 0
    while (start < num_slots) & (listed <= ROOM):
        ids, own = _ids_of_groups(group), values_of_groups(rows, refused, row, kind, group, raw, touched, new, RAW)
        start += BLOCK
        if start < num_slots:
            # While these are listed.
            group, raw, touched, new = load_groups(
                rows, row, kind, lists, start, num_alone, num_crowded, RAW, ROOM, BLOCK
            )
        kept = own >= cut_value
        if cut_id != LAST_ID:
            kept = kept & ((own != cut_value) | (ids <= cut_id))
        own = tl.where(kept, own, MINUS_INF)
        # Of four neighbours seldom more than one is kept.
        number = tl.sum(kept.to(tl.int32), 1)
        flags = number + tl.where(number > 1, _SECOND, 0)
        up_to = tl.cumsum(flags, 0)
        first = listed + ((up_to - flags) & 0xFFFF)
        own = _put_best(lists, row, own, ids, number > 0, first, ROOM)
        place = tl.arange(0, BLOCK)
        tl.store(lists.numbers + 4 * row + 1 + place * 0, up_to, mask=place == BLOCK - 1)
        tl.debug_barrier()
        keys = load_keys(lists, row, slot)
        total = tl.load(lists.numbers + 4 * row + 1)
        if total >= _SECOND:
            taken = 1
            while taken < 4:
                own = _put_best(lists, row, own, ids, number > taken, first + taken, ROOM)
                taken += 1
            tl.debug_barrier()
            keys = load_keys(lists, row, slot)
        listed += total & 0xFFFF
    return listed, keys


@triton.jit
def _put_best(lists, row, x, ids, has_token, at, ROOM: tl.constexpr):
    """Lists the best token of each group [M, 4] at these places [M], and returns the groups without it."""
    value = tl.max(x, 1)
    token = tl.min(tl.where(x == value[:, None], ids, LAST_ID), 1)
    tl.store(lists.keys + row * lists.room + at, key_of(value, token), mask=has_token & (at < ROOM))
    return tl.where(ids == token[:, None], MINUS_INF, x)


@triton.jit
def load_keys(lists, row, slot):
    """Keys of the slots of a list."""
    return tl.load(lists.keys + row * lists.room + slot)


@triton.jit
def comes_before(value, token, other_value, other_token):
    """Whether a token is before another in the order (value desc, id asc)."""
    return (value > other_value) | ((value == other_value) & (token < other_token))


@triton.jit
def key_of(value, token):
    """int64, of tokens: larger for one that comes before, so that a pair takes one comparison."""
    return (order_of(value).to(tl.int64) << 32) + (LAST_ID - token)


@triton.jit
def token_of(key):
    """The id (int32) of a token, by its key."""
    return ((key & LAST_ID) ^ LAST_ID).to(tl.int32)


@triton.jit
def value_and_token(keys):
    """Values (float32) and ids (int32) of tokens, by their keys: -inf and LAST_ID for `NO_KEY`."""
    return value_of(keys >> 32), token_of(keys)


@triton.jit
def ranks_of_list(lists, row, listed, keys, slot, ROOM: tl.constexpr):
    """How many tokens of the list come before each of it, int32 [ROOM]; those after its end come last.

    By comparing all pairs, the others along axis 0, where threads add up alone: for so few tokens quicker than putting
    them in order. keys: of all slots.
    """
    rank = tl.zeros([2, ROOM], tl.int32)
    following = load_keys(lists, row, tl.arange(0, _CHUNK))
    start = 0
    while start < listed:
        others = following
        start += _CHUNK
        # While these are compared.
        following = load_keys(lists, row, tl.minimum(start, ROOM - _CHUNK) + tl.arange(0, _CHUNK))
        earlier = others[:, None] > keys[None, :]
        rank += tl.sum(earlier.to(tl.int32).reshape(_CHUNK // 2, 2, ROOM), 0)
    return tl.where(slot < listed, tl.sum(rank, 0), slot)
