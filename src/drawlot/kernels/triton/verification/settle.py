"""What a request emits, one program a request: the accepted drafts and the token after them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.reduce import largest
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.summary import LISTED
from drawlot.kernels.triton.values import MINUS_INF
from drawlot.kernels.triton.verification.acceptance import accept_block
from drawlot.kernels.triton.verification.draw import draw_from_list, draw_from_tile, draw_from_tiles
from drawlot.kernels.triton.verification.leftover import law_of_row, weigh_block
from drawlot.kernels.triton.verification.requests import (
    BLOCK,
    is_filtered,
    is_open,
    method_of,
    rows_of_request,
    step_key,
)
from drawlot.outputs import RowStatus

_SKIPPED = tl.constexpr(int(RowStatus.SKIPPED))


@triton.jit
def settle_kernel(
    rows,
    step,
    methods,
    judged,
    leftovers,
    verdicts,
    summary,
    verified,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request, whose rows have their laws. COLUMNS: power of two > K."""
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    at, exists = first + column, column < num_rows
    follow(OVERLAP)
    if request == step.drafts.num_reqs - 1:
        _skip_rows(step.drafts, summary, verified, first + num_rows)
    tl.store(verdicts.lowest + request, -1)
    none = tl.full([], -1, tl.int32)
    if state < 0:
        put_emitted(verified, request, at, exists, column, column, none + 1, none, K)
        return

    given = tl.load(verdicts.num_drafts + request)
    waits = is_open(step.states, methods, step.drafts, state, given)
    draft = tl.load(judged.drafts + at, mask=exists, other=-1)
    hit = tl.load(judged.hits + at, mask=exists, other=0) != 0
    own = tl.load(judged.tokens + at, mask=exists, other=-1)
    status = tl.load(verified.status + at, mask=exists, other=0).to(tl.int32)
    # Before the first bad row.
    n = tl.minimum(given, tl.min(tl.where(status != 0, column, COLUMNS)))
    accepted = tl.min(tl.where((column < n) & hit, n, column))
    if (method_of(methods, state) == BLOCK) & (n > 0):
        if temperature_of(step.states, state) != 0:
            ratio = tl.load(judged.ratios + at, mask=column < n, other=0.0)
            coin = tl.load(judged.coins + at, mask=column < n, other=2.0)
            accepted, weighed, prefix = accept_block(judged, at, column, n, ratio, waits, coin, K)
            if waits:
                num_weighed = tl.sum(weighed.to(tl.int32))
                if num_weighed > 0:
                    slot = tl.atomic_add(leftovers.control, num_weighed) + tl.cumsum(weighed.to(tl.int32), 0) - 1
                    tl.store(leftovers.rows + slot, at.to(tl.int32), mask=weighed)
                    tl.store(leftovers.requests + slot, request.to(tl.int32), mask=weighed)
                tl.store(judged.prefixes + at, prefix, mask=exists)
                tl.store(judged.weighed + at, weighed.to(tl.int32), mask=exists)
                tl.store(verdicts.num_drafts + request, n)
                tl.store(verdicts.lowest + request, accepted)
                tl.store(verdicts.num_weighed + request, num_weighed)
                return

    token = tl.max(tl.where((column == accepted) & (status == 0), own, -1))
    put_emitted(verified, request, at, exists, column, draft, accepted, token, K)


@triton.jit
def settle_open_kernel(
    rows,
    step,
    lists,
    judged,
    leftovers,
    verdicts,
    summary,
    verified,
    num_weighers,
    num_blocks,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    WEIGHED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program for each request, which draws for it; and others that weigh rows meanwhile.

    Of a request with rows to be weighed, the row draws that comes next if none of them is accepted, and
    `settle_weighed_kernel` sees which is. num_blocks: of a row, each of WEIGHED tiles; ROOM: of a list; TILES: that a
    draw reads at a time; COLUMNS, T: powers of two > K, >= tiles.
    """
    program = tl.program_id(0)
    if program >= step.drafts.num_reqs:
        follow(OVERLAP)
        num_items = tl.load(leftovers.control) * num_blocks
        item = program - step.drafts.num_reqs
        while item < num_items:
            row = tl.load(leftovers.rows + item // num_blocks).to(tl.int64)
            request = tl.load(leftovers.requests + item // num_blocks).to(tl.int64)
            weigh_block(rows, step, judged, leftovers, request, row, item % num_blocks, WIDE, WEIGHED)
            item += num_weighers
        return

    request = program.to(tl.int64)
    column = tl.arange(0, COLUMNS)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    at, exists = first + column, column < num_rows
    follow(OVERLAP)
    accepted = tl.load(verdicts.lowest + request)
    if accepted < 0:
        return
    n = tl.load(verdicts.num_drafts + request)
    row = first + accepted
    token = tl.full([], -1, tl.int32)
    if tl.load(verified.status + row) == 0:
        temperature = temperature_of(step.states, state)
        key = step_key(step.states, state, first, accepted)
        law = law_of_row(judged, row)
        path = tl.full([], -1, tl.int32)
        if is_filtered(step.states, state):
            path = tl.load(summary.path + row)
        if path == LISTED:
            token = draw_from_list(step.drafts, lists, law, temperature, row, key, accepted < n, n < 0, WIDE, ROOM)
        else:
            places = row * leftovers.width + tl.arange(0, T)
            token = draw_from_tiles(
                rows,
                step.drafts,
                tl.load(judged.refused + row),
                law,
                temperature,
                row,
                key,
                tl.load(leftovers.log_masses + places),
                tl.load(leftovers.noises + places),
                leftovers.noises + row * leftovers.width,
                -1,
                accepted < n,
                n < 0,
                WIDE,
                T,
                TILES,
            )
    if tl.load(verdicts.num_weighed + request) > 0:
        tl.store(judged.tokens + row, token)
    else:
        draft = tl.load(judged.drafts + at, mask=column < accepted, other=-1)
        put_emitted(verified, request, at, exists, column, draft, accepted, token, K)


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
    """Program: one request, if rows of it have been weighed. COLUMNS, BLOCKS: powers of two > K, >= num_blocks."""
    request = tl.program_id(0).to(tl.int64)
    column, block = tl.arange(0, COLUMNS), tl.arange(0, BLOCKS)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    at, exists = first + column, column < num_rows
    follow(OVERLAP)
    lowest = tl.load(verdicts.lowest + request)
    if lowest < 0:
        return
    if tl.load(verdicts.num_weighed + request) == 0:
        return
    weighed = tl.load(judged.weighed + at, mask=exists, other=0) != 0
    prefix = tl.load(judged.prefixes + at, mask=exists, other=0.0)
    coin = tl.load(judged.coins + at - 1, mask=weighed, other=2.0)
    places, of_row = at[:, None] * leftovers.stride + block[None, :], weighed[:, None] & (block < num_blocks)[None, :]
    left = tl.sum(tl.load(leftovers.left + places, mask=of_row, other=0.0), 1)
    rest = left + 1 - prefix
    h = tl.where(rest == 0, 1.0, left / rest)
    # Rows whose coin is not below P_i, of which h_i is a part, have not been weighed.
    accepted = tl.maximum(lowest, tl.max(tl.where(weighed & (coin < h), column, 0)))
    row = first + accepted
    token = tl.load(judged.tokens + row)
    if accepted > lowest:
        mask = block < num_blocks
        keys = tl.load(leftovers.keys + row * leftovers.stride + block, mask=mask, other=MINUS_INF)
        tile = tl.load(leftovers.best_tiles + row * leftovers.stride + block, mask=mask, other=0)
        _, best, _ = largest(keys, tile, tile)
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
    draft = tl.load(judged.drafts + at, mask=column < accepted, other=-1)
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
