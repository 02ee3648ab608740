"""The one read of the logits: mass, maximum and best group of every tile of 128 ids."""

import triton
import triton.language as tl

from drawlot.kernels.triton.edit_kernels import lay_over, touched_words
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.states import asked_of_scan
from drawlot.kernels.triton.summary import UNDECIDED
from drawlot.kernels.triton.values import (
    MINUS_INF,
    grammar_masked,
    is_edited,
    laid_over,
    load_all_logits,
    order_of,
    slices_of,
    touches,
    with_new_values,
)

GROUP, GROUPS = tl.constexpr(4), tl.constexpr(32)
WORDS = tl.constexpr(4)
"""Of 32 tokens, that a tile has"""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_sums(x, maxima, scale):
    """float32 [M]: sum of exp((x - maximum) scale) of tiles, [M, 128] or in slices; NaN where x is NaN or +inf.

    Passes over rows sum in blocks laid out alike, so that equal tiles have equal bits.
    """
    finite = of_each(tl.where(maxima == MINUS_INF, 0.0, maxima), x)
    # The difference first: scaled values would tie where logits do not.
    mass = tl.exp2((x - finite) * (scale * LOG2_E))
    if len(x.shape) == 3:
        mass = tl.sum(mass, 1)
    return tl.sum(mass, 1)


@triton.jit
def of_each(of_tile, x):
    """A number of each tile [M], for its tokens."""
    if len(x.shape) == 3:
        result = of_tile[:, None, None]
    else:
        result = of_tile[:, None]
    return result


@triton.jit
def tile_maxima(x):
    """[M]: of tiles [M, 128] or in slices."""
    if len(x.shape) == 3:
        x = tl.max(x, 1)
    return tl.max(x, 1)


@triton.jit
def best_group(x):
    """Of tiles: the maximum; the first of 32 groups of four neighbours that has it, and what the others reach.

    x: as for `tile_sums`. The latter in one int32, see `group_of` and `others_of`.
    """
    if len(x.shape) == 3:
        PER_SLICE: tl.constexpr = GROUPS // x.shape[1]
        best = tl.max(x.reshape(x.shape[0], x.shape[1], PER_SLICE, GROUP), 3)
        group = (tl.arange(0, x.shape[1]) * PER_SLICE)[None, :, None] + tl.arange(0, PER_SLICE)[None, None, :]
    else:
        best = tl.max(x.reshape(x.shape[0], GROUPS, GROUP), 2)
        group = tl.arange(0, GROUPS)[None, :]
    maxima = tile_maxima(best)
    first = -tile_maxima(tl.where(best == of_each(maxima, x), -group, -GROUPS))
    others = tile_maxima(tl.where(group == of_each(first, x), MINUS_INF, best))
    return maxima, (order_of(others) & -GROUPS) | first


@triton.jit
def group_of(best_groups):
    """The group that has a tile's maximum, 0 to 31."""
    return best_groups & (GROUPS - 1)


@triton.jit
def others_of(best_groups):
    """An order that no token of a tile's other groups exceeds; that of -inf if they have none."""
    return best_groups | (GROUPS - 1)


@triton.jit
def scan_kernel(rows, states, tiles, NUM_BLOCKS: tl.constexpr, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Program: TILES tiles of one row."""
    num_rows = tl.num_programs(0) // NUM_BLOCKS
    scan_block(rows, states, tiles, tl.program_id(0), num_rows, NUM_BLOCKS, TILES, OVERLAP)


@triton.jit
def scan_block(
    rows,
    states,
    tiles,
    item,
    undecided,
    NUM_BLOCKS: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Item: a block of TILES tiles of one row. undecided: how many have to count themselves decided."""
    row = (item // NUM_BLOCKS).to(tl.int64)
    tile = (item % NUM_BLOCKS) * TILES + tl.arange(0, TILES)
    ids = slices_of(tile)
    follow(OVERLAP)
    # What is loaded arrives in turn: first what other loads wait for. Skipped rows have logits too.
    state = tl.load(states.index + row)
    logits = load_all_logits(rows, row, ids, (tile < rows.num_tiles)[:, None, None])
    if item == 0:
        place = tl.arange(0, 8)
        tl.store(tiles.control + place, tl.where(place == UNDECIDED, -undecided, 0))
    # Behind that branch, lest the compiler wait for the state before it loads logits; with edits behind another one.
    if rows.edits_of is None:
        scale, wants = asked_of_scan(states, tl.maximum(state, 0))
    if state >= 0:
        if rows.edits_of is not None:
            scale, wants = asked_of_scan(states, state)
        exists = of_each(tile < rows.num_tiles, ids)
        raw = grammar_masked(rows, row, logits, ids, exists)
        if rows.edits_of is not None:
            slot = tl.load(rows.edits_of.tables.slot_of + state)
            kind = 0
            if slot >= 0:
                x, kind = _edited(rows, row, slot, tile, (item % NUM_BLOCKS) * TILES, ids, raw)
                _put_tiles(rows, tiles, row, tile, logits, raw, x, scale, wants, True)
            else:
                _put_tiles(rows, tiles, row, tile, logits, raw, raw, scale, wants, False)
            if item % NUM_BLOCKS == 0:
                tl.store(rows.edits.kind + row, kind)
        elif rows.edits is not None:
            kind = tl.load(rows.edits.kind + row)
            if kind != 0:
                x = laid_over(rows.edits, kind, rows, row, raw, ids, exists)
                _put_tiles(rows, tiles, row, tile, logits, raw, x, scale, wants, True)
            else:
                _put_tiles(rows, tiles, row, tile, logits, raw, raw, scale, wants, False)
        else:
            _put_tiles(rows, tiles, row, tile, logits, raw, raw, scale, wants, False)


@triton.jit
def _edited(rows, row, slot, tile, first, ids, raw):
    """Raw values [M, 4, 32] of tiles [M] from the first on as edited, and the kind of the row; lays them over it, too.

    Other programs lay new values over other words: what these have is read by none before the scan ends.
    """
    # Each thread loads the words that it needs, instead of waiting for what is laid.
    words = tile[:, None, None] * WORDS + tl.arange(0, WORDS)[None, :, None]
    touched = touched_words(rows.edits_of, row, slot, words)
    kind = lay_over(rows, rows.edits_of, row, slot, first * WORDS + tl.arange(0, tile.shape[0] * WORDS))
    tl.debug_barrier()
    is_touched = (((touched >> (ids & 31)) & 1) != 0) & (ids < rows.vocab_size)
    return with_new_values(rows.edits, kind, row, raw, ids, is_touched, is_touched), kind


@triton.jit
def _put_tiles(rows, tiles, row, tile, logits, raw, x, scale, wants, EDITED: tl.constexpr):
    """Stores what `Tiles` holds of some tiles of values x, which edits have touched or not."""
    LANES: tl.constexpr = rows.logits.dtype.element_ty.primitive_bitwidth
    maxima, best_groups = best_group(x)
    sums = tile_sums(x, maxima, scale)
    if rows.bitmask is not None or EDITED:
        # A mask hides a NaN from the sum, but not from the status of its row.
        bad = tile_maxima(((logits != logits) | (logits == float("inf"))).to(tl.int32))
        sums = tl.where(bad != 0, float("nan"), sums)
    at, exists = row * tiles.stride + tile, tile < rows.num_tiles
    _put(tiles.maxima, at, maxima, exists, x, LANES)
    _put(tiles.sums, at, sums, exists, x, LANES)
    _put(tiles.best_groups, at, best_groups, exists, x, LANES)
    if tiles.raw_sums is not None:
        if wants & ((scale != 1.0) | EDITED | touches(rows.overlay, row)):
            raw_maxima, _ = best_group(raw)
            _put(tiles.raw_maxima, at, raw_maxima, exists, x, LANES)
            _put(tiles.raw_sums, at, tile_sums(raw, raw_maxima, 1.0), exists, x, LANES)


@triton.jit
def _put(base, at, of_tile, mask, x, LANES: tl.constexpr):
    """Stores a number of each tile, from the threads that have it: as a block of M they would exchange it first.

    LANES: 32, and half as many for half-width logits, of which a thread has eight side by side.
    """
    if len(x.shape) == 3:
        slice, lane = tl.arange(0, x.shape[1])[None, :, None], tl.arange(0, LANES)[None, None, :]
        # Places as if threads stored four numbers each, for which they are left the tokens they have. One is stored.
        place = tl.max_contiguous(tl.multiple_of(of_each(at, x) + slice + lane, [1, 1, 4]), [1, 1, 4])
        first = (slice == 0) & (lane == 0)
    else:
        lane = tl.arange(0, x.shape[1])[None, :]
        place, first = of_each(at, x) + lane, lane == 0
    tl.store(base + place, of_each(of_tile, x), mask=of_each(mask, x) & first)


@triton.jit
def raw_apart(rows, scale, row):
    """Whether raw logprobs need sums of their own, the row's being tempered or edited; scale: of the scan."""
    return (scale != 1.0) | is_edited(rows, row)
