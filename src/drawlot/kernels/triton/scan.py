"""The one read of the logits: mass, maximum and best group of every tile of 128 ids."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.states import scan_scale
from drawlot.kernels.triton.summary import UNDECIDED
from drawlot.kernels.triton.values import (
    MINUS_INF,
    edited,
    grammar_masked,
    ids_of,
    is_edited,
    load_all_logits,
    load_logits,
    order_of,
    slices_of,
    slot_of,
)

_FEW = tl.constexpr(4)
GROUP, GROUPS = tl.constexpr(4), tl.constexpr(32)
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
def scan_kernel(rows, states, tiles, wanted, NUM_BLOCKS: tl.constexpr, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Program: TILES tiles of one row."""
    num_rows = tl.num_programs(0) // NUM_BLOCKS
    scan_block(rows, states, tiles, wanted, tl.program_id(0), num_rows, NUM_BLOCKS, TILES, OVERLAP)


@triton.jit
def scan_block(
    rows,
    states,
    tiles,
    wanted,
    item,
    undecided,
    NUM_BLOCKS: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Item: a block of TILES tiles of one row. undecided: how many have to count themselves decided."""
    row = (item // NUM_BLOCKS).to(tl.int64)
    tile = (item % NUM_BLOCKS) * TILES + tl.arange(0, TILES)
    ids = slices_of(rows, tile)
    let_next_start(OVERLAP)
    # Before the parameters, so that the program waits once. Skipped rows have logits too.
    logits = load_all_logits(rows, row, ids, (tile < rows.num_tiles)[:, None, None])
    if item == 0:
        place = tl.arange(0, 4)
        tl.store(tiles.control + place, tl.where(place == UNDECIDED, -undecided, 0))
    state = tl.load(states.index + row)
    if state >= 0:
        # Early: a load at the end of a program is waited for by itself.
        scale, is_apart = scan_scale(states, state), state < 0
        if tiles.raw_sums is not None:
            is_apart = raw_apart(rows, states, state, row) & (tl.load(wanted.wanted + state) != 0)
        if rows.edits is None:
            _put_tiles(rows, tiles, row, tile, ids, logits, scale, is_apart, True)
        elif slot_of(rows, row) < 0:
            _put_tiles(rows, tiles, row, tile, ids, logits, scale, is_apart, False)
        else:
            # Edits need many registers, which all rows would pay for: they are given few tiles at a time.
            start = 0
            while start < TILES:
                few = (item % NUM_BLOCKS) * TILES + start + tl.arange(0, _FEW)
                few_ids = ids_of(few)
                few_logits = load_logits(rows, row, few_ids, (few < rows.num_tiles)[:, None])
                _put_tiles(rows, tiles, row, few, few_ids, few_logits, scale, is_apart, True)
                start += _FEW


@triton.jit
def _put_tiles(rows, tiles, row, tile, ids, logits, scale, is_apart, EDITED: tl.constexpr):
    """Stores what `Tiles` holds of some tiles. is_apart: raw sums too; EDITED: edits may touch the row."""
    exists = of_each(tile < rows.num_tiles, ids)
    raw = grammar_masked(rows, row, logits, ids, exists)
    x = raw
    if EDITED:
        x = edited(rows, row, raw, ids, exists)
    maxima, best_groups = best_group(x)
    sums = tile_sums(x, maxima, scale)
    if rows.bitmask is not None or rows.overlay is not None or rows.edits is not None:
        # A mask hides a NaN from the sum, but not from the status of its row.
        bad = tile_maxima(((logits != logits) | (logits == float("inf"))).to(tl.int32))
        sums = tl.where(bad != 0, float("nan"), sums)
    at = row * tiles.stride + tile
    tl.store(tiles.maxima + at, maxima, mask=tile < rows.num_tiles)
    tl.store(tiles.sums + at, sums, mask=tile < rows.num_tiles)
    tl.store(tiles.best_groups + at, best_groups, mask=tile < rows.num_tiles)
    if tiles.raw_sums is not None:
        if is_apart:
            raw_maxima, _ = best_group(raw)
            tl.store(tiles.raw_maxima + at, raw_maxima, mask=tile < rows.num_tiles)
            tl.store(tiles.raw_sums + at, tile_sums(raw, raw_maxima, 1.0), mask=tile < rows.num_tiles)


@triton.jit
def raw_apart(rows, states, state, row):
    """Whether raw logprobs need sums of their own, the row's being tempered or edited."""
    return (scan_scale(states, state) != 1.0) | is_edited(rows, row)
