"""Top tokens of rows that draw without a list: greedy ones, and those without filters."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import fit_a_list, num_top_of, put_columns, result_of
from drawlot.kernels.triton.decided import ONE_SHARE, decide
from drawlot.kernels.triton.from_list import begin_list, has_top, list_row
from drawlot.kernels.triton.listing import clear_list, ranks_of_list, survey, value_and_token
from drawlot.kernels.triton.pdl import wait_for_previous
from drawlot.kernels.triton.raw_mass import raw_apart, raw_law
from drawlot.kernels.triton.states import filters_of, scan_scale, temperature_of
from drawlot.kernels.triton.summary import ALL_COLUMNS
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, MINUS_INF_ORDER, is_edited, load_raw, value_of

MOST_TOP = tl.constexpr(96)
"""Of more tokens a list may have too little room: those that reach a line are some more than it is drawn for"""


@triton.jit
def wants_a_list(all_columns, wants, edited, num_top, ROOM: tl.constexpr):
    """Whether a list may tell the top tokens of a row: it wants some, not too many, and its values are raw ones."""
    return wants & (edited == 0) & (num_top > 0) & (num_top <= MOST_TOP) & fit_a_list(all_columns, ROOM)


@triton.jit
def draws_without(temperature, filtered, num_tiles, ROOM: tl.constexpr):
    """Whether a row, of which so many tiles have a token, draws without a list, whatever it is."""
    return (temperature == 0) | ((filtered == 0) & (num_tiles > ROOM))


@triton.jit
def put_top(
    rows,
    lists,
    all_columns,
    summary,
    row,
    begun,
    token,
    row_max,
    raw_log_mass,
    num_top,
    LOGITS: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Stores the columns of a row whose values are raw ones, but for its token's rank if the list does not hold it.

    begun: of `begin_list`, for num_top tokens. Returns whether the list has these, else nothing is stored; and whether
    it holds the token.
    """
    nothing = tl.zeros([], tl.int32)
    listed, keys = list_row(rows, None, lists, row, nothing, begun, ROOM, BLOCK)
    tells, holds = tells_top(all_columns, num_top, listed, begun[0], ROOM), row < 0
    if tells:
        ids = _put_listed(lists, all_columns, row, listed, keys, token, row_max, raw_log_mass, num_top, LOGITS, ROOM)
        tl.store(summary.rank + row, ALL_COLUMNS)
        holds = tl.max((ids == token).to(tl.int32)) != 0
        if holds == 0:
            put_own(rows, all_columns, row, token, row_max, raw_log_mass, LOGITS)
    return tells, holds


@triton.jit
def tells_top(all_columns, num_top, listed, line, ROOM: tl.constexpr):
    """Whether a list of so many tokens, all that reach a line, has the top ones."""
    return (listed <= ROOM) & has_top(num_top, listed, line, all_columns, True, ROOM)


@triton.jit
def _put_listed(
    lists,
    all_columns,
    row,
    listed,
    keys,
    token,
    row_max,
    raw_log_mass,
    num_top,
    LOGITS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Stores the top tokens of a list, and the row's token if it is one of the list; returns their ids."""
    before = ranks_of_list(lists, row, listed, keys, tl.arange(0, ROOM), ROOM)
    value, ids = value_and_token(keys)
    logprobs = result_of(value, row_max, raw_log_mass, raw_log_mass.to(tl.float64), True, LOGITS)
    put_columns(all_columns, row, ids, logprobs, before, tl.minimum(num_top, listed), token)
    return ids


@triton.jit
def put_own(rows, all_columns, row, token, row_max, raw_log_mass, LOGITS: tl.constexpr):
    """Stores the first column of a row whose values are raw ones: its token and the logprob."""
    own = token + tl.arange(0, 1)
    x = load_raw(rows, row, own, own >= 0)
    at = row * all_columns.count + tl.arange(0, 1)
    tl.store(all_columns.ids + at, own)
    tl.store(all_columns.logprobs + at, result_of(x, row_max, raw_log_mass, raw_log_mass.to(tl.float64), True, LOGITS))


@triton.jit
def put_top_aside(
    rows,
    states,
    tiles,
    lists,
    wanted,
    all_columns,
    summary,
    row,
    LOGITS: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Stores all columns but the first of a row that draws without a list, while another program draws it.

    Says in the place of the row's rank whether it has, and counts its share of the row decided. lists: of its own.
    """
    clear_list(lists, row, ROOM)
    state = tl.load(states.index + row)
    is_row = state >= 0
    state = tl.maximum(state, 0)
    temperature, scale = temperature_of(states, state), scan_scale(states, state)
    top_k, top_p, min_p = filters_of(states, state)
    filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
    wants, num_top = is_row & (tl.load(wanted.wanted + state) != 0), num_top_of(wanted, state, ROOM)
    wait_for_previous(OVERLAP)
    leaves = row < 0
    if wants_a_list(all_columns, wants, is_edited(rows, row), num_top, ROOM) & ((temperature == 0) | (filtered == 0)):
        tile = tl.arange(0, T)
        at, exists = row * tiles.stride + tile, tile < tiles.num
        maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
        sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
        best_groups = tl.load(tiles.best_groups + at, mask=exists, other=MINUS_INF_ORDER)
        found = survey(maxima, sums != sums)
        is_good = (found[0] != LAST_ID) & (found[2] > 0)
        if is_good & draws_without(temperature, filtered, found[2], ROOM):
            filters, of_tiles, nothing = (top_k, top_p, min_p), (maxima, best_groups, maxima), tl.zeros([], tl.int32)
            begun = begin_list(
                rows, None, row, nothing, lists, of_tiles, found, num_top, temperature, filters, T, ROOM, BLOCK, False
            )
            row_max, log_mass, _ = raw_law(
                tiles, at, exists, maxima, sums, value_of(found[0]), raw_apart(rows, scale, row)
            )
            listed, keys = list_row(rows, None, lists, row, nothing, begun, ROOM, BLOCK)
            leaves = tells_top(all_columns, num_top, listed, begun[0], ROOM) == 0
            tl.store(summary.rank + row, tl.where(leaves, 0, ALL_COLUMNS))
            if leaves == 0:
                none = tl.full([], -1, tl.int32)
                _put_listed(lists, all_columns, row, listed, keys, none, row_max, log_mass, num_top, LOGITS, ROOM)
    decide(tiles, leaves, ONE_SHARE, OVERLAP)
