"""What a request emits, one program a request: the accepted drafts and the token after them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.reduce import largest
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.together import is_last
from drawlot.kernels.triton.values import MINUS_INF
from drawlot.kernels.triton.verification.acceptance import accept_block
from drawlot.kernels.triton.verification.draw import draw_from_tile
from drawlot.kernels.triton.verification.leftover import law_of_row, weigh_block
from drawlot.kernels.triton.verification.requests import BLOCK, method_of, rows_of_request, step_key
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
    none = tl.full([], -1, tl.int32)
    if state < 0:
        put_emitted(verified, request, at, exists, column, column, none + 1, none, K)
        return

    given = tl.load(verdicts.num_drafts + request)
    draft = tl.load(judged.drafts + at, mask=exists, other=-1)
    hit = tl.load(judged.hits + at, mask=exists, other=0) != 0
    own = tl.load(judged.tokens + at, mask=exists, other=-1)
    status = tl.load(verified.status + at, mask=exists, other=0).to(tl.int32)
    n = tl.minimum(given, tl.min(tl.where(status != 0, column, COLUMNS)))
    tl.store(verdicts.num_drafts + request, n)
    accepted = tl.min(tl.where((column < n) & hit, n, column))
    if (method_of(methods, state) == BLOCK) & (n > 0):
        if temperature_of(step.states, state) != 0:
            line = tl.load(judged.lines + at, mask=column < n, other=-1)
            ratio = tl.load(judged.ratios + at, mask=column < n, other=0.0)
            coin = tl.load(judged.coins + at, mask=column < n, other=2.0)
            has_laws = tl.max(line) >= 0
            accepted, weighed, prefix = accept_block(judged, at, column, n, ratio, has_laws, coin, K)
            num_weighed = tl.sum(weighed.to(tl.int32))
            if num_weighed > 0:
                slot = tl.atomic_add(leftovers.control, num_weighed) + tl.cumsum(weighed.to(tl.int32), 0) - 1
                tl.store(leftovers.rows + slot, at.to(tl.int32), mask=weighed)
                tl.store(leftovers.requests + slot, request.to(tl.int32), mask=weighed)
                tl.store(judged.prefixes + at, prefix, mask=exists)
                tl.store(judged.weighed + at, weighed.to(tl.int32), mask=exists)
                tl.store(verdicts.num_weighed + request, num_weighed)
                tl.store(verdicts.lowest + request, accepted)
                return

    token = tl.max(tl.where((column == accepted) & (status == 0), own, -1))
    put_emitted(verified, request, at, exists, column, draft, accepted, token, K)


@triton.jit
def settle_blocks_kernel(
    rows,
    step,
    judged,
    leftovers,
    verdicts,
    verified,
    num_programs,
    num_blocks,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the rows to be weighed, TILES tiles at a time; the last one of a request settles it.

    COLUMNS, BLOCKS: powers of two > K, >= num_blocks of a row.
    """
    follow(OVERLAP)
    item = tl.program_id(0)
    num_items = tl.load(leftovers.control) * num_blocks
    while item < num_items:
        row = tl.load(leftovers.rows + item // num_blocks).to(tl.int64)
        request = tl.load(leftovers.requests + item // num_blocks).to(tl.int64)
        weigh_block(rows, step, judged, leftovers, request, row, item % num_blocks, WIDE, TILES)
        if is_last(verdicts.tickets, request, tl.load(verdicts.num_weighed + request) * num_blocks):
            _settle_weighed(
                rows, step, judged, leftovers, verdicts, verified, request, num_blocks, WIDE, K, COLUMNS, BLOCKS
            )
        item += num_programs


@triton.jit
def _settle_weighed(
    rows,
    step,
    judged,
    leftovers,
    verdicts,
    verified,
    request,
    num_blocks,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Settles a request whose rows are weighed by now."""
    column, block = tl.arange(0, COLUMNS), tl.arange(0, BLOCKS)
    first, num_rows = rows_of_request(step.drafts, request)
    at = first + column
    n, lowest = tl.load(verdicts.num_drafts + request), tl.load(verdicts.lowest + request)
    weighed = tl.load(judged.weighed + at, mask=column < n, other=0) != 0
    prefix = tl.load(judged.prefixes + at, mask=weighed, other=0.0)
    coin = tl.load(judged.coins + at - 1, mask=weighed, other=2.0)
    # Rows whose coin is not below P_i, of which h_i is a part, have not been weighed.
    places, of_row = at[:, None] * leftovers.stride + block[None, :], weighed[:, None] & (block < num_blocks)[None, :]
    left = tl.sum(tl.load(leftovers.left + places, mask=of_row, other=0.0), 1)
    rest = left + 1 - prefix
    h = tl.where(rest == 0, 1.0, left / rest)
    accepted = tl.maximum(lowest, tl.max(tl.where(weighed & (coin < h), column, 0)))
    row = first + accepted
    token = tl.load(judged.tokens + row)
    shift = tl.load(judged.q_shifts + row)
    # Of a law that is none the row's own was drawn from.
    if (tl.max(tl.where(weighed & (column == accepted), 1, 0)) != 0) & (shift == shift):
        state = tl.load(step.drafts.state_rows + request)
        mask = block < num_blocks
        keys = tl.load(leftovers.keys + row * leftovers.stride + block, mask=mask, other=MINUS_INF)
        tile = tl.load(leftovers.best_tiles + row * leftovers.stride + block, mask=mask, other=0)
        _, best, _ = largest(keys, tile, tile)
        law = law_of_row(judged, row, tl.load(judged.prefixes + row))
        key = step_key(step.states, state, first, accepted)
        token = draw_from_tile(
            rows,
            step.drafts,
            tl.load(judged.refused + row),
            law,
            temperature_of(step.states, state),
            row,
            key,
            best,
            -1,
            n >= 0,
            n >= 0,
            n < 0,
            WIDE,
        )
    draft = tl.load(judged.drafts + at, mask=column < n, other=-1)
    put_emitted(verified, request, at, column < num_rows, column, draft, accepted, token, K)


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
