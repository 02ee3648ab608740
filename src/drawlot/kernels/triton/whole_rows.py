"""Rows whose cut may lie anywhere, read again by all of the GPU: narrow the cut, list candidates, weigh the tiles."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LOG2_E, min_p_line, narrow, put_reaches
from drawlot.kernels.triton.column_values import law_of_row, load_as, result_of
from drawlot.kernels.triton.cut_in_list import cut_in_list
from drawlot.kernels.triton.listing import append_between, comes_before
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.race import TARGET_TILE, race_in_tile, race_of_tiles
from drawlot.kernels.triton.scan import of_each, tile_maxima, tile_sums
from drawlot.kernels.triton.slow_cut import slow_cut
from drawlot.kernels.triton.states import filters_of, noise_key, scale_of, temperature_of
from drawlot.kernels.triton.summary import ARRIVALS, COUNT, COUNT_OF_RANKS, WHOLE, put, put_cut
from drawlot.kernels.triton.together import is_last, wait_for_all
from drawlot.kernels.triton.values import (
    LAST_ID,
    MINUS_INF,
    TILE,
    ids_of,
    load_values,
    order_of,
    slices_of,
    slot_of,
    value_of,
)


@triton.jit
def whole_rows_kernel(
    rows,
    states,
    tiles,
    whole,
    columns,
    drawn,
    summary,
    num_programs,
    num_parts,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    PARTS: tl.constexpr,
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the rows that the finish left, a part of TILES tiles at a time.

    num_parts: of a row; PARTS: power of two >= num_parts; ROOM: tokens of a long list; columns, RAW, LOGITS: as
    for `finish_kernel`.
    """
    follow(OVERLAP)
    first = tl.program_id(0)
    arrivals = tiles.control + ARRIVALS
    # Both at once: most steps leave none.
    num_items = tl.load(tiles.control + COUNT) * num_parts
    num_rank_items = tl.load(tiles.control + COUNT_OF_RANKS) * num_parts
    if num_items > 0:
        for round in tl.static_range(1, 4):
            item = first
            while item < num_items:
                row = tl.load(whole.rows + item // num_parts).to(tl.int64)
                _narrow_part(rows, states, whole, summary, row, item % num_parts, num_parts, PARTS, TILES, ROOM)
                item += num_programs
            wait_for_all(arrivals, num_programs, round)
        item = first
        while item < num_items:
            row = tl.load(whole.rows + item // num_parts).to(tl.int64)
            _list_part(rows, states, whole, row, item % num_parts, TILES, ROOM)
            item += num_programs
        wait_for_all(arrivals, num_programs, 4)
        # Rows by themselves: a program that cuts one must not keep parts of others waiting.
        item = first * num_parts
        while item < num_items:
            row = tl.load(whole.rows + item // num_parts).to(tl.int64)
            _cut_row(rows, states, whole, summary, row, TILES, ROOM)
            item += num_programs * num_parts
        wait_for_all(arrivals, num_programs, 5)
        item = first
        while item < num_items:
            row = tl.load(whole.rows + item // num_parts).to(tl.int64)
            _weigh_part(rows, states, whole, summary, row, item % num_parts, T, TILES)
            item += num_programs
        wait_for_all(arrivals, num_programs, 6)
        item = first * num_parts
        while item < num_items:
            row = tl.load(whole.rows + item // num_parts).to(tl.int64)
            _draw_row(rows, states, tiles, whole, drawn, summary, row, WIDE, T)
            item += num_programs * num_parts
        wait_for_all(arrivals, num_programs, 7)
    item = first
    while item < num_rank_items:
        row = tl.load(whole.rank_rows + item // num_parts).to(tl.int64)
        _count_part(rows, states, columns, drawn, summary, row, item % num_parts, RAW, LOGITS, TILES)
        item += num_programs


@triton.jit
def _part(rows, row, part, TILES: tl.constexpr):
    """Tiles, ids and values of a part, [TILES, 128]."""
    tile = part * TILES + tl.arange(0, TILES)
    ids = ids_of(tile)
    return tile, ids, load_values(rows, row, ids, (tile < rows.num_tiles)[:, None])


@triton.jit
def _narrow_part(
    rows,
    states,
    whole,
    summary,
    row,
    part,
    num_parts,
    PARTS: tl.constexpr,
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Sums a part above the pivots of its row's bracket; the last part narrows it."""
    state = tl.load(states.index + row)
    top_k, top_p, min_p = filters_of(states, state)
    # Min-p alone needs no search, nor does what a list has room for.
    if ((top_k > 0) | (top_p < 1)) & (tl.load(whole.most_listed + row) > ROOM):
        tile, ids, x = _part(rows, row, part, TILES)
        weight = tl.full([TILES, TILE], 1.0, tl.float32)
        row_max = tl.load(summary.floats + row).to(tl.float32)
        scale = scale_of(temperature_of(states, state))
        if top_k <= 0:
            weight = tl.exp2((x - row_max) * (scale * LOG2_E))
        put_reaches(whole, row, part, num_parts, x.reshape(TILES * TILE), weight.reshape(TILES * TILE))
        if is_last(whole.tickets, row, num_parts):
            narrow(states, whole, state, row, num_parts, row_max, scale, PARTS)


@triton.jit
def _list_part(rows, states, whole, row, part, TILES: tl.constexpr, ROOM: tl.constexpr):
    """Lists the part's tokens that the cut may be."""
    state = tl.load(states.index + row)
    top_k, top_p, min_p = filters_of(states, state)
    if (top_k > 0) | (top_p < 1):
        tile, ids, x = _part(rows, row, part, TILES)
        # top_p counts again within what top_k keeps: all of that is listed.
        high = tl.where(top_k > 0, float("inf"), tl.load(whole.high + row))
        append_between(whole, row, x, ids, tl.load(whole.low + row), high, ROOM)


@triton.jit
def _cut_row(rows, states, whole, summary, row, TILES: tl.constexpr, ROOM: tl.constexpr):
    """Stores the last kept token of a row."""
    state = tl.load(states.index + row)
    top_k, top_p, min_p = filters_of(states, state)
    row_max = tl.load(summary.floats + row).to(tl.float32)
    highest = order_of(row_max)
    target = tl.load(whole.target + row)
    if (top_k <= 0) & (top_p >= 1):
        cut_order = min_p_line(highest, temperature_of(states, state), min_p)
        cut_id = tl.full([], LAST_ID, tl.int32)
    elif (tl.load(whole.listed + row) <= ROOM) & (target == target):
        cut_order, cut_id = cut_in_list(states, whole, state, row, highest, row_max, ROOM)
    else:
        order64, cut_id = slow_cut(rows, states, whole, state, row, highest, row_max, TILES)
        cut_order = order64.to(tl.int32)
    put_cut(summary, row, value_of(cut_order), cut_id)


@triton.jit
def _weigh_part(rows, states, whole, summary, row, part, T: tl.constexpr, TILES: tl.constexpr):
    """Sums the kept tokens of a part's tiles, laid out as in the scan."""
    tile = part * TILES + tl.arange(0, TILES)
    if rows.edits is None:
        _weigh_tiles(rows, states, whole, summary, row, tile, slices_of(rows, tile), T)
    elif slot_of(rows, row) < 0:
        _weigh_tiles(rows, states, whole, summary, row, tile, slices_of(rows, tile), T)
    else:
        _weigh_tiles(rows, states, whole, summary, row, tile, ids_of(tile), T)


@triton.jit
def _weigh_tiles(rows, states, whole, summary, row, tile, ids, T: tl.constexpr):
    temperature = temperature_of(states, tl.load(states.index + row))
    x = load_values(rows, row, ids, of_each(tile < rows.num_tiles, ids))
    cut_value, cut_id = tl.load(summary.cut_value + row), tl.load(summary.cut_id + row)
    kept = (x > cut_value) | ((x == cut_value) & (ids <= cut_id))
    sums = tile_sums(tl.where(kept, x, MINUS_INF), tile_maxima(x), scale_of(temperature))
    tl.store(whole.kept_sums + row * T + tile, sums, mask=tile < rows.num_tiles)


@triton.jit
def _draw_row(rows, states, tiles, whole, drawn, summary, row, WIDE: tl.constexpr, T: tl.constexpr):
    """The races of a row."""
    state = tl.load(states.index + row)
    temperature = temperature_of(states, state)
    row_max = tl.load(summary.floats + row).to(tl.float32)
    tile = tl.arange(0, T)
    exists = tile < rows.num_tiles
    maxima = tl.load(tiles.maxima + row * tiles.stride + tile, mask=exists, other=MINUS_INF)
    sums = tl.load(whole.kept_sums + row * T + tile, mask=exists, other=0.0)
    key = noise_key(states, state, row)
    noise = gumbel_of_range(0, T, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
    best, mass = race_of_tiles(maxima, sums, row_max, temperature, noise, WIDE)
    cut_order, cut_id = order_of(tl.load(summary.cut_value + row)), tl.load(summary.cut_id + row)
    token = race_in_tile(rows, None, row, best, cut_order, cut_id, row_max, temperature, key, WIDE)
    put(drawn, summary, row, token, 0, WHOLE, row_max, tl.log(mass))


@triton.jit
def _count_part(
    rows,
    states,
    columns,
    drawn,
    summary,
    row,
    part,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Adds to the drawn token's rank what comes before it in the part; the first part stores its column."""
    token = tl.load(drawn.token_ids + row).to(tl.int32)
    own = token + tl.arange(0, 1)
    tile = part * TILES + tl.arange(0, TILES)
    ids = ids_of(tile)
    exists = (tile < rows.num_tiles)[:, None]
    own_x = tl.max(load_as(rows, row, own, own >= 0, RAW))
    x = load_as(rows, row, ids, exists, RAW)
    before = comes_before(x, ids, own_x, token) & (x > MINUS_INF)
    num_before = tl.sum(tl.sum(before.to(tl.int32), 1), 0)
    if columns is None:
        tl.atomic_add(summary.rank + row, num_before)
    else:
        tl.atomic_add(columns.ranks + row, num_before.to(tl.int64))
        if part == 0:
            state = tl.load(states.index + row)
            maximum, log_mass, temperature, _, _ = law_of_row(states, summary, state, row, RAW)
            tl.store(columns.ids + row, token)
            tl.store(columns.logprobs + row, result_of(own_x, maximum, log_mass, temperature, RAW, LOGITS))
