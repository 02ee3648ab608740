"""Ranks of drawn tokens that no list tells: what comes before them is counted in the tiles that can hold it."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST
from drawlot.kernels.triton.column_values import (
    has_probability,
    law_of_row,
    load_as,
    put_result,
    result_of,
    wants_first,
)
from drawlot.kernels.triton.decided import decide, decide_and_leave
from drawlot.kernels.triton.listing import comes_before, select_tiles
from drawlot.kernels.triton.reduce import lines_of, sum_two_and_largest, total_of
from drawlot.kernels.triton.summary import COUNT_OF_RANKS
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of, is_edited, order_of, value_of

_GATHER = tl.constexpr(32)
"""Tiles that one program reads at a time"""
_FEW_TO_COUNT = tl.constexpr(64)
"""Tiles that one program counts in while other rows are being finished"""


@triton.jit
def count_or_leave_rank(
    rows,
    tiles,
    whole,
    columns,
    all_columns,
    summary,
    row,
    token,
    maxima,
    x,
    has_x,
    law,
    num_top,
    has_columns,
    COUNTS_FIRST: tl.constexpr,
    LOGITS: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    SHARES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Tells the rank of a row's token among raw logits, and its column, if it wants one; or leaves the rank.

    What takes long is left. Counts the row decided. maxima: [T], of the raw values; x: the token's, if `has_x`; law: of
    `law_of_raw`; columns, all_columns, num_top: as for `draw_from_list`; has_columns: all are stored, but for the rank;
    COUNTS_FIRST: how many tiles are to be read is found out before any is, since many rows leave their rank.
    """
    if has_x == 0:
        own = token + tl.arange(0, 1)
        x = tl.max(load_as(rows, row, own, own >= 0, True))
    # A warp has lines of tiles to itself: it knows a first and a last one to read without an exchange.
    tile = lines_of(tl.arange(0, T))
    selected = may_have_before(lines_of(maxima), x)
    first, last, num_tiles = _span_of_lines(tile, selected)
    if COUNTS_FIRST:
        # Who counts a rank that is left need not wait for tiles that are read here in vain.
        before, total, most = sum_two_and_largest(num_tiles, num_tiles)
    else:
        before, total, most = sum_two_and_largest(_count_in_pairs(rows, row, first, last, x, token), num_tiles)
    if total <= _FEW_TO_COUNT:
        if COUNTS_FIRST:
            before = tl.sum(_count_in_pairs(rows, row, first, last, x, token), 0)
        # From here on it is known that nobody reads the row again.
        leaves = row < 0
        if all_columns is not None:
            leaves = (has_columns | wants_first(all_columns, row >= 0, num_top, ROOM)) == 0
        decide(tiles, leaves, SHARES, OVERLAP)
        while most > 2:
            selected = selected & (tile > first[:, None]) & (tile < last[:, None])
            first, last, _ = _span_of_lines(tile, selected)
            before += tl.sum(_count_in_pairs(rows, row, first, last, x, token), 0)
            most -= 2
        rank = 1 + before
        logprob = result_of(x, law[0], law[1], law[2], True, LOGITS)
        if has_columns == 0:
            put_result(columns, all_columns, summary, row, token, logprob, rank, row >= 0, row < 0, num_top, ROOM)
        elif all_columns is not None:
            tl.store(all_columns.ranks + row, rank)
    else:
        if has_columns == 0:
            ask_for_rank(tiles, whole, columns, summary, row)
        elif all_columns is not None:
            ask_for_rank_alone(tiles, whole, all_columns, row)
        decide_and_leave(tiles, SHARES, OVERLAP)


@triton.jit
def _span_of_lines(tile, selected):
    """Of each line of tiles [M, N] the first and the last selected one, LAST_ID and -1 if there is none; how many."""
    first, last = tl.min(tl.where(selected, tile, LAST_ID), 1), tl.max(tl.where(selected, tile, -1), 1)
    return first, last, tl.sum(selected.to(tl.int32), 1)


@triton.jit
def _count_in_pairs(rows, row, first, last, x, token):
    """As `count_in_tiles`, of raw values, in one tile or two of each line: int32 [M]."""
    of_first, of_last = ids_of(first), ids_of(last)
    values = load_as(rows, row, of_first, (first < LAST_ID)[:, None], True)
    others = load_as(rows, row, of_last, (last > first)[:, None], True)
    in_first = _is_before(of_first, values, x, token, None, True).to(tl.int32)
    return tl.sum(in_first + _is_before(of_last, others, x, token, None, True).to(tl.int32), 1)


@triton.jit
def may_have_before(maxima, x):
    """Which tiles may have tokens before one of value x."""
    return (maxima >= x) & (maxima > MINUS_INF)


@triton.jit
def select_tiles_before(lists, row, maxima, x):
    """Lists the tiles that may have tokens before one of value x, and returns how many. A barrier must follow."""
    selected = may_have_before(maxima, x)
    select_tiles(lists, row, tl.arange(0, maxima.shape[0]), selected)
    return total_of(selected.to(tl.int32))


@triton.jit
def count_in_tiles(rows, row, lists, num_tiles, x, token, law, RAW: tl.constexpr):
    """How many tokens that have a probability come before (x, token), which need not have one, in selected tiles."""
    count = 0
    start = 0
    while start < num_tiles:
        slot = start + tl.arange(0, _GATHER)
        tile = tl.load(lists.tile_ids + row * lists.width + slot, mask=slot < num_tiles, other=0)
        ids = ids_of(tile)
        values = load_as(rows, row, ids, (slot < num_tiles)[:, None], RAW)
        count += total_of(_is_before(ids, values, x, token, law, RAW).to(tl.int32).reshape(_GATHER * TILE))
        start += _GATHER
    return count


@triton.jit
def _is_before(ids, values, x, token, law, RAW: tl.constexpr):
    """Which tokens have a probability and come before (x, token); law: as for `count_in_tiles`, of raw values any."""
    if RAW:
        # A third of the instructions. What is higher than -inf has a probability.
        before = values >= tl.where(ids < token, tl.maximum(x, -LARGEST), value_of(order_of(x) + 1))
    else:
        before = comes_before(values, ids, x, token) & has_probability(values, ids, law)
    return before


@triton.jit
def ask_for_rank(tiles, whole, columns, summary, row):
    """Leaves a rank, and an only column, to the programs that count over whole rows."""
    _leave_rank(tiles, whole, row)
    if columns is None:
        # Another thread may have stored a rank.
        tl.debug_barrier()
        tl.store(summary.rank + row, 1)
    else:
        tl.store(columns.ranks + row, 1)


@triton.jit
def ask_for_rank_alone(tiles, whole, all_columns, row):
    """As `ask_for_rank`, of a row whose columns are stored."""
    _leave_rank(tiles, whole, -1 * row - 1)
    tl.store(all_columns.ranks + row, 1)


@triton.jit
def _leave_rank(tiles, whole, entry):
    tl.store(whole.rank_rows + tl.atomic_add(tiles.control + COUNT_OF_RANKS, 1), entry)


# A function in machine code, too: who does without it goes on without its registers, and past fewer instructions.
@triton.jit(noinline=True)
def count_ranks(
    rows,
    states,
    tiles,
    columns,
    all_columns,
    drawn,
    summary,
    entry,
    part,
    stop,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Adds to the drawn token's rank what comes before it in some parts; who has the first part stores its column.

    entry: the row; -1 - row if it lacks its rank alone.
    """
    is_alone = entry < 0
    row = tl.where(is_alone, -1 * entry - 1, entry)
    token = tl.load(drawn.token_ids + row).to(tl.int32)
    own = token + tl.arange(0, 1)
    own_x = tl.max(load_as(rows, row, own, own >= 0, RAW))
    # Tiles below the token are not read. Edited values say nothing of raw ones, whose tiles have maxima of their own.
    apart = row != row
    if RAW:
        apart = is_edited(rows, row)
    is_first = part == 0
    if columns is not None:
        if is_first:
            state = tl.load(states.index + row)
            maximum, log_mass, temperature, _, _ = law_of_row(states, summary, state, row, RAW)
            tl.store(columns.ids + row, token)
            tl.store(columns.logprobs + row, result_of(own_x, maximum, log_mass, temperature, RAW, LOGITS))
    num_before = tl.zeros([], tl.int32)
    own_tile = token // TILE
    tile, maxima = _maxima(rows, tiles, row, apart, part, stop, RAW, TILES)
    while part < stop:
        next_tile, next_maxima = _maxima(rows, tiles, row, apart, part + 1, stop, RAW, TILES)
        x = load_as(rows, row, ids_of(tile), ((tile < rows.num_tiles) & (maxima >= own_x))[:, None], RAW)
        # Of equal tokens those with lower ids come before: all in tiles before its own, none in those after.
        least = tl.where(tile < own_tile, own_x, value_of(order_of(own_x) + 1))
        num_before += total_of((x >= least[:, None]).to(tl.int32).reshape(TILES * TILE))
        part += 1
        tile, maxima = next_tile, next_maxima
    if is_first:
        ids = own_tile * TILE + tl.arange(0, TILE)
        x = load_as(rows, row, ids, ids < token, RAW)
        num_before += tl.sum((x == own_x).to(tl.int32))
    if columns is not None:
        tl.atomic_add(columns.ranks + row, num_before.to(tl.int64))
    else:
        if all_columns is not None:
            if is_alone:
                tl.atomic_add(all_columns.ranks + row, num_before.to(tl.int64))
        if is_alone == 0:
            tl.atomic_add(summary.rank + row, num_before)


@triton.jit
def _maxima(rows, tiles, row, apart, part, stop, RAW: tl.constexpr, TILES: tl.constexpr):
    """Tiles of a part and their maxima; apart: of the raw values."""
    tile, at = part * TILES + tl.arange(0, TILES), row * tiles.stride + part * TILES + tl.arange(0, TILES)
    end = tl.minimum(rows.num_tiles, stop * TILES)
    maxima = tl.load(tiles.maxima + at, mask=tile < tl.where(apart, 0, end), other=MINUS_INF)
    if RAW:
        raw_maxima = tl.load(tiles.raw_maxima + at, mask=tile < tl.where(apart, end, 0), other=MINUS_INF)
        maxima = tl.maximum(maxima, raw_maxima)
    return tile, maxima
