"""What a request emits, once its rows have their laws: the accepted drafts and the token after them."""

import triton
import triton.language as tl

from drawlot.kernels.triton.verification.acceptance import accept_block
from drawlot.outputs import RowStatus

_SKIPPED = tl.constexpr(int(RowStatus.SKIPPED))


@triton.jit
def settle(
    judged, verified, request, first, num_rows, given, coupled, by_block, K: tl.constexpr, COLUMNS: tl.constexpr
):
    """Stores what a request emits that is not open.

    given: how many drafts it has; coupled, by_block: whether it draws, by this method.
    """
    column = tl.arange(0, COLUMNS)
    at, exists = first + column, column < num_rows
    hit = tl.load(judged.hits + at, mask=exists, other=0) != 0
    draft = tl.load(judged.drafts + at, mask=exists, other=-1)
    own = tl.load(judged.tokens + at, mask=exists, other=-1)
    status = tl.load(verified.status + at, mask=exists, other=0).to(tl.int32)
    hit = tl.where(coupled, own == draft, hit)
    # Before the first bad row.
    n = tl.minimum(given, tl.min(tl.where(status != 0, column, COLUMNS)))
    accepted = tl.min(tl.where((column < n) & hit, n, column))
    if by_block:
        accepted, _ = accept_block(judged, first, given, False, K)
    token = tl.max(tl.where((column == accepted) & (status == 0), own, -1))
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
def skip_request(drafts, summary, verified, request, first, num_rows, K: tl.constexpr, COLUMNS: tl.constexpr):
    """Stores that a request without a state or without rows emits nothing."""
    column = tl.arange(0, COLUMNS)
    tl.store(verified.num_accepted + request, 0)
    tl.store(verified.num_sampled + request, 0)
    tl.store(verified.token_ids + request * (K + 1) + column, -1, mask=column <= K)
    _skip_row(summary, verified, first + column, column < num_rows)
    skip_rows_after(drafts, summary, verified, request, first + num_rows)


@triton.jit
def skip_rows_after(drafts, summary, verified, request, row):
    """After the last request: rows from one on, which are no request's."""
    if request == drafts.num_reqs - 1:
        while row < drafts.num_rows:
            at = row + tl.arange(0, 16)
            _skip_row(summary, verified, at, at < drafts.num_rows)
            row += 16


@triton.jit
def _skip_row(summary, verified, at, mask):
    tl.store(verified.status + at, _SKIPPED, mask=mask)
    tl.store(verified.emitted + at, -1, mask=mask)
    # The columns count the ranks of what is emitted.
    tl.store(summary.rank + at, 0, mask=mask)
