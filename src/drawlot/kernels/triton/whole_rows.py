"""Rows whose cut may lie anywhere, read again by all of the GPU, which lists the tokens that the cut may be."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST, mass_of, min_p_line, sample_bracket
from drawlot.kernels.triton.cut_in_list import FIXED_POINT
from drawlot.kernels.triton.listing import append_between
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.ranks import count_ranks
from drawlot.kernels.triton.reduce import sum_four
from drawlot.kernels.triton.scan import GROUP, GROUPS
from drawlot.kernels.triton.states import filters_of, scale_of, temperature_of
from drawlot.kernels.triton.summary import ARRIVALS, COUNT, COUNT_OF_RANKS, NUM_CUT
from drawlot.kernels.triton.together import wait_for_all
from drawlot.kernels.triton.values import MINUS_INF, TILE, ids_of, load_values, order_of, value_of
from drawlot.kernels.triton.whole_row import (
    MASS_ABOVE,
    MASS_BELOW,
    MASS_FROM_LINE,
    NUM_ABOVE,
    NUM_EXISTING,
    finish_whole_row,
    kept_tiles,
)

_READS = tl.constexpr(3)
_HIGH_HALF = tl.constexpr(16)


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
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the rows that the finish left, each some parts of TILES tiles side by side.

    num_parts: of a row; ROOM: tokens of a long list; columns, RAW, LOGITS: as for `finish_kernel`.
    """
    follow(OVERLAP)
    first = tl.program_id(0)
    # Both at once: most steps leave none.
    num_rows, num_rank_rows = tl.load(tiles.control + COUNT), tl.load(tiles.control + COUNT_OF_RANKS)
    if num_rows > 0:
        share = tl.cdiv(num_rows * num_parts, num_programs)
        num_cut, read = num_rows * 0, 0
        while num_cut < num_rows:
            item, end = first * share, tl.minimum((first + 1) * share, num_rows * num_parts)
            while item < end:
                part = item % num_parts
                stop = tl.minimum(part + end - item, num_parts)
                row = tl.load(whole.rows + item // num_parts).to(tl.int64)
                if tl.load(whole.is_cut + row) == 0:
                    _gather(rows, states, tiles, whole, summary, row, part, stop, read == 0, T, TILES, ROOM)
                item += stop - part
            wait_for_all(tiles.control + ARRIVALS, num_programs, 2 * read + 1)
            item = first
            while item < num_rows:
                row = tl.load(whole.rows + item).to(tl.int64)
                if tl.load(whole.is_cut + row) == 0:
                    is_last = read == _READS - 1
                    finish_whole_row(
                        rows, states, tiles, whole, drawn, summary, row, is_last, WIDE, T, TILES, ROOM
                    )
                item += num_programs
            wait_for_all(tiles.control + ARRIVALS, num_programs, 2 * read + 2)
            num_cut = tl.load(tiles.control + NUM_CUT)
            read += 1
        if tiles.undrawn is not None:
            item = first
            while item < num_rows * num_parts:
                row = tl.load(whole.rows + item // num_parts).to(tl.int64)
                _weigh_part(rows, states, whole, summary, row, item % num_parts, T, TILES)
                item += num_programs
    share = tl.cdiv(num_rank_rows * num_parts, num_programs)
    item, end = first * share, tl.minimum((first + 1) * share, num_rank_rows * num_parts)
    while item < end:
        part = item % num_parts
        stop = tl.minimum(part + end - item, num_parts)
        row = tl.load(whole.rank_rows + item // num_parts).to(tl.int64)
        count_ranks(rows, states, tiles, columns, drawn, summary, row, part, stop, RAW, LOGITS, TILES)
        item += stop - part


@triton.jit
def _gather(
    rows,
    states,
    tiles,
    whole,
    summary,
    row,
    part,
    stop,
    is_first_read,
    T: tl.constexpr,
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Lists the tokens in a row's bracket that parts from one on have, and adds to what the row knows of the others."""
    state = tl.load(states.index + row)
    filters, temperature = filters_of(states, state), temperature_of(states, state)
    top_k, top_p, min_p = filters
    row_max = tl.load(summary.floats + row).to(tl.float32)
    scale = scale_of(temperature)
    line = tl.full([], -LARGEST, tl.float32)
    if min_p > 0:
        line = value_of(min_p_line(order_of(row_max), temperature, min_p))
    low, high = line, line
    if is_first_read == 0:
        low, high = tl.load(whole.low + row), tl.load(whole.high + row)
    elif (top_k > 0) | (top_p < 1):
        low, high = sample_bracket(rows, tiles, row, filters, temperature, row_max, line, T)
    if part == 0:
        tl.store(whole.low + row, low)
        tl.store(whole.high + row, high)
        tl.store(whole.line + row, line)
    mass_above, mass_from_line, mass_below = tl.zeros([], tl.int64), tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    num_above, num_existing = tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    while part < stop:
        tile = part * TILES + tl.arange(0, TILES)
        ids = ids_of(tile)
        x = load_values(rows, row, ids, (tile < rows.num_tiles)[:, None])
        mass = mass_of(x, row_max, scale)
        flags = (x >= high).to(tl.int32) + ((x > MINUS_INF).to(tl.int32) << _HIGH_HALF)
        of_part = sum_four(
            tl.where(x >= high, mass, 0.0).reshape(TILES * TILE),
            tl.where(x >= line, mass, 0.0).reshape(TILES * TILE),
            tl.where(x < low, tl.where(x >= line, mass, 0.0), 0.0).reshape(TILES * TILE),
            flags.reshape(TILES * TILE),
        )
        groups: tl.constexpr = TILES * GROUPS
        append_between(whole, row, x.reshape(groups, GROUP), ids.reshape(groups, GROUP), low, high, ROOM)
        mass_above += (of_part[0].to(tl.float64) * FIXED_POINT).to(tl.int64)
        mass_from_line += (of_part[1].to(tl.float64) * FIXED_POINT).to(tl.int64)
        mass_below += (of_part[2].to(tl.float64) * FIXED_POINT).to(tl.int64)
        num_above += of_part[3] & 0xFFFF
        num_existing += of_part[3] >> _HIGH_HALF
        part += 1
    sums = whole.sums + row * 8
    tl.atomic_add(sums + NUM_ABOVE, num_above.to(tl.int64))
    tl.atomic_add(sums + NUM_EXISTING, num_existing.to(tl.int64))
    tl.atomic_add(sums + MASS_ABOVE, mass_above)
    tl.atomic_add(sums + MASS_BELOW, mass_below)
    tl.atomic_add(sums + MASS_FROM_LINE, mass_from_line)


@triton.jit
def _weigh_part(rows, states, whole, summary, row, part, T: tl.constexpr, TILES: tl.constexpr):
    """Sums the kept tokens of a part's tiles."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < rows.num_tiles
    temperature = temperature_of(states, tl.load(states.index + row))
    cut_value, cut_id = tl.load(summary.cut_value + row), tl.load(summary.cut_id + row)
    _maxima, sums = kept_tiles(rows, row, tile, exists, cut_value, cut_id, scale_of(temperature))
    tl.store(whole.kept_sums + row * T + tile, sums, mask=exists)
