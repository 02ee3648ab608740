"""The one read of the logits: mass, maximum and best group of every tile of 128 ids."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.states import scan_scale
from drawlot.kernels.triton.values import (
    MINUS_INF,
    MINUS_INF_ORDER,
    edited,
    grammar_masked,
    ids_of,
    is_edited,
    load_logits,
    order_of,
    slot_of,
    value_of,
)

_FEW = tl.constexpr(4)
GROUP, GROUPS = tl.constexpr(4), tl.constexpr(32)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_sums(x, maxima, scale):
    """float32 [M]: sum of exp((x - maximum) scale) over the lanes of tiles [M, 128]; NaN where x is NaN or +inf.

    Every pass sums by this function, in blocks laid out alike, so that equal tiles have equal bits.
    """
    finite = tl.where(maxima == MINUS_INF, 0.0, maxima)
    # The difference first: scaled values would tie where logits do not.
    return tl.sum(tl.exp2((x - finite[:, None]) * (scale * LOG2_E)), 1)


@triton.jit
def best_group(x):
    """Of tiles [M, 128]: the maximum; the first of 32 groups of four neighbours that has it, and what the others reach.

    The latter in one int32, see `group_of` and `others_of`.
    """
    # Four neighbours lie in one thread, and of 32 integers a warp finds the largest by one instruction.
    order = order_of(tl.max(x.reshape(x.shape[0], GROUPS, GROUP), 2))
    group = tl.arange(0, GROUPS)[None, :]
    highest = tl.max(order, 1)
    first = tl.min(tl.where(order == highest[:, None], group, GROUPS), 1)
    others = tl.max(tl.where(group == first[:, None], MINUS_INF_ORDER, order), 1)
    return value_of(highest), (others & -GROUPS) | first


@triton.jit
def group_of(seconds):
    """The group that has a tile's maximum, 0 to 31."""
    return seconds & (GROUPS - 1)


@triton.jit
def others_of(seconds):
    """An order that no token of a tile's other groups exceeds; that of -inf if they have none."""
    return seconds | (GROUPS - 1)


@triton.jit
def scan_kernel(rows, states, tiles, wanted, num_blocks, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Program: TILES tiles of one row."""
    scan_block(rows, states, tiles, wanted, tl.program_id(0), num_blocks, TILES, OVERLAP)


@triton.jit
def scan_block(rows, states, tiles, wanted, item, num_blocks, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Item: a block of TILES tiles of one row."""
    row = (item // num_blocks).to(tl.int64)
    tile = (item % num_blocks) * TILES + tl.arange(0, TILES)
    ids = ids_of(tile)
    exists = (tile < rows.num_tiles)[:, None]
    let_next_start(OVERLAP)
    # Before the parameters, so that the program waits once. Skipped rows have logits too.
    logits = load_logits(rows, row, ids, exists)
    if item == 0:
        tl.store(tiles.control + tl.arange(0, 4), 0)
    state = tl.load(states.index + row)
    if state >= 0:
        if rows.edits is None:
            _put_tiles(rows, states, tiles, wanted, row, state, tile, logits, True)
        elif slot_of(rows, row) < 0:
            _put_tiles(rows, states, tiles, wanted, row, state, tile, logits, False)
        else:
            # Edits need many registers, which all rows would pay for: they are given few tiles at a time.
            start = 0
            while start < TILES:
                few = (item % num_blocks) * TILES + start + tl.arange(0, _FEW)
                few_logits = load_logits(rows, row, ids_of(few), (few < rows.num_tiles)[:, None])
                _put_tiles(rows, states, tiles, wanted, row, state, few, few_logits, True)
                start += _FEW


@triton.jit
def _put_tiles(rows, states, tiles, wanted, row, state, tile, logits, EDITED: tl.constexpr):
    """Stores maxima and sums of tiles. EDITED: edits may touch the row."""
    ids = ids_of(tile)
    exists = (tile < rows.num_tiles)[:, None]
    raw = grammar_masked(rows, row, logits, ids, exists)
    x = raw
    if EDITED:
        x = edited(rows, row, raw, ids, exists)
    maxima, seconds = best_group(x)
    sums = tile_sums(x, maxima, scan_scale(states, state))
    if rows.bitmask is not None or rows.overlay is not None or rows.edits is not None:
        # A mask hides a NaN from the sum, but not from the status of its row.
        bad = tl.max(((logits != logits) | (logits == float("inf"))).to(tl.int32), 1)
        sums = tl.where(bad != 0, float("nan"), sums)
    at = row * tiles.stride + tile
    tl.store(tiles.maxima + at, maxima, mask=tile < rows.num_tiles)
    tl.store(tiles.sums + at, sums, mask=tile < rows.num_tiles)
    tl.store(tiles.seconds + at, seconds, mask=tile < rows.num_tiles)
    if tiles.raw_sums is not None:
        if raw_apart(rows, states, state, row) & (tl.load(wanted.wanted + state) != 0):
            raw_maxima, _ = best_group(raw)
            tl.store(tiles.raw_maxima + at, raw_maxima, mask=tile < rows.num_tiles)
            tl.store(tiles.raw_sums + at, tile_sums(raw, raw_maxima, 1.0), mask=tile < rows.num_tiles)


@triton.jit
def raw_apart(rows, states, state, row):
    """Whether raw logprobs need sums of their own, the row's being tempered or edited."""
    return (scan_scale(states, state) != 1.0) | is_edited(rows, row)
