"""What a request emits, one program a request: the accepted drafts and the token after them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.summary import LISTED
from drawlot.kernels.triton.verification.acceptance import accept_block
from drawlot.kernels.triton.verification.draw import draw_from_list, draw_from_tiles
from drawlot.kernels.triton.verification.leftover import law_of_row, left_of_row
from drawlot.kernels.triton.verification.requests import BLOCK, is_filtered, method_of, rows_of_request, step_key
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
    tl.store(verdicts.open + request, 0)
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
            if has_laws:
                # All draws of `block` come together, after those that have to wait for weights.
                num_weighed = tl.sum(weighed.to(tl.int32))
                if num_weighed > 0:
                    slot = tl.atomic_add(leftovers.control, num_weighed) + tl.cumsum(weighed.to(tl.int32), 0) - 1
                    tl.store(leftovers.rows + slot, at.to(tl.int32), mask=weighed)
                tl.store(judged.prefixes + at, prefix, mask=exists)
                tl.store(judged.weighed + at, weighed.to(tl.int32), mask=exists)
                tl.store(verdicts.open + request, 1)
                tl.store(verdicts.lowest + request, accepted)
                return

    token = tl.max(tl.where((column == accepted) & (status == 0), own, -1))
    put_emitted(verified, request, at, exists, column, draft, accepted, token, K)


@triton.jit
def settle_blocks_kernel(
    rows,
    step,
    lists,
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
    WEIGHED: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request, if it is open: its rows are weighed by now.

    COLUMNS, T, BLOCKS: powers of two > K, >= tiles, >= num_blocks of a row, each of WEIGHED tiles; ROOM, TILES: as for
    `law_kernel`.
    """
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    at, exists = first + column, column < num_rows
    follow(OVERLAP)
    if tl.load(verdicts.open + request) == 0:
        return
    n, lowest = tl.load(verdicts.num_drafts + request), tl.load(verdicts.lowest + request)
    accepted = n
    below = accepted != n
    prefix = tl.load(judged.prefixes + first + n)
    while (accepted > lowest) & (below == 0):
        accepted -= 1
        left = left_of_row(leftovers, first + accepted, num_blocks, BLOCKS)
        prefix = tl.load(judged.prefixes + first + accepted)
        rest = left + 1 - prefix
        h = tl.where(rest == 0, 1.0, left / rest)
        coin = tl.load(judged.coins + first + accepted - 1, mask=accepted > 0, other=2.0)
        # Rows whose coin is not below P_i, of which h_i is a part, have not been weighed.
        below = (accepted == lowest) | ((coin < prefix) & (coin < h))
    row = first + accepted
    token = tl.load(judged.tokens + row)
    if (token < 0) & (tl.load(verified.status + row) == 0):
        temperature = temperature_of(step.states, state)
        key = step_key(step.states, state, first, accepted)
        law = law_of_row(judged, row, prefix)
        path = tl.full([], -1, tl.int32)
        if is_filtered(step.states, state):
            path = tl.load(summary.path + row)
        if path == LISTED:
            token = draw_from_list(step.drafts, lists, law, temperature, row, key, accepted < n, False, WIDE, ROOM)
        else:
            tile = tl.arange(0, T)
            # No tile has more left than its block, where that is known.
            known = tile < tl.where(tl.load(judged.weighed + row) != 0, rows.num_tiles, 0)
            block = row * leftovers.stride + tile // WEIGHED
            most_left = tl.load(leftovers.left + block, mask=known, other=float("inf"))
            noises = leftovers.noises + row * leftovers.width
            token = draw_from_tiles(
                rows,
                step.drafts,
                tl.load(judged.refused + row),
                law,
                temperature,
                row,
                key,
                tl.load(leftovers.log_masses + row * leftovers.width + tile),
                tl.load(noises + tile),
                noises,
                most_left,
                -1,
                accepted < n,
                False,
                WIDE,
                T,
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
