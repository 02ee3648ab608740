"""The one read of the logits: maximum and mass of every tile of 128 ids."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.states import scan_scale
from drawlot.kernels.triton.values import (
    MINUS_INF,
    edited,
    grammar_masked,
    ids_of,
    is_edited,
    load_logits,
    slot_of,
)

_FEW = tl.constexpr(4)
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
    maxima = tl.max(x, 1)
    sums = tile_sums(x, maxima, scan_scale(states, state))
    if rows.bitmask is not None or rows.overlay is not None or rows.edits is not None:
        # A mask hides a NaN from the sum, but not from the status of its row.
        bad = tl.max(((logits != logits) | (logits == float("inf"))).to(tl.int32), 1)
        sums = tl.where(bad != 0, float("nan"), sums)
    at = row * tiles.stride + tile
    tl.store(tiles.maxima + at, maxima, mask=tile < rows.num_tiles)
    tl.store(tiles.sums + at, sums, mask=tile < rows.num_tiles)
    if tiles.raw_sums is not None:
        if raw_apart(rows, states, state, row) & (tl.load(wanted.wanted + state) != 0):
            raw_maxima = tl.max(raw, 1)
            tl.store(tiles.raw_maxima + at, raw_maxima, mask=tile < rows.num_tiles)
            tl.store(tiles.raw_sums + at, tile_sums(raw, raw_maxima, 1.0), mask=tile < rows.num_tiles)


@triton.jit
def raw_apart(rows, states, state, row):
    """Whether raw logprobs need sums of their own, the row's being tempered or edited."""
    return (scan_scale(states, state) != 1.0) | is_edited(rows, row)
