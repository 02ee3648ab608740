"""Rows whose cut may lie anywhere, read again by all of the GPU.

Once to see whether a token that they propose is right; and where this does not say it, or the cut itself is asked
for, once to weigh and once to list what the cut may be. Then what the finish left of logprobs.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST, mass_of, min_p_line, sample_bracket
from drawlot.kernels.triton.columns import fill_columns
from drawlot.kernels.triton.cut_race import kept_tiles
from drawlot.kernels.triton.decided import wait_until_decided
from drawlot.kernels.triton.one_read import begin_row, read_row
from drawlot.kernels.triton.pdl import let_next_start, wait_for_previous
from drawlot.kernels.triton.ranges import (
    MASS_ABOVE,
    MASS_REACHED,
    NUM_ABOVE,
    NUM_SUMS,
    REACHED,
    SHARED_OUT,
    add_to_ranges,
    append_range,
    has_ranges,
    mass_between,
    quarters_of,
    range_of_cut,
    ranges_per_unit,
)
from drawlot.kernels.triton.ranks import count_ranks
from drawlot.kernels.triton.reduce import FIXED_POINT
from drawlot.kernels.triton.states import filters_of, scale_of, temperature_of
from drawlot.kernels.triton.summary import (
    ALL_COLUMNS,
    ARRIVALS,
    COUNT,
    COUNT_OF_RANKS,
    COUNT_OF_UNSURE,
    NUM_ROWS,
    NUM_SETTLED,
    RANKED,
)
from drawlot.kernels.triton.together import count_up, wait_for, wait_for_all
from drawlot.kernels.triton.values import TILE, ids_of, load_values, order_of, value_of
from drawlot.kernels.triton.whole_row import finish_whole_row

_PARTS_OF_ROW = tl.constexpr(5)
"""Parts that are read in the time that a program needs for one more row"""


@triton.jit
def whole_rows_kernel(
    rows,
    states,
    tiles,
    lists,
    whole,
    wanted,
    columns,
    all_columns,
    drawn,
    summary,
    num_parts,
    num_rank_parts,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
    RANK_TILES: tl.constexpr,
    ROOM: tl.constexpr,
    LIST_ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    CUT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the rows that the finish left, each some parts of TILES tiles side by side.

    num_parts, num_rank_parts: of a row, the latter of RANK_TILES tiles, where ranks are counted; ROOM: tokens of a long
    list; LIST_ROOM: of a short one; CUT: every row needs its exact cut, not a token alone; wanted, columns,
    all_columns, BLOCK, RAW, LOGITS: as for `finish_kernel`.
    """
    first, num_programs = tl.program_id(0), tl.num_programs(0)
    # Mostly nothing is left, which is known before the tokens are. All rows are being finished by now.
    num_left = wait_until_decided(tiles)
    # Not earlier: what waits beside rows that are being finished slows them down.
    let_next_start(OVERLAP)
    if num_left > 0:
        num_rows, num_rank_rows = _count(tiles, COUNT), _count(tiles, COUNT_OF_RANKS)
        if CUT == 0:
            if num_rows > 0:
                _settle_rows(
                    rows,
                    states,
                    tiles,
                    lists,
                    whole,
                    columns,
                    drawn,
                    summary,
                    num_rows,
                    num_programs,
                    num_parts,
                    RAW,
                    LOGITS,
                    WIDE,
                    T,
                    TILES,
                    LIST_ROOM,
                )
                num_rows, num_rank_rows = _count(tiles, COUNT_OF_UNSURE), _count(tiles, COUNT_OF_RANKS)
        cut_rows = whole.rows if CUT else whole.unsure
        if num_rows > 0:
            _cut_rows(
                rows,
                states,
                tiles,
                lists,
                whole,
                drawn,
                summary,
                cut_rows,
                num_rows,
                num_programs,
                num_parts,
                WIDE,
                T,
                TILES,
                ROOM,
            )
        share = tl.cdiv(num_rank_rows * num_rank_parts, num_programs)
        item, end = first * share, tl.minimum((first + 1) * share, num_rank_rows * num_rank_parts)
        while item < end:
            part = item % num_rank_parts
            stop = tl.minimum(part + end - item, num_rank_parts)
            entry = tl.load(whole.rank_rows + item // num_rank_parts).to(tl.int64)
            count_ranks(
                rows, states, tiles, columns, all_columns, drawn, summary, entry, part, stop, RAW, LOGITS, RANK_TILES
            )
            item += stop - part
        if all_columns is not None:
            # Tokens and ranks are stored by other programs, and by rows that count themselves decided before.
            wait_for_previous(OVERLAP)
            are_shared = _count(tiles, COUNT) + num_rank_rows > 0
            if are_shared:
                count_up(tiles.control + RANKED)
            row, end = first.to(tl.int64), tl.load(tiles.control + NUM_ROWS)
            while row < end:
                is_left = row >= 0
                if are_shared:
                    # Who has no columns to fill need not wait for ranks of others.
                    is_left = tl.load(summary.rank + row) != ALL_COLUMNS
                    if is_left:
                        wait_for(tiles.control + RANKED, num_programs)
                if is_left:
                    fill_columns(
                        rows,
                        states,
                        tiles,
                        lists,
                        wanted,
                        drawn,
                        summary,
                        all_columns,
                        row,
                        RAW,
                        LOGITS,
                        T,
                        LIST_ROOM,
                        BLOCK,
                        TILES,
                    )
                row += num_programs
    if tiles.undrawn is None:
        if first == 0:
            wait_for_previous(OVERLAP)


@triton.jit
def _count(tiles, place: tl.constexpr):
    return tl.load(tiles.control + place).to(tl.int32)


@triton.jit
def _settle_rows(
    rows,
    states,
    tiles,
    lists,
    whole,
    columns,
    drawn,
    summary,
    num_rows,
    num_programs,
    num_parts,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Has rows propose tokens, and reads them to see which are right; leaves rows of which none is."""
    item = tl.program_id(0)
    while item < num_rows:
        begin_row(rows, tiles, lists, whole, summary, item, WIDE, T, ROOM)
        item += num_programs
    item, end = _share_of_reader(num_rows, num_parts, num_programs)
    while item < end:
        slot, part = item // num_parts, item % num_parts
        stop = tl.minimum(part + end - item, num_parts)
        read_row(rows, states, tiles, whole, columns, drawn, summary, slot, part, stop, num_parts, RAW, LOGITS, TILES)
        item += stop - part
    wait_for(tiles.control + NUM_SETTLED, num_rows)


@triton.jit
def _share_of_reader(num_rows, num_parts, num_programs):
    """First of a program's parts, all rows' in a row, and the end: parts of one row, unless that takes far longer."""
    # The first programs make proposals: the last ones read before they do.
    first = num_programs - 1 - tl.program_id(0)
    share = tl.cdiv(num_rows * num_parts, num_programs)
    item, end = first * share, tl.minimum((first + 1) * share, num_rows * num_parts)
    readers = num_programs // num_rows
    own = tl.cdiv(num_parts, tl.maximum(readers, 1))
    # Another row takes a program as long as some parts do: it waits, sums, and settles again.
    if (readers > 0) & (own < share + _PARTS_OF_ROW):
        slot, place = tl.minimum(first // tl.maximum(readers, 1), num_rows), first % tl.maximum(readers, 1)
        item = slot * num_parts + tl.minimum(place * own, num_parts)
        end = tl.minimum(tl.minimum(item + own, (slot + 1) * num_parts), num_rows * num_parts)
    return item, end


# A function in machine code, too: who does without it goes on without its registers, and past fewer instructions.
@triton.jit(noinline=True)
def _cut_rows(
    rows,
    states,
    tiles,
    lists,
    whole,
    drawn,
    summary,
    cut_rows,
    num_rows,
    num_programs,
    num_parts,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    TILES: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Finds the cuts of rows, of which cut_rows [num_rows] are, and draws."""
    first = tl.program_id(0)
    share = tl.cdiv(num_rows * num_parts, num_programs)
    item, end = first * share, tl.minimum((first + 1) * share, num_rows * num_parts)
    while item < end:
        part = item % num_parts
        stop = tl.minimum(part + end - item, num_parts)
        row = tl.load(cut_rows + item // num_parts).to(tl.int64)
        _weigh(rows, states, tiles, whole, summary, row, part, stop, T, TILES)
        item += stop - part
    wait_for_all(tiles.control + ARRIVALS, num_programs, 1)
    item, end = first * share, tl.minimum((first + 1) * share, num_rows * num_parts)
    while item < end:
        part = item % num_parts
        stop = tl.minimum(part + end - item, num_parts)
        row = tl.load(cut_rows + item // num_parts).to(tl.int64)
        _list(rows, states, whole, summary, row, part, stop, TILES, ROOM)
        item += stop - part
    wait_for_all(tiles.control + ARRIVALS, num_programs, 2)
    item = first
    while item < num_rows:
        row = tl.load(cut_rows + item).to(tl.int64)
        finish_whole_row(rows, states, tiles, lists, whole, drawn, summary, row, WIDE, T, TILES, ROOM)
        item += num_programs
    wait_for_all(tiles.control + ARRIVALS, num_programs, 3)
    if tiles.undrawn is not None:
        item = first
        while item < num_rows * num_parts:
            row = tl.load(cut_rows + item // num_parts).to(tl.int64)
            _weigh_part(rows, states, whole, summary, row, item % num_parts, T, TILES)
            item += num_programs


@triton.jit
def _weigh(
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
):
    """Adds what some parts weigh to what their row knows of all: above its bracket, and in each of its ranges."""
    state = tl.load(states.index + row)
    filters, temperature = filters_of(states, state), temperature_of(states, state)
    top_k, top_p, min_p = filters
    row_max = tl.load(summary.floats + row).to(tl.float32)
    scale = scale_of(temperature)
    line = tl.full([], -LARGEST, tl.float32)
    if min_p > 0:
        line = value_of(min_p_line(order_of(row_max), temperature, min_p))
    low, high, is_bottom, all_mass = line, line, row >= 0, tl.zeros([], tl.int64)
    if (top_k > 0) | (top_p < 1):
        low, high, is_bottom, all_mass = sample_bracket(rows, tiles, row, filters, temperature, row_max, line, T)
    sums = whole.sums + row * NUM_SUMS
    if part == 0:
        tl.store(whole.low + row, low)
        tl.store(whole.high + row, high)
        # Below neither is the cut.
        tl.store(whole.line + row, tl.where(is_bottom, low, line))
        if min_p == 0:
            tl.atomic_add(sums + SHARED_OUT, all_mass)
    per_unit = ranges_per_unit(low, high)
    # Parts have one sum each of each thread, whichever program adds them up.
    THREADS: tl.constexpr = 256
    mass_above, mass_from_line = tl.zeros([THREADS], tl.int64), tl.zeros([THREADS], tl.int64)
    num_above = tl.zeros([THREADS], tl.int32)
    x = _load(rows, row, part, stop, TILES)
    while part < stop:
        quarters = quarters_of(x)
        above, from_line = tl.zeros([THREADS], tl.float32), tl.zeros([THREADS], tl.float32)
        for i in tl.static_range(4):
            values = quarters[i]
            mass = mass_of(values, row_max, scale)
            is_above = values >= high
            above += _of_threads(tl.where(is_above, mass, 0.0), THREADS)
            num_above += _of_threads(is_above.to(tl.int32), THREADS)
            if has_ranges(filters):
                add_to_ranges(whole, row, values, mass, is_above, filters, low, per_unit)
            if min_p > 0:
                from_line += _of_threads(tl.where(values >= line, mass, 0.0), THREADS)
        mass_above += (above * FIXED_POINT).to(tl.int64)
        mass_from_line += (from_line * FIXED_POINT).to(tl.int64)
        part += 1
        x = _load(rows, row, part, stop, TILES)
    tl.atomic_add(sums + NUM_ABOVE, tl.sum(num_above).to(tl.int64))
    tl.atomic_add(sums + MASS_ABOVE, tl.sum(mass_above))
    if min_p > 0:
        tl.atomic_add(sums + SHARED_OUT, tl.sum(mass_from_line))


@triton.jit
def _of_threads(x, THREADS: tl.constexpr):
    """[THREADS]: sums of what each of 8 warps' has of a block [N]."""
    return tl.sum(x.reshape(x.shape[0] // THREADS, THREADS), 0)


@triton.jit
def _list(rows, states, whole, summary, row, part, stop, TILES: tl.constexpr, ROOM: tl.constexpr):
    """Lists tokens of some parts that the cut may be: those of the range where it lies, or of all of the bracket."""
    state = tl.load(states.index + row)
    filters, scale = filters_of(states, state), scale_of(temperature_of(states, state))
    row_max = tl.load(summary.floats + row).to(tl.float32)
    low, high, sums = tl.load(whole.low + row), tl.load(whole.high + row), whole.sums + row * NUM_SUMS
    per_unit, start, last, lists_any = tl.full([], 1.0, tl.float32), low * 0, low * 0 + float("inf"), filters[0] > 0
    weighs = (filters[0] > 0) & has_ranges(filters)
    if has_ranges(filters):
        per_unit = ranges_per_unit(low, high)
        start, last, reached = range_of_cut(whole, row, filters)
        lists_any = reached >= 0
        if part == 0:
            tl.store(sums + REACHED, reached)
    if lists_any:
        THREADS: tl.constexpr = 256
        mass_reached = tl.zeros([THREADS], tl.int64)
        x = _load(rows, row, part, stop, TILES)
        while part < stop:
            append_range(whole, row, x, part * (TILES * TILE), low, high, per_unit, start, last, ROOM)
            if weighs:
                mass = mass_between(x, mass_of(x, row_max, scale), low, high, per_unit, last)
                of_thread = _of_threads(tl.sum(mass.reshape(TILES * TILE // 4, 4), 1), THREADS)
                mass_reached += (of_thread * FIXED_POINT).to(tl.int64)
            part += 1
            x = _load(rows, row, part, stop, TILES)
        if weighs:
            tl.atomic_add(sums + MASS_REACHED, tl.sum(mass_reached))


@triton.jit
def _load(rows, row, part, stop, TILES: tl.constexpr):
    """Values of a part [TILES 128], none from `stop` on."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < tl.minimum(rows.num_tiles, stop * TILES)
    return load_values(rows, row, ids_of(tile), exists[:, None]).reshape(TILES * TILE)


@triton.jit
def _weigh_part(rows, states, whole, summary, row, part, T: tl.constexpr, TILES: tl.constexpr):
    """Sums the kept tokens of a part's tiles."""
    tile = part * TILES + tl.arange(0, TILES)
    exists = tile < rows.num_tiles
    temperature = temperature_of(states, tl.load(states.index + row))
    cut_value, cut_id = tl.load(summary.cut_value + row), tl.load(summary.cut_id + row)
    _maxima, sums = kept_tiles(rows, row, tile, exists, cut_value, cut_id, scale_of(temperature))
    tl.store(whole.kept_sums + row * T + tile, sums, mask=exists)
