"""The one launch that reads all logits: tiles of the target's rows, sums of drafts' laws, and what rows judge."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.scan import scan_block
from drawlot.kernels.triton.tile_summary import LOG2_E, tile_maxima, tile_sums
from drawlot.kernels.triton.values import MINUS_INF, load_all_logits, slices_of
from drawlot.kernels.triton.verification.judge import judge_row
from drawlot.kernels.triton.verification.requests import load_drafts, looks_at_q, rows_of_request


@triton.jit
def scan_step_kernel(
    rows,
    step,
    tiles,
    methods,
    judged,
    leftovers,
    verdicts,
    NUM_BLOCKS: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPARSE: tl.constexpr,
    TILES: tl.constexpr,
    FULL: tl.constexpr,
    PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Programs: one a row that a request may have, NUM_BLOCKS a row, NUM_BLOCKS a line of q without a log-sum-exp.

    COLUMNS, SPARSE: powers of two > K, >= tokens of a sparse law; FULL: as for `scan_kernel`; PARTS: into which a block
    of q is summed.
    """
    program = tl.program_id(0)
    # First what waits for one load after the other.
    first_block = step.drafts.num_reqs * (K + 1)
    first_line = first_block + step.drafts.num_rows * NUM_BLOCKS
    if program < first_block:
        let_next_start(OVERLAP)
        request, column = (program // (K + 1)).to(tl.int64), program % (K + 1)
        judge_row(rows, step, methods, judged, leftovers, verdicts, request, column, K, COLUMNS, SPARSE)
    elif program < first_line:
        # Whole rows wait for all programs that find laws, not for the rows that there are.
        item = program - first_block
        scan_block(
            rows, step.states, tiles, item, first_block, 0, NUM_BLOCKS, TILES, FULL, False, False, 0, OVERLAP, OVERLAP
        )
    else:
        let_next_start(OVERLAP)
        if step.drafts.q.logits is not None:
            line = (program - first_line) // NUM_BLOCKS
            block = (program - first_line) % NUM_BLOCKS
            _put_sums(step, methods, judged, (line // K).to(tl.int64), line % K, block, K, COLUMNS, TILES, PARTS)


@triton.jit
def _put_sums(
    step,
    methods,
    judged,
    request,
    column,
    block,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Stores maxima and sums of PARTS of a block of the law that a draft was drawn from, if it is looked at."""
    first, num_rows = rows_of_request(step.drafts, request)
    _, num_drafts = load_drafts(step.drafts, request, tl.arange(0, COLUMNS), num_rows, K)
    state = tl.load(step.drafts.state_rows + request)
    if (column < num_drafts) & (state >= 0):
        if looks_at_q(step.states, methods, state):
            tile = block * TILES + tl.arange(0, TILES)
            q = step.drafts.q
            exists = (tile < q.num_tiles)[:, None, None]
            x = load_all_logits(q, state * step.drafts.lines + column, slices_of(tile), exists)
            # Tiles of a part lie in one warp: no barrier.
            maxima = tile_maxima(x)
            sums = tile_sums(x, maxima, 1.0).reshape(PARTS, TILES // PARTS)
            maxima = maxima.reshape(PARTS, TILES // PARTS)
            maximum = tl.max(maxima, 1)
            shift = maxima - tl.where(maximum == MINUS_INF, 0.0, maximum)[:, None]
            at = (first + column) * judged.parts + block * PARTS + tl.arange(0, PARTS)
            tl.store(judged.q_maxima + at, maximum)
            tl.store(judged.q_sums + at, tl.sum(sums * tl.exp2(shift * LOG2_E), 1))
