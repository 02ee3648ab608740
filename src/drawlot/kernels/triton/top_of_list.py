"""Top tokens of rows that draw without a list: greedy ones, and those without filters."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import put_columns, result_of
from drawlot.kernels.triton.from_list import has_top, list_row
from drawlot.kernels.triton.listing import ranks_of_list, value_and_token
from drawlot.kernels.triton.summary import ALL_COLUMNS
from drawlot.kernels.triton.values import load_raw

MOST_TOP = tl.constexpr(96)
"""Of more tokens a list may have too little room: those that reach a line are some more than it is drawn for"""


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
    listed, keys = list_row(rows, None, lists, row, begun, ROOM, BLOCK)
    tells, holds = (listed <= ROOM) & has_top(num_top, listed, begun[0], all_columns, True, ROOM), row < 0
    if tells:
        before = ranks_of_list(lists, row, listed, keys, tl.arange(0, ROOM), ROOM)
        value, ids = value_and_token(keys)
        temperature = raw_log_mass.to(tl.float64)
        logprobs = result_of(value, row_max, raw_log_mass, temperature, True, LOGITS)
        put_columns(all_columns, row, ids, logprobs, before, tl.minimum(num_top, listed), token)
        tl.store(summary.rank + row, ALL_COLUMNS)
        holds = tl.max((ids == token).to(tl.int32)) != 0
        if holds == 0:
            own = token + tl.arange(0, 1)
            logprob = result_of(load_raw(rows, row, own, own >= 0), row_max, raw_log_mass, temperature, True, LOGITS)
            at = row * all_columns.count + tl.arange(0, 1)
            tl.store(all_columns.ids + at, own)
            tl.store(all_columns.logprobs + at, logprob)
    return tells, holds
