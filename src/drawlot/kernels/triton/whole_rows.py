"""Rows whose cut may lie anywhere, read again by all of the GPU, which lists the tokens that the cut may be."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST, min_p_line, sample_bracket
from drawlot.kernels.triton.listing import append_between
from drawlot.kernels.triton.pdl import let_next_start, wait_for_previous
from drawlot.kernels.triton.ranks import count_ranks
from drawlot.kernels.triton.reduce import FIXED_POINT
from drawlot.kernels.triton.scan import LOG2_E
from drawlot.kernels.triton.states import filters_of, scale_of, temperature_of
from drawlot.kernels.triton.summary import ARRIVALS, COUNT, COUNT_OF_RANKS, UNDECIDED
from drawlot.kernels.triton.together import wait_for, wait_for_all
from drawlot.kernels.triton.values import TILE, ids_of, load_values, order_of, value_of
from drawlot.kernels.triton.whole_row import (
    MASS_ABOVE,
    MASS_FROM_LINE,
    NUM_ABOVE,
    finish_whole_row,
    kept_tiles,
)


@triton.jit
def whole_rows_kernel(
    rows,
    states,
    tiles,
    lists,
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
    first = tl.program_id(0)
    # Mostly no row is left, which is known before the tokens are. All rows are being finished by now.
    let_next_start(OVERLAP)
    wait_for(tiles.control + UNDECIDED, 0)
    # Both at once: most steps leave none.
    num_rows, num_rank_rows = tl.load(tiles.control + COUNT), tl.load(tiles.control + COUNT_OF_RANKS)
    if num_rows > 0:
        share = tl.cdiv(num_rows * num_parts, num_programs)
        item, end = first * share, tl.minimum((first + 1) * share, num_rows * num_parts)
        while item < end:
            part = item % num_parts
            stop = tl.minimum(part + end - item, num_parts)
            row = tl.load(whole.rows + item // num_parts).to(tl.int64)
            _gather(rows, states, tiles, whole, summary, row, part, stop, T, TILES, ROOM)
            item += stop - part
        wait_for_all(tiles.control + ARRIVALS, num_programs, 1)
        item = first
        while item < num_rows:
            row = tl.load(whole.rows + item).to(tl.int64)
            finish_whole_row(rows, states, tiles, lists, whole, drawn, summary, row, WIDE, T, TILES, ROOM)
            item += num_programs
        wait_for_all(tiles.control + ARRIVALS, num_programs, 2)
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
    if tiles.undrawn is None:
        if first == 0:
            wait_for_previous(OVERLAP)


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
    low, high, is_bottom = line, line, row >= 0
    if (top_k > 0) | (top_p < 1):
        low, high, is_bottom = sample_bracket(rows, tiles, row, filters, temperature, row_max, line, T)
    if part == 0:
        tl.store(whole.low + row, tl.where(is_bottom, line, low))
        tl.store(whole.high + row, high)
        tl.store(whole.line + row, line)
    # Parts have one sum each of each thread, whichever program adds them up.
    THREADS: tl.constexpr = 256
    mass_above, mass_from_line = tl.zeros([THREADS], tl.int64), tl.zeros([THREADS], tl.int64)
    num_above = tl.zeros([THREADS], tl.int32)
    x = _load(rows, row, part, stop, TILES)
    while part < stop:
        append_between(whole, row, x, part * (TILES * TILE), low, high, ROOM)
        mass = tl.exp2((x - row_max) * (scale * LOG2_E))
        mass_above += _fixed(_of_threads(tl.where(x >= high, mass, 0.0), THREADS))
        mass_from_line += _fixed(_of_threads(tl.where(x >= line, mass, 0.0), THREADS))
        num_above += _of_threads((x >= high).to(tl.int32), THREADS)
        part += 1
        x = _load(rows, row, part, stop, TILES)
    sums = whole.sums + row * 4
    tl.atomic_add(sums + NUM_ABOVE, tl.sum(num_above).to(tl.int64))
    tl.atomic_add(sums + MASS_ABOVE, tl.sum(mass_above))
    tl.atomic_add(sums + MASS_FROM_LINE, tl.sum(mass_from_line))


@triton.jit
def _of_threads(x, THREADS: tl.constexpr):
    """[THREADS]: sums of what each has of a block [N], where it loads four tokens at a time."""
    return tl.sum(tl.sum(x.reshape(x.shape[0] // 4 // THREADS, THREADS, 4), 2), 0)


@triton.jit
def _load(rows, row, part, stop, TILES: tl.constexpr):
    """Values of a part [TILES 128], none from `stop` on."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < tl.minimum(rows.num_tiles, stop * TILES)
    return load_values(rows, row, ids_of(tile), exists[:, None]).reshape(TILES * TILE)


@triton.jit
def _fixed(mass):
    return (mass.to(tl.float64) * FIXED_POINT).to(tl.int64)


@triton.jit
def _weigh_part(rows, states, whole, summary, row, part, T: tl.constexpr, TILES: tl.constexpr):
    """Sums the kept tokens of a part's tiles."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < rows.num_tiles
    temperature = temperature_of(states, tl.load(states.index + row))
    cut_value, cut_id = tl.load(summary.cut_value + row), tl.load(summary.cut_id + row)
    _maxima, sums = kept_tiles(rows, row, tile, exists, cut_value, cut_id, scale_of(temperature))
    tl.store(whole.kept_sums + row * T + tile, sums, mask=exists)
