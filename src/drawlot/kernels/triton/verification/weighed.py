"""Rows that `block` has to compare: what q leaves of them is summed, and then the last that is accepted is found."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import follow, let_next_start, wait_for_previous
from drawlot.kernels.triton.reduce import largest
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.together import wait_for
from drawlot.kernels.triton.values import MINUS_INF, ids_of
from drawlot.kernels.triton.verification.draw import draw_from_tile
from drawlot.kernels.triton.verification.leftover import law_of_row, weights_of
from drawlot.kernels.triton.verification.requests import rows_of_request, step_key
from drawlot.kernels.triton.verification.settle import put_emitted


@triton.jit
def weigh_kernel(
    rows,
    step,
    judged,
    leftovers,
    num_blocks,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the rows to be weighed, while the laws' kernel draws. num_blocks: of a row, TILES tiles each.

    It is set up when all programs of the laws' kernel run: none that it waits for has yet to begin. ROWS: that are
    looked through at a time.
    """
    let_next_start(OVERLAP)
    item, num_before, start = tl.program_id(0), tl.zeros([], tl.int32), tl.zeros([], tl.int32)
    end = tl.load(step.drafts.cu_rows + step.drafts.num_reqs)
    wait_for(leftovers.settled, step.drafts.num_reqs)
    while start < end:
        row = start + tl.arange(0, ROWS)
        weighed = tl.load(judged.weighed + row, mask=row < end, other=0)
        # Up to each row, itself included: an item's row is the first that has more of them than the item's number.
        number = num_before + tl.cumsum(weighed, 0)
        place = tl.sum((number <= item // num_blocks).to(tl.int32))
        while place < ROWS:
            its_row = (start + place).to(tl.int64)
            _weigh_block(rows, step.drafts, judged, leftovers, its_row, item % num_blocks, TILES)
            item += tl.num_programs(0)
            place = tl.sum((number <= item // num_blocks).to(tl.int32))
        start += ROWS
        if start < end:
            num_before = tl.max(number)
    wait_for_previous(OVERLAP)


@triton.jit
def _weigh_block(rows, drafts, judged, leftovers, row, block, TILES: tl.constexpr):
    """Stores what is left of a block of TILES tiles, and which of them has the largest key of the race over tiles."""
    tile = block * TILES + tl.arange(0, TILES)
    ids, exists = ids_of(tile), tile < rows.num_tiles
    x = load_allowed(rows, tl.load(judged.refused + row), row, ids, exists[:, None])
    noise = tl.load(leftovers.noises + row * leftovers.width + tile, mask=exists, other=0.0)
    law = law_of_row(judged, row)
    _p, left = weights_of(drafts, law, x, ids, exists[:, None])
    masses = tl.sum(left, 1)
    keys = tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + noise, MINUS_INF)
    best_key, best, _ = largest(keys, tile, tile)
    at = row * leftovers.stride + block
    tl.store(leftovers.left + at, tl.sum(masses, 0))
    tl.store(leftovers.keys + at, best_key)
    tl.store(leftovers.best_tiles + at, best)


@triton.jit
def settle_weighed_kernel(
    rows,
    step,
    judged,
    leftovers,
    verdicts,
    verified,
    num_blocks,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request, if it is open. COLUMNS, BLOCKS: powers of two > K, >= num_blocks."""
    request = tl.program_id(0).to(tl.int64)
    column, block = tl.arange(0, COLUMNS), tl.arange(0, BLOCKS)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    at, exists = first + column, column < num_rows
    follow(OVERLAP)
    # All at once, whether or not it is needed: it is the wait that costs.
    lowest = tl.load(verdicts.lowest + request)
    weighed = tl.load(judged.weighed + at, mask=exists, other=0) != 0
    prefix = tl.load(judged.prefixes + at, mask=exists, other=0.0)
    coin = tl.load(judged.coins + at - 1, mask=exists & (column > 0), other=2.0)
    places, of_row = at[:, None] * leftovers.stride + block[None, :], exists[:, None] & (block < num_blocks)[None, :]
    left = tl.load(leftovers.left + places, mask=of_row, other=0.0)
    keys = tl.load(leftovers.keys + places, mask=of_row, other=MINUS_INF)
    tiles = tl.load(leftovers.best_tiles + places, mask=of_row, other=0)
    draft = tl.load(judged.drafts + at, mask=exists, other=-1)
    if lowest < 0:
        return
    left = tl.sum(left, 1)
    rest = left + 1 - prefix
    h = tl.where(rest == 0, 1.0, left / rest)
    # Rows whose coin is not below P_i, of which h_i is a part, have not been weighed.
    accepted = tl.maximum(lowest, tl.max(tl.where(weighed & (coin < h), column, 0)))
    row = first + accepted
    token = tl.load(judged.tokens + row)
    if accepted > lowest:
        is_row = (column == accepted)[:, None]
        tile = tl.max(tl.where(is_row, tiles, 0), 0)
        _, best, _ = largest(tl.max(tl.where(is_row, keys, MINUS_INF), 0), tile, tile)
        token = draw_from_tile(
            rows,
            step.drafts,
            tl.load(judged.refused + row),
            law_of_row(judged, row),
            temperature_of(step.states, state),
            row,
            step_key(step.states, state, first, accepted),
            best,
            -1,
            row >= 0,
            row >= 0,
            row < 0,
            WIDE,
        )
    put_emitted(verified, request, at, exists, column, draft, accepted, token, K)
