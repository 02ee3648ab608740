"""What one read of a whole row says of its proposals: whether one of them is what the row draws, and its rank.

A token is kept if what comes before it weighs less than top_p asks for. So a read adds up what comes before the token
that a proposal needs, and what the tokens from `low` on weigh, as if all of which were kept it was raced. Rows with
top_k are left: a sample says too badly where few tokens end.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import put_column
from drawlot.kernels.triton.lowered import slot_of_lowered
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
from drawlot.kernels.triton.scan import lay_row
from drawlot.kernels.triton.settling import MARGIN, float_at, leave_for_cut, proposal_at, put_token
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import NO_TOKEN, NUM_SETTLED, put
from drawlot.kernels.triton.together import count_up, is_last_of, wait_for
from drawlot.kernels.triton.values import MINUS_INF
from drawlot.kernels.triton.weigh_proposals import (
    BEFORE,
    FROM_LINE,
    FROM_LOW,
    NUM_COUNTS,
    PROPOSED,
    RANK,
    READ,
    load_part,
    weigh,
)
from drawlot.outputs import RowStatus

_EMPTY = tl.constexpr(int(RowStatus.EMPTY_SUPPORT))
_IS_EMPTY = tl.constexpr(-1)
"""In the place of how many proposals there are: the row has no token"""
_LAID_TILES = tl.constexpr(32)
"""That a row is laid over at a time"""


@triton.jit
def begin_counts(whole, slot):
    """Sets them to 0."""
    place = tl.arange(0, NUM_COUNTS)
    tl.store(whole.counts + slot * NUM_COUNTS + place, tl.zeros([NUM_COUNTS], tl.int64))


@triton.jit
def begin_row(rows, tiles, lists, whole, summary, slot, WIDE: tl.constexpr, T: tl.constexpr, ROOM: tl.constexpr):
    """Has a row make its proposals, or none; says if it has no token, and lays it over if that has been put off."""
    request = request_of(whole, slot)
    top_k, _top_p, _min_p = request[1]
    kind = tl.zeros([], tl.int32)
    if rows.edits_of is not None and tiles.edit_bounds is not None:
        kind = tl.load(rows.edits.kind + request[0])
    if (top_k <= 0) & (kind >= 0):
        propose(rows, tiles, lists, whole, slot, request, WIDE, T, ROOM)
    else:
        num = 0
        if rows.edits_of is not None and tiles.edit_bounds is not None:
            row = request[0]
            if kind < 0:
                # As `states.bits_for_scan` says.
                scale = tl.where(top_k > 0, 1.0, scale_of(request[2][1]))
                lay_row(rows, tiles, row, slot_of_lowered(kind), scale, _LAID_TILES)
                tile = tl.arange(0, T)
                maxima = tl.load(tiles.maxima + row * tiles.stride + tile, mask=tile < tiles.num, other=MINUS_INF)
                row_max = tl.max(maxima)
                tl.store(summary.floats + row, row_max)
                num = tl.where(row_max == MINUS_INF, _IS_EMPTY, 0)
        tl.store(whole.proposals + slot * RECORD + NUM, num)
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
    x = load_part(rows, row, part, stop, TILES)
    counts, record = whole.counts + slot * NUM_COUNTS, whole.proposals + slot * RECORD
    wait_for(counts + PROPOSED, 1)
    num, limits = tl.load(record + NUM), (float_at(record + LOW), float_at(record + LINE))
    # Without top_p nothing is in question. Nearly all rows make one proposal, and few more than two.
    if filters[1] < 1:
        if num == 1:
            weigh(rows, counts, record, num, request, limits, x, part, stop, 1, TILES)
        if num == 2:
            weigh(rows, counts, record, num, request, limits, x, part, stop, 2, TILES)
        if num > 2:
            weigh(rows, counts, record, num, request, limits, x, part, stop, MOST, TILES)
    if is_last_of(counts + READ, stop - part, num_parts):
        _settle(states, tiles, whole, columns, drawn, summary, slot, request, num, limits, RAW, LOGITS)


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
    if num == _IS_EMPTY:
        put(drawn, summary, row, -1, _EMPTY, NO_TOKEN, 0.0, 0.0)
        if columns is not None:
            put_column(columns, row, tl.full([], -1, tl.int32), MINUS_INF, 0, row >= 0)
    elif chosen >= 0:
        # Nothing was read without top_p.
        rank = tl.where(top_p < 1, 1 + rank, 0)
        put_token(states, tiles, whole, columns, drawn, summary, row, value, token, rank, wants, RAW, LOGITS)
    else:
        leave_for_cut(tiles, whole, columns, summary, row, wants)
    count_up(tiles.control + NUM_SETTLED)
