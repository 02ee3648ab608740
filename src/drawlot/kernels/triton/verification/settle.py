"""What a request emits, one program a request: its rows' laws, the accepted drafts, the token after them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.states import scale_of, temperature_of
from drawlot.kernels.triton.verification.acceptance import (
    accept_block,
    accept_by_coins,
    accept_greedily,
    coins,
    first_token,
    p_at_drafts,
)
from drawlot.kernels.triton.verification.draw import draw_after
from drawlot.kernels.triton.verification.laws import finish_draft_laws, put_laws, take_laws
from drawlot.kernels.triton.verification.leftover import left_of_row
from drawlot.kernels.triton.verification.requests import (
    BLOCK,
    COUPLED,
    SYNTHETIC,
    method_of,
    needs_finish,
    rows_of_request,
    step_key,
)
from drawlot.outputs import RowStatus

_SKIPPED = tl.constexpr(int(RowStatus.SKIPPED))


@triton.jit
def settle_kernel(
    rows,
    step,
    tiles,
    lists,
    whole,
    methods,
    judged,
    leftovers,
    verdicts,
    drawn,
    summary,
    verified,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request. drawn, summary: of the finish, where it cuts the rows or draws for them.

    COLUMNS, T, PARTS: powers of two > K, >= tiles, >= parts of a law; ROWS, TILES: that are read at a time; ROOM: of a
    list.
    """
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    follow(OVERLAP)
    states = step.states
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    given = tl.load(verdicts.num_drafts + request)
    at, exists = first + column, column < num_rows
    if request == step.drafts.num_reqs - 1:
        _skip_rows(step.drafts, summary, verified, first + num_rows)
    # The columns count the ranks of what is emitted.
    tl.store(summary.rank + at, 0, mask=exists)
    tl.store(verdicts.open + request, 0)
    none = tl.full([], -1, tl.int32)
    if state < 0:
        tl.store(verified.status + at, _SKIPPED, mask=exists)
        put_emitted(verified, request, at, exists, column, column, none + 1, none, K)
        return

    temperature, method = temperature_of(states, state), method_of(methods, state)
    finished = needs_finish(states, methods, state)
    cut_value, cut_id = tl.full([COLUMNS], float("-inf"), tl.float32), tl.full([COLUMNS], -1, tl.int32)
    if finished:
        take_laws(judged, drawn, summary, verified, at, exists)
        cut_value = tl.load(summary.cut_value + at, mask=exists, other=0.0)
        cut_id = tl.load(summary.cut_id + at, mask=exists, other=-1)
    else:
        put_laws(rows, states, tiles, judged, summary, verified, state, first, num_rows, T, COLUMNS, ROWS)
        tl.store(summary.cut_value + at, cut_value, mask=exists)
        tl.store(summary.cut_id + at, cut_id, mask=exists)
    tl.store(judged.cut_values + at, cut_value, mask=exists)
    tl.store(judged.cut_ids + at, cut_id, mask=exists)
    scale = scale_of(tl.where(temperature == 0, 1.0, temperature))
    tl.store(judged.scales + at, scale + tl.zeros_like(cut_value), mask=exists)
    draft = tl.load(judged.drafts + at, mask=column < given, other=-1)
    own_tokens = tl.load(drawn.token_ids + at, mask=column < tl.where(finished, num_rows, 0), other=-1).to(tl.int32)
    q = finish_draft_laws(step.drafts, judged, at, column < given, PARTS)
    tl.debug_barrier()

    status = tl.load(verified.status + at, mask=column <= given, other=0)
    n = tl.minimum(given, tl.min(tl.where(status != 0, column, COLUMNS)))
    tl.store(verdicts.num_drafts + request, n)
    p = p_at_drafts(states, judged, state, at, column < n, draft, cut_value, cut_id)
    ratio = tl.where(p == 0, 0.0, p / q)
    coin = coins(step_key(states, state, first, column), WIDE)
    token, is_open = none, given < 0
    prefix = tl.zeros_like(ratio) + 1
    if (temperature == 0) & (method != SYNTHETIC):
        accepted, token = accept_greedily(rows, judged, first, column, n, draft)
    elif (method == BLOCK) & (n > 0):
        lines = tl.load(judged.lines + at, mask=column < n, other=-1)
        # All draws of `block` come together, after those that have to wait for weights.
        is_open = tl.max(lines) >= 0
        accepted, weighed, prefix = accept_block(judged, at, column, n, ratio, p, is_open, coin, K)
        num_weighed = tl.sum(weighed.to(tl.int32))
        if num_weighed > 0:
            slot = tl.atomic_add(leftovers.control, num_weighed) + tl.cumsum(weighed.to(tl.int32), 0) - 1
            tl.store(leftovers.rows + slot, at.to(tl.int32), mask=weighed)
    else:
        accepted = accept_by_coins(methods, state, column, n, draft, own_tokens, ratio, coin)
    tl.store(judged.prefixes + at, prefix, mask=exists)
    tl.debug_barrier()
    if is_open:
        tl.store(verdicts.open + request, 1)
        tl.store(verdicts.lowest + request, accepted)
        return

    if tl.max(tl.where(column == accepted, status, 0)) != 0:
        token = none
    elif temperature == 0:
        if method == SYNTHETIC:
            token = first_token(rows, judged, first + accepted)
    elif (method == COUPLED) | ((given == 0) & finished):
        token = tl.max(tl.where(column == accepted, own_tokens, -1))
    else:
        token = draw_after(
            rows,
            step,
            tiles,
            lists,
            whole,
            methods,
            judged,
            leftovers,
            summary,
            state,
            first,
            accepted,
            n,
            given == 0,
            WIDE,
            T,
            ROOM,
            TILES,
        )
    put_emitted(verified, request, at, exists, column, draft, accepted, token, K)


@triton.jit
def settle_blocks_kernel(
    rows,
    step,
    tiles,
    lists,
    whole,
    methods,
    judged,
    leftovers,
    verdicts,
    summary,
    verified,
    num_blocks,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request, if it is open: its rows are weighed by now. BLOCKS: power of two >= num_blocks of a row."""
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    follow(OVERLAP)
    if tl.load(verdicts.open + request) == 0:
        return
    first, num_rows = rows_of_request(step.drafts, request)
    state, n = tl.load(step.drafts.state_rows + request), tl.load(verdicts.num_drafts + request)
    at, exists = first + column, column < num_rows
    lowest = tl.load(verdicts.lowest + request)
    accepted = n
    below = accepted != n
    while (accepted > lowest) & (below == 0):
        accepted -= 1
        left = left_of_row(leftovers, first + accepted, num_blocks, BLOCKS)
        prefix = tl.load(judged.prefixes + first + accepted)
        rest = left + 1 - prefix
        h = tl.where(rest == 0, 1.0, left / rest)
        coin = coins(step_key(step.states, state, first, accepted - 1), WIDE)
        # Rows whose coin is not below P_i, of which h_i is a part, have not been weighed.
        below = (accepted == lowest) | ((coin < prefix) & (coin < h))
    token = tl.full([], -1, tl.int32)
    if tl.load(verified.status + first + accepted) == 0:
        token = draw_after(
            rows,
            step,
            tiles,
            lists,
            whole,
            methods,
            judged,
            leftovers,
            summary,
            state,
            first,
            accepted,
            n,
            False,
            WIDE,
            T,
            ROOM,
            TILES,
        )
    draft = tl.load(judged.drafts + at, mask=column < n, other=-1)
    put_emitted(verified, request, at, exists, column, draft, accepted, token, K)


@triton.jit
def put_emitted(verified, request, at, exists, column, draft, accepted, token, K: tl.constexpr):
    """Stores the accepted drafts and the token after them; -1: the row is bad."""
    tl.store(verified.num_accepted + request, accepted)
    tl.store(verified.num_sampled + request, accepted + (token >= 0).to(tl.int32))
    emitted = tl.where(column < accepted, draft, tl.where(column == accepted, token, -1))
    tl.store(verified.token_ids + request * (K + 1) + column, emitted, mask=column <= K)
    tl.store(verified.emitted + at, emitted, mask=exists)


@triton.jit
def _skip_rows(drafts, summary, verified, row):
    """Rows from one on, which are no request's."""
    while row < drafts.num_rows:
        at = row + tl.arange(0, 16)
        tl.store(verified.status + at, _SKIPPED, mask=at < drafts.num_rows)
        tl.store(verified.emitted + at, -1, mask=at < drafts.num_rows)
        tl.store(summary.rank + at, 0, mask=at < drafts.num_rows)
        row += 16
