"""What each row judges: its draft, the draft's value, and what the drafter's law says of it."""

import triton
import triton.language as tl

from drawlot.kernels.triton.values import MINUS_INF, load_logits, load_values
from drawlot.kernels.triton.verification.counts import clear_counts
from drawlot.kernels.triton.verification.requests import (
    COUPLED,
    load_drafts,
    looks_at_q,
    method_of,
    rows_of_request,
)


@triton.jit
def judge_row(
    rows,
    step,
    methods,
    judged,
    leftovers,
    verdicts,
    request,
    column,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    SPARSE: tl.constexpr,
):
    """Row `column` of a request, if it has so many. COLUMNS, SPARSE: powers of two > K, >= tokens of a sparse law."""
    drafts = step.drafts
    clear_counts(verdicts.counts, request, column)
    first, num_rows = rows_of_request(drafts, request)
    state = tl.load(drafts.state_rows + request)
    tokens, num_drafts = load_drafts(drafts, request, tl.arange(0, COLUMNS), num_rows, K)
    if column == 0:
        tl.store(verdicts.num_drafts + request, -1)
        # As many as groups of requests are asked for.
        tl.store(leftovers.num_taken + request, 0)
    if column < num_rows:
        row = first + column
        token = tl.sum(tl.where(tl.arange(0, COLUMNS) == column, tokens, 0))
        is_refused = token < -1
        token = tl.where(is_refused, -2 - token, token)
        is_draft = (column < num_drafts) & (state >= 0)
        of_target = is_draft & (token < rows.vocab_size)
        draft = tl.where(of_target & (is_refused == 0), token, -1).to(tl.int32)
        tl.store(judged.drafts + row, draft)
        _refuse(judged, row, tl.where(of_target & is_refused, token, -1).to(tl.int32))

        line, undrawn = tl.full([], -1, tl.int64), tl.full([], 1, tl.int32)
        if state >= 0:
            if drafts.q.logits is not None or drafts.sparse is not None:
                line = tl.where(is_draft & looks_at_q(step.states, methods, state), state * drafts.lines + column, -1)
            own = draft + tl.arange(0, 1)
            tl.store(judged.draft_values + row + tl.arange(0, 1), load_values(rows, row, own, own >= 0))
            tl.store(judged.q_at_draft + row, 1.0)
            if drafts.q.logits is not None or drafts.sparse is not None:
                if line >= 0:
                    _put_draft_law(drafts, judged, row, state, line, draft, K, SPARSE)
            # Rows of a request with drafts draw by noise of their own.
            undrawn = ((num_drafts > 0) & (method_of(methods, state) != COUPLED)).to(tl.int32)
        tl.store(judged.undrawn + row, undrawn)
        tl.store(judged.lines + row, line)


@triton.jit
def _refuse(judged, row, refused):
    """Stores the draft that a constraint refuses, -1 for none; the last step's bit goes, the only one of the row."""
    words = judged.touched + row * judged.words
    last = tl.load(judged.refused + row)
    if last >= 0:
        tl.store(words + (last >> 5), 0)
    tl.debug_barrier()
    if refused >= 0:
        tl.store(words + (refused >> 5), 1 << (refused & 31))
    tl.store(judged.refused + row, refused)
    tl.store(judged.masks_one + row, (refused >= 0).to(tl.int32))


@triton.jit
def _put_draft_law(drafts, judged, row, state, line, draft, K: tl.constexpr, SPARSE: tl.constexpr):
    """Stores q at the draft, and by which shift and factor q comes of its logits.

    Of a dense law without a log-sum-exp the draft's logit alone: see `finish_draft_laws`.
    """
    own = draft + tl.arange(0, 1)
    if drafts.sparse is not None:
        slot = tl.arange(0, SPARSE)
        listed = slot < drafts.sparse.width
        ids = tl.load(drafts.sparse.token_ids + line * drafts.sparse.width + slot, mask=listed, other=-1)
        x = tl.load(drafts.sparse.logits + line * drafts.sparse.width + slot, mask=listed & (ids >= 0), other=MINUS_INF)
        x = x.to(tl.float32)
        is_own = (ids == draft) & (ids >= 0)
        at_draft = tl.max(tl.where(is_own, x, MINUS_INF))
        num_listed, of_draft = tl.sum((ids >= 0).to(tl.int32)), tl.sum(is_own.to(tl.int32))
    else:
        at_draft = tl.max(load_logits(drafts.q, line, own, own >= 0))
        num_listed, of_draft = tl.full([], 1, tl.int32), tl.full([], 1, tl.int32)
    if drafts.lse is None and drafts.sparse is None:
        tl.store(judged.q_at_draft + row, at_draft.to(tl.float64))
    else:
        if drafts.lse is not None:
            shift, total = tl.load(drafts.lse + state * K + (line - state * drafts.lines)), tl.full([], 1.0, tl.float32)
        else:
            shift = tl.max(x)
            total = tl.sum(tl.where(ids >= 0, tl.exp(x - shift), 0.0))
        shift, factor = law_of(shift, total)
        # All tokens that are not listed have q = 0.
        shift = tl.where(num_listed > 0, shift, 0.0)
        tl.store(judged.q_shifts + row, shift)
        tl.store(judged.q_factors + row, factor)
        at_draft = tl.exp(at_draft.to(tl.float64) - shift) * factor
        tl.store(judged.q_at_draft + row, tl.where(of_draft > 0, at_draft, 0.0))


@triton.jit
def law_of(shift, total):
    """Shift and factor of a law; the shift of a broken one, which is no law, is NaN: no coin is below that."""
    factor = 1.0 / total
    broken = (shift != shift) | (shift == float("inf")) | (shift == MINUS_INF) | (factor != factor)
    return tl.where(broken, float("nan"), shift), factor
