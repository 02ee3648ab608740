"""Logprobs in the four modes: the drawn token, its rank, the top tokens, the ids asked for."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import has_probability, law_of_row, load_as, result_of
from drawlot.kernels.triton.listing import (
    begin_groups,
    clear_list,
    line_of,
    list_tokens,
    load_keys,
    select_groups,
    survey,
    value_and_token,
)
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.ranks import count_in_tiles, select_tiles_before
from drawlot.kernels.triton.raw_mass import raw_apart
from drawlot.kernels.triton.slow_cut import cut_at_count
from drawlot.kernels.triton.states import scan_scale
from drawlot.kernels.triton.summary import ALL_COLUMNS
from drawlot.kernels.triton.values import (
    LAST_ID,
    MINUS_INF,
    MINUS_INF_ORDER,
    kind_of,
    order_of,
)

_BLOCK = tl.constexpr(128)
_CHUNK = tl.constexpr(32)


@triton.jit
def columns_kernel(
    rows,
    states,
    tiles,
    lists,
    wanted,
    drawn,
    summary,
    columns,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one row."""
    row = tl.program_id(0).to(tl.int64)
    follow(OVERLAP)
    fill_columns(rows, states, tiles, lists, wanted, drawn, summary, columns, row, RAW, LOGITS, T, ROOM, BLOCK, TILES)


# A function in machine code, too: who does without it goes on without its registers, and past fewer instructions.
@triton.jit(noinline=True)
def fill_columns(
    rows,
    states,
    tiles,
    lists,
    wanted,
    drawn,
    summary,
    columns,
    row,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
):
    """Stores the columns of a row, unless a list has told them already.

    RAW: of the model's logits, not of the processed distribution; LOGITS: no logarithms; ROOM, BLOCK: of lists, as for
    `finish_kernel`; TILES: that are read at a time where a list has no room.
    """
    rank = tl.load(summary.rank + row)
    if rank != ALL_COLUMNS:
        ids, logprobs = columns.ids + row * columns.count, columns.logprobs + row * columns.count
        start = 0
        while start < columns.count:
            column = start + tl.arange(0, _BLOCK)
            tl.store(ids + column, -1, mask=column < columns.count)
            tl.store(logprobs + column, MINUS_INF, mask=column < columns.count)
            start += _BLOCK
        token = tl.load(drawn.token_ids + row).to(tl.int32)
        # A skipped row has no token, and its state is not there to be read.
        state = tl.load(states.index + row)
        if (token >= 0) & (tl.load(wanted.wanted + tl.maximum(state, 0)) != 0):
            tl.debug_barrier()
            law = law_of_row(states, summary, state, row, RAW)
            own = token + tl.arange(0, 1)
            x = load_as(rows, row, own, own >= 0, RAW)
            tl.store(ids + tl.arange(0, 1), own)
            tl.store(logprobs + tl.arange(0, 1), _result(x, own, law, RAW, LOGITS))
            _put_given(rows, row, wanted, state, law, ids, logprobs, RAW, LOGITS)
            num_top = tl.load(wanted.num_top + state)
            if (num_top > 0) | (rank == 0):
                tile = tl.arange(0, T)
                at = row * tiles.stride + tile
                maxima = tl.load(tiles.maxima + at, mask=tile < tiles.num, other=MINUS_INF)
                best_groups = tl.load(tiles.best_groups + at, mask=tile < tiles.num, other=MINUS_INF_ORDER)
                if RAW and tiles.raw_sums is not None:
                    if raw_apart(rows, scan_scale(states, state), row):
                        maxima = tl.load(tiles.raw_maxima + at, mask=tile < tiles.num, other=MINUS_INF)
                        # Any group may have the maximum.
                        best_groups = order_of(maxima)
                if (num_top > 0) & (num_top <= ROOM):
                    _put_top(
                        rows,
                        row,
                        lists,
                        maxima,
                        best_groups,
                        num_top,
                        law,
                        ids,
                        logprobs,
                        RAW,
                        LOGITS,
                        ROOM,
                        BLOCK,
                        TILES,
                    )
                if rank == 0:
                    tl.debug_barrier()
                    num_tiles = select_tiles_before(lists, row, maxima, tl.max(x))
                    tl.debug_barrier()
                    rank = 1 + count_in_tiles(rows, row, lists, num_tiles, tl.max(x), token, law, RAW)
            tl.store(columns.ranks + row, rank)
        else:
            tl.store(columns.ranks + row, 0)


@triton.jit
def _put_given(rows, row, wanted, state, law, ids, logprobs, RAW: tl.constexpr, LOGITS: tl.constexpr):
    """Stores the ids that are asked for from column 1 on."""
    start = 0
    while start < wanted.num_token_ids:
        column = start + tl.arange(0, _BLOCK)
        asked = tl.load(
            wanted.token_ids + state * wanted.num_token_ids + column, mask=column < wanted.num_token_ids, other=-1
        )
        asked = asked.to(tl.int32)
        value = load_as(rows, row, asked, asked >= 0, RAW)
        tl.store(ids + 1 + column, asked, mask=asked >= 0)
        tl.store(logprobs + 1 + column, _result(value, asked, law, RAW, LOGITS), mask=asked >= 0)
        start += _BLOCK


@triton.jit
def _result(x, ids, law, RAW: tl.constexpr, LOGITS: tl.constexpr):
    """float32; -inf where nothing is kept."""
    maximum, log_mass, temperature, _, _ = law
    result = result_of(x, maximum, log_mass, temperature, RAW, LOGITS)
    return tl.where(has_probability(x, ids, law), result, MINUS_INF)


@triton.jit
def _put_top(
    rows,
    row,
    lists,
    maxima,
    best_groups,
    num_top,
    law,
    ids,
    logprobs,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
):
    """Stores the first num_top (at most ROOM) kept tokens of the order from column 1 on."""
    _, _, _, cut_order, cut_id = law
    orders = order_of(maxima)
    found = survey(maxima, maxima != maxima)
    line, _ = line_of(orders, found, num_top)
    cut_id = tl.where(line > cut_order, LAST_ID, cut_id)
    cut_order = tl.maximum(line, cut_order)
    listed, keys = _list_from(rows, row, lists, orders, best_groups, cut_order, cut_id, RAW, ROOM, BLOCK)
    if listed > ROOM:
        # Too many reach the line: the exact cut, which leaves num_top of them.
        cut_order64, cut_id = cut_at_count(
            rows, row, num_top, MINUS_INF_ORDER + 1, found[0].to(tl.int64) + 1, 0, RAW, TILES
        )
        cut_order = cut_order64.to(tl.int32)
        tl.debug_barrier()
        listed, keys = _list_from(rows, row, lists, orders, best_groups, cut_order, cut_id, RAW, ROOM, BLOCK)
    rank = tl.zeros([ROOM], tl.int32)
    start = 0
    while start < listed:
        earlier = load_keys(lists, row, start + tl.arange(0, _CHUNK))[:, None] > keys[None, :]
        rank += tl.sum(earlier.to(tl.int32), 0)
        start += _CHUNK
    value, token = value_and_token(keys)
    top = (tl.arange(0, ROOM) < listed) & (rank < num_top)
    tl.store(ids + 1 + rank, token, mask=top)
    tl.store(logprobs + 1 + rank, _result(value, token, law, RAW, LOGITS), mask=top)


@triton.jit
def _list_from(
    rows,
    row,
    lists,
    orders,
    best_groups,
    cut_order,
    cut_id,
    RAW: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Lists the tokens that are not after a cut; returns what `list_tokens` does."""
    clear_list(lists, row, ROOM)
    select_groups(lists, row, orders, best_groups, cut_order, cut_id)
    kind = kind_of(rows, row)
    begun = begin_groups(rows, row, kind, lists, RAW, ROOM, BLOCK)
    return list_tokens(rows, None, row, kind, lists, begun, cut_order, cut_id, RAW, ROOM, BLOCK)
