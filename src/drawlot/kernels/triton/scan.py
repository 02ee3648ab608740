"""The one read of the logits: mass, maximum and best group of every tile of 128 ids."""

import triton
import triton.language as tl

from drawlot.kernels.triton.edit_kernels import (
    begin_to_lay,
    lay_next,
    load_asked,
    load_next,
    load_touched,
    most_left,
)
from drawlot.kernels.triton.lost_mass import weigh_lost
from drawlot.kernels.triton.lowered import kind_of_lowered, lows_of, may_be_lowered
from drawlot.kernels.triton.pdl import follow_of_many
from drawlot.kernels.triton.row_order import is_ahead, row_ahead, row_in_order
from drawlot.kernels.triton.states import asked_by
from drawlot.kernels.triton.summary import NUM_ROWS, UNDECIDED
from drawlot.kernels.triton.tile_summary import GROUPS, best_group, of_each, tile_maxima, tile_sums
from drawlot.kernels.triton.values import (
    GROUP,
    MINUS_INF,
    MINUS_INF_ORDER,
    SLICES,
    STRANDS,
    grammar_masked_slices,
    is_bad,
    laid_over,
    line_at,
    load_line,
    order_of,
    slices_of,
)


@triton.jit
def scan_kernel(
    rows,
    states,
    tiles,
    orders,
    NUM_BLOCKS: tl.constexpr,
    TILES: tl.constexpr,
    FULL: tl.constexpr,
    LOWERS: tl.constexpr,
    BY_MASS: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: TILES tiles of one row.

    orders: as for `row_in_order`. FULL: every tile of a row has 128 tokens. LOWERS: rows may be `lowered`, for which
    there are tables and bounds. BY_MASS: so may rows without top_k; each row has a program ahead of all others, see
    `weigh_lost`. AHEAD: so many edited rows have programs ahead, see `row_order`.
    """
    if BY_MASS:
        num_rows = tl.num_programs(0) // (NUM_BLOCKS + 1)
        item = tl.program_id(0) - num_rows
        if item < 0:
            follow_of_many(EARLY, OVERLAP)
            weigh_lost(rows, states, tl.program_id(0).to(tl.int64))
            return
    else:
        item, num_rows = tl.program_id(0) - AHEAD * NUM_BLOCKS, tl.num_programs(0) // NUM_BLOCKS - AHEAD
    scan_block(
        rows,
        states,
        tiles,
        item,
        num_rows,
        orders,
        NUM_BLOCKS,
        TILES,
        FULL,
        LOWERS,
        BY_MASS,
        AHEAD,
        EARLY,
        OVERLAP,
    )


@triton.jit
def scan_block(
    rows,
    states,
    tiles,
    item,
    undecided,
    orders,
    NUM_BLOCKS: tl.constexpr,
    TILES: tl.constexpr,
    FULL: tl.constexpr,
    LOWERS: tl.constexpr,
    BY_MASS: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Item: a block of TILES tiles of one row. undecided: how many have to count themselves decided.

    Where edits are laid over rows here these are all rows; items below 0 are those of rows ahead. orders, FULL,
    LOWERS, BY_MASS, AHEAD: as for `scan_kernel`.
    """
    row, block = item // NUM_BLOCKS, (item + AHEAD * NUM_BLOCKS) % NUM_BLOCKS
    tile = block * TILES + tl.arange(0, TILES)
    SIDE: tl.constexpr = 32 // rows.logits.dtype.element_ty.primitive_bitwidth
    ids = slices_of(tile)
    if FULL:
        # Of what there is no tile of, the last one is read: masks take 23 of 254 instructions in float32.
        ids = slices_of(tl.minimum(tile, rows.num_tiles - 1))
    # In front of all branches: behind one the compiler does not see that 32 bits are wide enough.
    start, at = line_at(row, rows.stride), line_at(row, tiles.stride) + tile
    follow_of_many(EARLY, OVERLAP)
    if LOWERS or AHEAD:
        is_row = item >= 0
        if LOWERS:
            row = row_in_order(states, item, undecided * NUM_BLOCKS, orders, NUM_BLOCKS, BY_MASS)
        elif item < 0:
            row = row_ahead(states, undecided, (item + AHEAD * NUM_BLOCKS) // NUM_BLOCKS)
            is_row = row >= 0
            row = tl.maximum(row, 0)
        start, at = line_at(row, rows.stride), line_at(row, tiles.stride) + tile
    row = row.to(tl.int64)
    # What is loaded arrives in turn: first what other loads wait for. Skipped rows have logits too.
    # Mostly row i is of request i, so that what it asks for comes with its number.
    asked = tl.load(states.asked + tl.minimum(row, states.num_states - 1))
    state = tl.load(states.index + row).to(tl.int32)
    if AHEAD:
        state = tl.where(is_row, state, -1)
    if LOWERS:
        is_free = may_be_lowered(rows, row)
    # With edits, float32 rows do without so many registers until it is known what is asked of them.
    logits = None
    if rows.edits_of is None or SIDE == 2:
        logits = _load_tiles(rows, start, ids, FULL)
    if item == 0:
        place = tl.arange(0, 8)
        counts = tl.where(place == UNDECIDED, -2 * undecided, tl.where(place == NUM_ROWS, undecided, 0))
        tl.store(tiles.control + place, counts.to(tl.int64))
    # Behind that branch, lest the compiler wait for the state before it loads logits.
    if state != row:
        asked = tl.load(states.asked + tl.maximum(state, 0))
    scale, wants, apart, needs_sums, lowered, slot = asked_by(asked)
    if AHEAD:
        if (item >= 0) & (slot >= 0):
            # Programs ahead have laid edits over it.
            state = tl.where(is_ahead(states, undecided, row, AHEAD), -1, state)
    if state >= 0:
        if rows.edits_of is not None:
            kind, is_raw = 0, slot < 0
            if LOWERS:
                lowered = lowered & is_free
                if not BY_MASS:
                    lowered = lowered & (needs_sums == 0)
                is_raw = is_raw | lowered
            if is_raw == 0:
                kind = _put_laid_tiles(
                    rows, tiles, row, slot, start, ids, at, tile, logits, scale, wants, needs_sums, FULL, SIDE
                )
            else:
                if LOWERS:
                    touched = tl.zeros([TILES, STRANDS // SIDE, SLICES], tl.int32)
                    if lowered:
                        touched = load_touched(rows.edits_of, slot, tile, SIDE)
                own = _load_tiles(rows, start, ids, FULL) if logits is None else logits
                raw = grammar_masked_slices(rows, row, own, tile, SIDE)
                maxima, best_groups = _put_unedited_tiles(rows, tiles, at, tile, own, raw, scale, apart)
                if LOWERS:
                    if lowered:
                        lows = lows_of(maxima, best_groups, touched)
                        _put(tiles.edit_bounds, at, lows, raw, rows.logits.dtype.element_ty.primitive_bitwidth)
                        kind = kind_of_lowered(slot)
            if block == 0:
                tl.store(rows.edits.kind + row, kind)
        else:
            raw = grammar_masked_slices(rows, row, logits, tile, SIDE)
            if rows.edits is not None:
                kind = tl.load(rows.edits.kind + row)
                if kind != 0:
                    if tiles.raw_sums is not None:
                        if wants:
                            _put_raw_tiles(rows, tiles, at, tile, raw, tile_maxima(raw))
                    x = laid_over(rows.edits, kind, rows, row, raw, ids, of_each(tile < rows.num_tiles, ids))
                    _put_tiles(rows, tiles, at, tile, logits, x, scale)
                else:
                    _put_unedited_tiles(rows, tiles, at, tile, logits, raw, scale, apart)
            else:
                _put_unedited_tiles(rows, tiles, at, tile, logits, raw, scale, apart)


@triton.jit
def _load_tiles(rows, start, ids, FULL: tl.constexpr):
    """Logits of tiles, in slices."""
    # Not masked by tile: past the last one no id is a token's.
    return load_line(rows, start, ids, None if FULL else ids >= 0)


@triton.jit
def _put_laid_tiles(
    rows,
    tiles,
    row,
    slot,
    start,
    ids,
    at,
    tile,
    logits,
    scale,
    wants,
    needs_sums,
    FULL: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Lays what a request edits over tiles of a row, stores what `Tiles` holds of them, and returns the row's kind.

    logits: None, if they are to be loaded.
    """
    loaded = load_asked(rows.edits_of, row, slot, tile, SIDE)
    kind, left, asked = begin_to_lay(rows, rows.edits_of, row, tile, loaded, SIDE)
    first = load_next(rows, rows.edits_of, row, slot, tile, left)
    if logits is None:
        # After what edits read in turn: each load of that would wait for them.
        logits = _load_tiles(rows, start, ids, FULL)
    turns = most_left(left)
    raw = grammar_masked_slices(rows, row, logits, tile, SIDE)
    sums, bounds_do = tl.zeros(tile.shape, tl.float32), row < 0
    if tiles.raw_sums is not None:
        if wants:
            # First, since raw values that are kept beside edited ones would take too many registers.
            sums = _put_raw_tiles(rows, tiles, at, tile, raw, tile_maxima(raw))
            bounds_do = needs_sums == 0
    x, highest = _edited(rows, row, slot, tile, kind, left, turns, asked, first, raw)
    if tiles.edit_bounds is not None:
        bounds = order_of(tl.max(tl.max(highest, 2), 1))
        _put(tiles.edit_bounds, at, bounds, raw, rows.logits.dtype.element_ty.primitive_bitwidth)
    maxima, best_groups = best_group(x, SIDE)
    if bounds_do:
        sums = _bounds_of_sums(maxima, sums)
    else:
        sums = tile_sums(x, maxima, scale)
    _put_found(rows, tiles, at, tile, logits, x, maxima, best_groups, sums)
    return kind


# A function in machine code, too: hardly any row comes here.
@triton.jit(noinline=True)
def lay_row(rows, tiles, row, slot, scale, TILES: tl.constexpr):
    """Lays edits over a whole row that was scanned as `lowered` says, TILES tiles at a time. A barrier comes last.

    scale: at which it is summed.
    """
    SIDE: tl.constexpr = 32 // rows.logits.dtype.element_ty.primitive_bitwidth
    start, kind, first = line_at(row, rows.stride), 0, 0
    while first < rows.num_tiles:
        tile = first + tl.arange(0, TILES)
        ids, at = slices_of(tile), line_at(row, tiles.stride) + tile
        kind = _put_laid_tiles(
            rows, tiles, row, slot, start, ids, at, tile, None, scale, row >= 0, row >= 0, False, SIDE
        )
        first += TILES
    tl.store(rows.edits.kind + row, kind)
    tl.debug_barrier()


@triton.jit
def _bounds_of_sums(maxima, raw_sums):
    """What sums of edited tiles do not exceed, where nobody needs them; NaN where the tile is bad."""
    bounds = tl.where(maxima == MINUS_INF, 0.0, 128.0)
    # Raw sums are finite, or NaN. Penalties may make a value infinite.
    return tl.where(maxima == float("inf"), float("nan"), tl.fma(raw_sums, 0.0, bounds))


@triton.jit
def _edited(rows, row, slot, tile, kind, left, turns, asked, first, raw):
    """Values of tiles of a row that a request edits; lays them over the row, too.

    And the highest of the touched tokens that each thread has, raw or edited. kind, left, asked: of `begin_to_lay`, of
    the tiles; turns: of `most_left`; first: of `load_next`. Other programs lay new values over other words: what these
    have is read by none before the scan ends.
    """
    # As threads have them, so that each changes its own, and by numbers that are constants.
    x = raw.reshape(raw.shape[0], SLICES, left.shape[1], left.shape[2], GROUP)
    slice, neighbour = tl.arange(0, SLICES)[:, None, None, None], tl.arange(0, GROUP)[None, None, None, :]
    number = (slice * GROUP + neighbour)[None, :, :, :, :]
    if kind == 2:
        # Lest all rows do this, and then choose.
        tl.debug_barrier()
        x = tl.where(is_bad(x), float("nan"), MINUS_INF)
    token, bit, value, entry = first
    highest = tl.full(left.shape, MINUS_INF, tl.float32)
    while turns > 0:
        before = value
        value = lay_next(rows, rows.edits_of, row, slot, asked, token, value, entry)
        highest = tl.where(token >= 0, tl.maximum(highest, tl.maximum(before, value)), highest)
        x = tl.where(bit[:, None, :, :, None] == number, value[:, None, :, :, None], x)
        left &= left - 1
        turns -= 1
        if turns > 0:
            token, bit, value, entry = load_next(rows, rows.edits_of, row, slot, tile, left)
    return x.reshape(raw.shape), highest


@triton.jit
def _put_unedited_tiles(rows, tiles, at, tile, logits, raw, scale, apart):
    """Stores what `Tiles` holds of tiles of raw values, and returns their maxima and best groups."""
    maxima, best_groups = _put_tiles(rows, tiles, at, tile, logits, raw, scale)
    if tiles.raw_sums is not None:
        if apart:
            _put_raw_tiles(rows, tiles, at, tile, raw, maxima)
    return maxima, best_groups


@triton.jit
def _put_tiles(rows, tiles, at, tile, logits, x, scale):
    """Stores what `Tiles` holds of tiles of values x, but for raw ones; returns their maxima and best groups."""
    maxima, best_groups = best_group(x, 32 // rows.logits.dtype.element_ty.primitive_bitwidth)
    _put_found(rows, tiles, at, tile, logits, x, maxima, best_groups, tile_sums(x, maxima, scale))
    return maxima, best_groups


@triton.jit
def _put_found(rows, tiles, at, tile, logits, x, maxima, best_groups, sums):
    """Stores what was found of tiles of values x."""
    LANES: tl.constexpr = rows.logits.dtype.element_ty.primitive_bitwidth
    if rows.bitmask is not None or (rows.edits is not None and rows.edits_of is None):
        # What hides a NaN from the sum does not from the status of its row.
        bad = tile_maxima(is_bad(logits).to(tl.int32))
        sums = tl.where(bad != 0, float("nan"), sums)
    exists = tile < rows.num_tiles
    _put(tiles.maxima, at, tl.where(exists, maxima, MINUS_INF), x, LANES)
    _put(tiles.sums, at, tl.where(exists, sums, 0.0), x, LANES)
    _put(tiles.best_groups, at, tl.where(exists, best_groups, MINUS_INF_ORDER & -GROUPS), x, LANES)


@triton.jit
def _put_raw_tiles(rows, tiles, at, tile, raw, maxima):
    """Stores what raw logprobs need of tiles of raw values, and returns their sums."""
    LANES: tl.constexpr = rows.logits.dtype.element_ty.primitive_bitwidth
    exists, sums = tile < rows.num_tiles, tile_sums(raw, maxima, 1.0)
    _put(tiles.raw_maxima, at, tl.where(exists, maxima, MINUS_INF), raw, LANES)
    _put(tiles.raw_sums, at, tl.where(exists, sums, 0.0), raw, LANES)
    return sums


@triton.jit
def _put(base, at, of_tile, x, LANES: tl.constexpr):
    """Stores a number of each tile, from the threads that have it: as a block of M they would exchange it first.

    LANES: 32, and half as many for half-width logits, of which a thread has eight side by side.
    """
    if len(x.shape) == 3:
        slice, lane = tl.arange(0, x.shape[1])[None, :, None], tl.arange(0, LANES)[None, None, :]
        # Places as if threads stored four numbers each, and tiles came before slices, for which threads are left the
        # tokens they have. One is stored.
        place = tl.max_contiguous(tl.multiple_of(of_each(at, x) + slice + lane, [1, 1, 4]), [2, 1, 4])
        first = (slice == 0) & (lane == 0)
    else:
        lane = tl.arange(0, x.shape[1])[None, :]
        place, first = of_each(at, x) + lane, lane == 0
    tl.store(base + place, of_each(of_tile, x), mask=first)
