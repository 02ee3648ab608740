"""The one launch that reads all logits: tiles of the target's rows, sums of drafts' laws, and what requests ask for."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.scan import LOG2_E, scan_kernel
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.values import MINUS_INF, ids_of, load_logits
from drawlot.kernels.triton.verification.requests import (
    COUPLED,
    is_filtered,
    load_drafts,
    looks_at_q,
    method_of,
    rows_of_request,
)


@triton.jit
def scan_step_kernel(
    rows,
    step,
    tiles,
    wanted,
    methods,
    judged,
    leftovers,
    verdicts,
    num_blocks,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Programs: num_blocks a row, one a request, and num_blocks a line of q where log-sum-exps are not given.

    COLUMNS: power of two > K.
    """
    program = tl.program_id(0)
    first_request = step.drafts.num_rows * num_blocks
    first_line = first_request + step.drafts.num_reqs
    if program < first_request:
        scan_kernel(rows, step.states, tiles, wanted, num_blocks, TILES, OVERLAP)
    elif program < first_line:
        let_next_start(OVERLAP)
        request = (program - first_request).to(tl.int64)
        _put_request(rows, step, methods, judged, leftovers, verdicts, request, K, COLUMNS)
    else:
        let_next_start(OVERLAP)
        if step.drafts.q.logits is not None:
            line = (program - first_line) // num_blocks
            block = (program - first_line) % num_blocks
            _put_sums(step, methods, judged, (line // K).to(tl.int64), line % K, block, K, COLUMNS, TILES)


@triton.jit
def _put_request(
    rows,
    step,
    methods,
    judged,
    leftovers,
    verdicts,
    request,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Stores what the rows of a request judge."""
    if request == 0:
        tl.store(leftovers.control, 0)
    column = tl.arange(0, COLUMNS)
    first, num_rows = rows_of_request(step.drafts, request)
    at, exists = first + column, column < num_rows
    state = tl.load(step.drafts.state_rows + request)
    token, num_drafts = load_drafts(step.drafts, request, column, num_rows, K)
    is_draft = (column < num_drafts) & (state >= 0)
    refused = token < -1
    token = tl.where(refused, -2 - token, token)
    of_target = is_draft & (token < rows.vocab_size)
    tl.store(judged.drafts + at, tl.where(of_target & ~refused, token, -1).to(tl.int32), mask=exists)

    # One bit of a row at most is set: the last step's goes.
    words = judged.touched + at * judged.words
    last = tl.load(judged.refused + at, mask=exists, other=-1)
    tl.store(words + (last >> 5), 0, mask=exists & (last >= 0))
    tl.debug_barrier()
    masked = tl.where(of_target & refused, token, -1).to(tl.int32)
    tl.store(words + (masked >> 5), 1 << (masked & 31), mask=exists & (masked >= 0))
    tl.store(judged.refused + at, masked, mask=exists)
    tl.store(judged.masks_one + at, (masked >= 0).to(tl.int32), mask=exists)

    tl.store(verdicts.num_drafts + request, num_drafts)
    line = tl.full([COLUMNS], -1, tl.int64)
    finished = tl.full([COLUMNS], -1, tl.int64)
    if state >= 0:
        if looks_at_q(step.states, methods, state):
            if step.drafts.q.logits is not None:
                line = tl.where(is_draft, state * step.drafts.lines + column, -1)
            elif step.drafts.sparse is not None:
                line = tl.where(is_draft, state * step.drafts.lines + column, -1)
        # The finish draws for rows that draw as in ordinary sampling, and cuts those of other requests.
        ordinary = (method_of(methods, state) == COUPLED) | (num_drafts == 0)
        needed = ordinary | (temperature_of(step.states, state) == 0) | is_filtered(step.states, state)
        row_states = tl.load(step.states.index + at, mask=exists, other=-1)
        finished = tl.where(column <= tl.where(needed, num_drafts, -1), row_states, -1)
    tl.store(judged.lines + at, line, mask=exists)
    tl.store(judged.finished + at, finished, mask=exists)


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
):
    """Stores maximum and sum of a block of the law that a draft was drawn from, if it is looked at."""
    first, num_rows = rows_of_request(step.drafts, request)
    _, num_drafts = load_drafts(step.drafts, request, tl.arange(0, COLUMNS), num_rows, K)
    state = tl.load(step.drafts.state_rows + request)
    if (column < num_drafts) & (state >= 0):
        if looks_at_q(step.states, methods, state):
            tile = block * TILES + tl.arange(0, TILES)
            x = load_logits(
                step.drafts.q,
                state * step.drafts.lines + column,
                ids_of(tile),
                (tile < step.drafts.q.num_tiles)[:, None],
            )
            maximum = tl.max(tl.max(x, 1), 0)
            sums = tl.exp2((x - tl.where(maximum == MINUS_INF, 0.0, maximum)) * LOG2_E)
            at = (first + column) * judged.blocks + block
            tl.store(judged.q_maxima + at, maximum)
            tl.store(judged.q_sums + at, tl.sum(tl.sum(sums, 1), 0))
