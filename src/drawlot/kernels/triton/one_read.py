"""What one read of a whole row says of its proposals: whether one of them is what the row draws, and its rank.

A token is kept if what comes before it weighs less than top_p asks for. So a read adds up what comes before the token
that a proposal needs, and what the tokens from `low` on weigh, as if all of which were kept it was raced. Rows with
top_k are left: a sample says too badly where few tokens end.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of_tokens
from drawlot.kernels.triton.proposal import (
    EACH,
    FIRST,
    LINE,
    LOW,
    MOST,
    NUM,
    RECORD,
    propose,
    request_of,
)
from drawlot.kernels.triton.reduce import FIXED_POINT, sum_four
from drawlot.kernels.triton.settling import MARGIN, float_at, leave_for_cut, proposal_at, put_token
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import NUM_SETTLED
from drawlot.kernels.triton.together import count_up, is_last_of, wait_for
from drawlot.kernels.triton.values import TILE, ids_of, load_all_values, order_of, value_of

NUM_COUNTS = tl.constexpr(16)
PROPOSED, READ, FROM_LOW, FROM_LINE, BEFORE, RANK = (tl.constexpr(i) for i in (0, 1, 2, 3, 4, 8))
"""Places in `Whole.counts`: whether proposals are there, and how many parts are read; mass of the tokens from `low` on,
and of those that min_p keeps; of each proposal the mass before the token that it needs, and how many come before it"""

_THREADS = tl.constexpr(256)


@triton.jit
def begin_counts(whole, slot):
    """Sets them to 0."""
    place = tl.arange(0, NUM_COUNTS)
    tl.store(whole.counts + slot * NUM_COUNTS + place, tl.zeros([NUM_COUNTS], tl.int64))


@triton.jit
def begin_row(rows, tiles, whole, slot, WIDE: tl.constexpr, T: tl.constexpr):
    """Has a row make its proposals, or none."""
    request = request_of(whole, slot)
    top_k, _top_p, _min_p = request[1]
    if top_k <= 0:
        propose(rows, tiles, whole, slot, request, WIDE, T)
    else:
        tl.store(whole.proposals + slot * RECORD + NUM, 0)
    count_up(whole.counts + slot * NUM_COUNTS + PROPOSED)


@triton.jit
def read_row(
    rows,
    states,
    tiles,
    whole,
    columns,
    drawn,
    summary,
    slot,
    part,
    stop,
    num_parts,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Reads some of a row's parts, of TILES tiles; who is last settles the row, or leaves it."""
    # All that is known before the proposals.
    request = request_of(whole, slot)
    row, filters, _law, _key, _wants = request
    x = _load(rows, row, part, stop, TILES)
    counts, record = whole.counts + slot * NUM_COUNTS, whole.proposals + slot * RECORD
    wait_for(counts + PROPOSED, 1)
    num, limits = tl.load(record + NUM), (float_at(record + LOW), float_at(record + LINE))
    # Without top_p nothing is in question. Nearly all rows make one proposal, and few more than two.
    if filters[1] < 1:
        if num == 1:
            _read(rows, counts, 0, request, limits, proposal_at(record + FIRST), None, x, part, stop, TILES)
        number = tl.where(num > 1, 0, num)
        while number < num:
            one, two = proposal_at(record + FIRST + EACH * number), proposal_at(record + FIRST + EACH * (number + 1))
            if number > 0:
                x = _load(rows, row, part, stop, TILES)
            _read(rows, counts, number, request, limits, one, two, x, part, stop, TILES)
            number += 2
    if is_last_of(counts + READ, stop - part, num_parts):
        _settle(states, tiles, whole, columns, drawn, summary, slot, request, num, limits, RAW, LOGITS)


@triton.jit
def _read(rows, counts, number, request, limits, one, two, x, part, stop, TILES: tl.constexpr):
    """Adds what parts hold to a row's counts.

    number: of the first of two proposals, of which the other may be None; x: values of the first part.
    """
    row, filters, law, _key, _wants = request
    _top_k, _top_p, min_p = filters
    row_max, temperature = law
    low, line = limits
    scale, begin = scale_of(temperature), part
    # What a thread loads at once: sums of anything else would go through shared memory.
    PER: tl.constexpr = 128 // rows.logits.dtype.element_ty.primitive_bitwidth
    from_low, from_line = tl.zeros([_THREADS], tl.int64), tl.zeros([_THREADS], tl.int64)
    before, other_before = from_low, from_low
    less, other_less = tl.zeros([_THREADS], tl.int32), tl.zeros([_THREADS], tl.int32)
    while part < stop:
        next_x = _load(rows, row, part + 1, stop, TILES)
        mass = mass_of_tokens(x, row_max, scale)
        from_low += _mass_of_some(x >= low, mass, PER)
        if min_p > 0:
            from_line += _mass_of_some(x >= line, mass, PER)
        before, less = _added(before, less, one, x, mass, part, TILES, PER)
        if _is_part_of(one, part, TILES):
            before, less = _with_equals(before, less, one, x, mass, part, TILES, PER)
        if two is not None:
            other_before, other_less = _added(other_before, other_less, two, x, mass, part, TILES, PER)
            if _is_part_of(two, part, TILES):
                other_before, other_less = _with_equals(other_before, other_less, two, x, mass, part, TILES, PER)
        part += 1
        x = next_x
    # Those that do not come before are counted.
    num = (part - begin) * (TILES * TILE // _THREADS)
    ranks = (num - less).to(tl.int64) + ((num - other_less).to(tl.int64) << 32)
    from_low_sum, before_sum, other_sum, ranks_sum = sum_four(from_low, before, other_before, ranks)
    tl.atomic_add(counts + BEFORE + number, before_sum, sem="relaxed")
    tl.atomic_add(counts + RANK + number, ranks_sum & 0xFFFFFFFF, sem="relaxed")
    if two is not None:
        tl.atomic_add(counts + BEFORE + number + 1, other_sum, sem="relaxed")
        tl.atomic_add(counts + RANK + number + 1, ranks_sum >> 32, sem="relaxed")
    if number == 0:
        tl.atomic_add(counts + FROM_LOW, from_low_sum, sem="relaxed")
        if min_p > 0:
            tl.atomic_add(counts + FROM_LINE, tl.sum(from_line), sem="relaxed")


@triton.jit
def _added(before, less, proposal, x, mass, part, TILES: tl.constexpr, PER: tl.constexpr):
    """`before`, with what comes before a proposal's needed token in a part, and `less`, with what not before its own.

    Equal tokens of a token's own part are left out of what comes before it.
    """
    needed, needed_id, value, token = proposal
    before += _mass_of_some(x >= _least_before(part, needed, needed_id, TILES), mass, PER)
    less += _of_threads(_is_less(x, _least_before(part, value, token, TILES)), PER)
    return before, less


@triton.jit
def _is_part_of(proposal, part, TILES: tl.constexpr):
    """Whether a part has the token that a proposal needs, or its own."""
    _needed, needed_id, _value, token = proposal
    return (_part_of(needed_id, TILES) == part) | (_part_of(token, TILES) == part)


@triton.jit
def _with_equals(before, less, proposal, x, mass, part, TILES: tl.constexpr, PER: tl.constexpr):
    """What `_added` returns, with the equal tokens that it leaves out."""
    needed, needed_id, value, token = proposal
    before += _mass_of_some(_is_equal_before(x, part, needed, needed_id, TILES), mass, PER)
    less -= _of_threads(_is_equal_before(x, part, value, token, TILES).to(tl.int32), PER)
    return before, less


@triton.jit
def _settle(
    states,
    tiles,
    whole,
    columns,
    drawn,
    summary,
    slot,
    request,
    num,
    limits,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
):
    """Stores what the proposals say of a row whose parts are read, if one is right."""
    row, filters, _law, _key, wants = request
    _top_k, top_p, min_p = filters
    low, line = limits
    counts, record = whole.counts + slot * NUM_COUNTS, whole.proposals + slot * RECORD
    from_low, rank = tl.load(counts + FROM_LOW), tl.load(counts + RANK)
    all_mass = tl.load(whole.all_masses + slot)
    if min_p > 0:
        all_mass = tl.load(counts + FROM_LINE)
    limit = top_p * all_mass.to(tl.float64)
    surely_less, surely_enough = limit * (1 - MARGIN), limit * (1 + MARGIN)
    # Without top_p the first is right. What min_p drops nobody keeps.
    holds, chosen = (low <= line) | (from_low >= surely_enough), tl.where((top_p >= 1) & (num > 0), 0, -1)
    _, _, value, token = proposal_at(record + FIRST)
    for number in tl.static_range(MOST):
        before, other_rank = tl.load(counts + BEFORE + number), tl.load(counts + RANK + number)
        _, _, other_value, other_token = proposal_at(record + FIRST + EACH * number)
        is_right = holds & (number < num) & (top_p < 1) & (before < surely_less)
        chosen = tl.where(is_right, number, chosen)
        value, token = tl.where(is_right, other_value, value), tl.where(is_right, other_token, token)
        rank = tl.where(is_right, other_rank, rank)
        # Only what a proposal needs less than surely says that the next one is right.
        holds = holds & (before >= surely_enough)
    if chosen >= 0:
        # Nothing was read without top_p.
        rank = tl.where(top_p < 1, 1 + rank, 0)
        put_token(states, tiles, whole, columns, drawn, summary, row, value, token, rank, wants, RAW, LOGITS)
    else:
        leave_for_cut(tiles, whole, columns, summary, row, wants)
    count_up(tiles.control + NUM_SETTLED)


@triton.jit
def _load(rows, row, part, stop, TILES: tl.constexpr):
    """Values of a part [TILES, 128], none from `stop` on."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < tl.minimum(rows.num_tiles, stop * TILES)
    return load_all_values(rows, row, ids_of(tile), exists[:, None])


@triton.jit
def _part_of(token, TILES: tl.constexpr):
    return token // (TILES * TILE)


@triton.jit
def _least_before(part, value, token, TILES: tl.constexpr):
    """The values of a part from this one on come before a token, but for equal ones of its own part.

    Of equal tokens those with lower ids come before: all in parts before its own, none in those after.
    """
    least = tl.where(part < _part_of(token, TILES), value, value_of(order_of(value) + 1))
    # Of the two zeros this one alone is no more than both, by the sign of a difference. As a literal it would lose its.
    minus_zero = tl.full([], -(2**31), tl.int32).to(tl.float32, bitcast=True)
    return tl.where(least == 0, minus_zero, least)


@triton.jit
def _is_equal_before(x, part, value, token, TILES: tl.constexpr):
    """Which equal tokens of a part come before a token, if it is its own."""
    ids = ids_of(part * TILES + tl.arange(0, TILES))
    return (x == value) & (ids < token) & (_part_of(token, TILES) == part)


@triton.jit
def _is_less(x, least):
    """int32: 1 where a value is less, by the sign of the difference, which takes no flags."""
    return ((x - least).to(tl.int32, bitcast=True) >> 31) & 1


@triton.jit
def _mass_of_some(which, mass, PER: tl.constexpr):
    """int64 [_THREADS]: what some tokens of a block weigh."""
    return (_of_threads(tl.where(which, mass, 0.0), PER) * FIXED_POINT).to(tl.int64)


@triton.jit
def _of_threads(x, PER: tl.constexpr):
    """[_THREADS]: sums of what each thread of 8 warps has of a block [M, 128], PER neighbours at a time."""
    N: tl.constexpr = x.shape[0] * x.shape[1]
    return tl.sum(tl.sum(x.reshape(N // (_THREADS * PER), _THREADS, PER), 2), 0)
