"""What one read of a whole row says of its proposals: whether one of them is what the row draws, and its rank.

A token is kept if what comes before it weighs less than top_p asks for. So a read adds up what comes before the token
that a proposal needs. Of later proposals it adds up as well what the tokens from `low` on weigh, as if all of which
were kept it was raced. Rows with top_k are left: a sample says too badly where few tokens end.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of, mass_of_tokens
from drawlot.kernels.triton.likely_cut import NUM_BINS
from drawlot.kernels.triton.proposal import (
    EACH,
    FIRST,
    IS_FIRST,
    LATER,
    LINE,
    LOW,
    NUM,
    RECORD,
    filters_of_request,
    law_of_request,
    propose_first,
    propose_later,
)
from drawlot.kernels.triton.reduce import FIXED_POINT, sum_four, sum_two
from drawlot.kernels.triton.scan import GROUP
from drawlot.kernels.triton.settling import (
    MARGIN,
    float_at,
    leave_for_cut,
    leave_for_later,
    proposal_at,
    put_token,
)
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import NUM_READ, NUM_SETTLED
from drawlot.kernels.triton.together import count_up, is_last_of, wait_for
from drawlot.kernels.triton.values import TILE, ids_of, load_values, order_of, value_of

NUM_COUNTS = tl.constexpr(16)
BEFORE_FIRST, RANK_FIRST, PROPOSED_FIRST, READ_FIRST, IS_SETTLED = (tl.constexpr(i) for i in range(5))
FROM_LOW, FROM_LINE, RANKS, PROPOSED, READ, BEFORE = (tl.constexpr(i) for i in (5, 6, 7, 9, 10, 12))
"""Places in `Whole.counts`. For the first proposal: mass of what comes before the token that it needs, and number of
tokens before its own; whether it is there, how many parts are read, whether it is right. For the later ones: mass of
the tokens from `low` on, and of those that min_p keeps; of each two how many tokens come before the first, and above 32
bits the second; whether they are there, and how many parts are read; of each the mass before the needed token"""

_THREADS = tl.constexpr(256)


@triton.jit
def begin_counts(whole, slot):
    """Sets them to 0, and what a sample adds up."""
    place, bin = tl.arange(0, NUM_COUNTS), tl.arange(0, NUM_BINS)
    tl.store(whole.counts + slot * NUM_COUNTS + place, tl.zeros([NUM_COUNTS], tl.int64))
    tl.store(whole.bins + slot * NUM_BINS + bin, tl.zeros([NUM_BINS], tl.int64))


@triton.jit
def begin_row(rows, tiles, whole, columns, summary, slot, WIDE: tl.constexpr, T: tl.constexpr):
    """Has a row make its first proposal, if it may; else it is left for later ones, or for its cut."""
    top_k, _top_p, min_p = filters_of_request(whole, slot)
    counts = whole.counts + slot * NUM_COUNTS
    if (top_k <= 0) & (min_p <= 0):
        propose_first(rows, tiles, whole, slot, WIDE, T)
        count_up(counts + PROPOSED_FIRST)
    else:
        row, _, _ = law_of_request(whole, slot)
        if top_k > 0:
            leave_for_cut(tiles, whole, columns, summary, slot, row)
        else:
            leave_for_later(tiles, whole, slot)
        tl.store(whole.proposals + slot * RECORD + IS_FIRST, -1)
        count_up(counts + PROPOSED_FIRST)
        count_up(tiles.control + NUM_READ)


@triton.jit
def go_on_with_row(rows, tiles, whole, slot, WIDE: tl.constexpr, T: tl.constexpr):
    """Has a row make its later proposals, while the first one is being read."""
    top_k, _top_p, _min_p = filters_of_request(whole, slot)
    counts = whole.counts + slot * NUM_COUNTS
    if top_k <= 0:
        propose_later(rows, tiles, whole, slot, counts + IS_SETTLED, WIDE, T)
    count_up(counts + PROPOSED)


@triton.jit
def read_for_first(
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
    row, row_max, temperature = law_of_request(whole, slot)
    counts, record, begin = whole.counts + slot * NUM_COUNTS, whole.proposals + slot * RECORD, part
    # Before it is known what to look for.
    x = _load(rows, row, part, stop, TILES)
    wait_for(counts + PROPOSED_FIRST, 1)
    if tl.load(record + IS_FIRST) >= 0:
        scale = scale_of(temperature)
        needed, needed_id, value, token = proposal_at(record + FIRST)
        before, rank = tl.zeros([_THREADS], tl.int64), tl.zeros([_THREADS], tl.int32)
        while part < stop:
            next_x = _load(rows, row, part + 1, stop, TILES)
            tile = part * TILES + tl.arange(0, TILES)
            mass = mass_of_tokens(x, row_max, scale)
            before += _mass_of_some(x >= _least_before(tile, needed, needed_id), mass)
            rank += _of_threads(_is_less(x, _least_before(tile, value, token)))
            part += 1
            x = next_x
        # So far counted are those that do not come before.
        ranks = (part - begin) * (TILES * TILE // _THREADS) - rank
        before_sum, ranks_sum = sum_two(before, ranks.to(tl.int64))
        if begin == 0:
            before_sum += _mass_of_equals(rows, row, needed, needed_id, row_max, scale)
            ranks_sum += _num_of_equals(rows, row, value, token)
        tl.atomic_add(counts + BEFORE_FIRST, before_sum, sem="relaxed")
        tl.atomic_add(counts + RANK_FIRST, ranks_sum, sem="relaxed")
        if is_last_of(counts + READ_FIRST, stop - begin, num_parts):
            limit = tl.load(whole.floats + 4 * slot + 1) * tl.load(whole.all_masses + slot).to(tl.float64)
            is_right = tl.load(counts + BEFORE_FIRST) < limit * (1 - MARGIN)
            if is_right & (tl.load(record + IS_FIRST) > 0):
                tl.atomic_add(counts + IS_SETTLED, 1, sem="relaxed")
                its_rank = 1 + tl.load(counts + RANK_FIRST)
                put_token(states, tiles, whole, columns, drawn, summary, slot, row, value, token, its_rank, RAW, LOGITS)
            else:
                leave_for_later(tiles, whole, slot)
            count_up(tiles.control + NUM_READ)


@triton.jit
def read_for_later(
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
    """As `read_for_first`, for the later proposals."""
    row, row_max, temperature = law_of_request(whole, slot)
    counts, record, begin = whole.counts + slot * NUM_COUNTS, whole.proposals + slot * RECORD, part
    _top_k, top_p, min_p = filters_of_request(whole, slot)
    # Before it is known what to look for.
    x = _load(rows, row, part, stop, TILES)
    wait_for(counts + PROPOSED, 1)
    num, scale = tl.load(record + NUM), scale_of(temperature)
    low, line = float_at(record + LOW), float_at(record + LINE)
    first = 0
    # Without top_p there is nothing in question.
    while (first < num) & (top_p < 1):
        # Two at a time; without a second one the first stands for it.
        has_next = first + 1 < num
        needed, needed_id, value, token = proposal_at(record + LATER + EACH * first)
        at_next = record + LATER + EACH * tl.minimum(first + 1, num - 1)
        next_needed, next_needed_id, next_value, next_token = proposal_at(at_next)
        from_low, from_line = tl.zeros([_THREADS], tl.int64), tl.zeros([_THREADS], tl.int64)
        before, next_before = tl.zeros([_THREADS], tl.int64), tl.zeros([_THREADS], tl.int64)
        rank, next_rank = tl.zeros([_THREADS], tl.int32), tl.zeros([_THREADS], tl.int32)
        part = begin
        while part < stop:
            # After the last part the first, for the next two.
            next_x = _load(rows, row, tl.where(part + 1 < stop, part + 1, begin), stop, TILES)
            tile = part * TILES + tl.arange(0, TILES)
            mass = mass_of_tokens(x, row_max, scale)
            from_low += _mass_of_some(x >= low, mass)
            if min_p > 0:
                from_line += _mass_of_some(x >= line, mass)
            before += _mass_of_some(x >= _least_before(tile, needed, needed_id), mass)
            rank += _of_threads(_is_less(x, _least_before(tile, value, token)))
            if has_next:
                next_before += _mass_of_some(x >= _least_before(tile, next_needed, next_needed_id), mass)
                next_rank += _of_threads(_is_less(x, _least_before(tile, next_value, next_token)))
            part += 1
            x = next_x
        each = (part - begin) * (TILES * TILE // _THREADS)
        ranks = ((each - next_rank).to(tl.int64) << 32) + (each - rank)
        from_low_sum, before_sum, next_before_sum, ranks_sum = sum_four(from_low, before, next_before, ranks)
        if begin == 0:
            before_sum += _mass_of_equals(rows, row, needed, needed_id, row_max, scale)
            ranks_sum += _num_of_equals(rows, row, value, token)
            if has_next:
                next_before_sum += _mass_of_equals(rows, row, next_needed, next_needed_id, row_max, scale)
                ranks_sum += _num_of_equals(rows, row, next_value, next_token) << 32
        tl.atomic_add(counts + BEFORE + first, before_sum, sem="relaxed")
        tl.atomic_add(counts + BEFORE + first + 1, next_before_sum, sem="relaxed")
        tl.atomic_add(counts + RANKS + first // 2, ranks_sum, sem="relaxed")
        if first == 0:
            tl.atomic_add(counts + FROM_LOW, from_low_sum, sem="relaxed")
            if min_p > 0:
                tl.atomic_add(counts + FROM_LINE, tl.sum(from_line), sem="relaxed")
        first += 2
    if is_last_of(counts + READ, stop - begin, num_parts):
        _settle(states, tiles, whole, columns, drawn, summary, slot, row, RAW, LOGITS)


@triton.jit
def _settle(states, tiles, whole, columns, drawn, summary, slot, row, RAW: tl.constexpr, LOGITS: tl.constexpr):
    """Stores what the later proposals say of a row whose parts are read, if one is right."""
    _top_k, top_p, min_p = filters_of_request(whole, slot)
    counts, record = whole.counts + slot * NUM_COUNTS, whole.proposals + slot * RECORD
    num, all_mass = tl.load(record + NUM), tl.load(whole.all_masses + slot)
    if min_p > 0:
        all_mass = tl.load(counts + FROM_LINE)
    limit = top_p * all_mass.to(tl.float64)
    surely_less, surely_enough = limit * (1 - MARGIN), limit * (1 + MARGIN)
    # What min_p drops nobody keeps.
    holds = (float_at(record + LOW) <= float_at(record + LINE)) | (tl.load(counts + FROM_LOW) >= surely_enough)
    chosen, number = tl.where((top_p >= 1) & (num > 0), 0, -1), 0
    while holds & (number < num) & (top_p < 1):
        before = tl.load(counts + BEFORE + number)
        chosen = tl.where(before < surely_less, number, chosen)
        # Only what a proposal needs less than surely says that the next one is right.
        holds = before >= surely_enough
        number += 1
    if chosen >= 0:
        _, _, value, token = proposal_at(record + LATER + EACH * chosen)
        ranks = tl.load(counts + RANKS + chosen // 2)
        rank = 1 + tl.where(chosen % 2 == 0, ranks & 0xFFFFFFFF, ranks >> 32)
        # Nothing was read without top_p.
        rank = tl.where(top_p < 1, rank, 0)
        put_token(states, tiles, whole, columns, drawn, summary, slot, row, value, token, rank, RAW, LOGITS)
    else:
        leave_for_cut(tiles, whole, columns, summary, slot, row)
    count_up(tiles.control + NUM_SETTLED)


@triton.jit
def _load(rows, row, part, stop, TILES: tl.constexpr):
    """Values of a part [TILES, 128], none from `stop` on."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < tl.minimum(rows.num_tiles, stop * TILES)
    return load_values(rows, row, ids_of(tile), exists[:, None])


@triton.jit
def _least_before(tile, value, token):
    """[M, 1]: the values of tiles [M] from these on come before a token, but for equal ones of its own tile.

    Of equal tokens those with lower ids come before: all in tiles before its own, none in those after.
    """
    least = tl.where(tile < token // TILE, value, value_of(order_of(value) + 1))
    # Of the two zeros this one alone is no more than both, by the sign of a difference. As a literal it would lose its.
    minus_zero = tl.full(least.shape, -(2**31), tl.int32).to(tl.float32, bitcast=True)
    return tl.where(least == 0, minus_zero, least)[:, None]


@triton.jit
def _is_less(x, least):
    """int32: 1 where a value is less, by the sign of the difference, which takes no flags."""
    return ((x - least).to(tl.int32, bitcast=True) >> 31) & 1


@triton.jit
def _num_of_equals(rows, row, value, token):
    """int64: how many equal tokens of its tile come before a token."""
    ids = token // TILE * TILE + tl.arange(0, TILE)
    return tl.sum(((load_values(rows, row, ids, ids < token)) == value).to(tl.int64))


@triton.jit
def _mass_of_equals(rows, row, value, token, row_max, scale):
    """int64: what these weigh."""
    mass = (mass_of(value + tl.zeros([1], tl.float32), row_max, scale) * FIXED_POINT).to(tl.int64)
    return _num_of_equals(rows, row, value, token) * tl.max(mass)


@triton.jit
def _mass_of_some(which, mass):
    """int64 [_THREADS]: what some tokens of a block weigh."""
    return (_of_threads(tl.where(which, mass, 0.0)) * FIXED_POINT).to(tl.int64)


@triton.jit
def _of_threads(x):
    """[_THREADS]: sums of what each thread of 8 warps has of a block [M, 128]."""
    N: tl.constexpr = x.shape[0] * x.shape[1]
    return tl.sum(tl.sum(x.reshape(N // (_THREADS * GROUP), _THREADS, GROUP), 2), 0)
