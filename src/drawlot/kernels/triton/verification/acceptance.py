"""Which drafts are accepted: all requests in one launch."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.noise import words
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.states import scale_of, temperature_of
from drawlot.kernels.triton.values import MINUS_INF
from drawlot.kernels.triton.verification.requests import (
    BLOCK,
    COUPLED,
    SYNTHETIC,
    is_filtered,
    looks_at_q,
    method_of,
    rows_of_request,
    step_key,
)

DONE, DRAW, WEIGH = (tl.constexpr(i) for i in range(3))
"""What remains of a request: nothing; the draw after the accepted drafts; of `block`, to compare what is left"""

_ACCEPT = tl.constexpr(int(rng.Stream.ACCEPT))
_WIDE = tl.constexpr(rng._WIDE)
_LARGEST32 = tl.constexpr(1 - 2.0**-24)
_LARGEST64 = tl.constexpr(1 - 2.0**-53)


@triton.jit
def accept_kernel(
    step,
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
    OVERLAP: tl.constexpr,
):
    """Program: one request. drawn, summary: of the finish; COLUMNS: power of two > K."""
    request = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, COLUMNS)
    follow(OVERLAP)
    states = step.states
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    at, exists = first + column, column < num_rows
    # The finish knows ranks of what it drew; the columns count those of what is emitted.
    tl.store(summary.rank + at, 0, mask=exists)
    token = tl.full([], -1, tl.int32)
    if state < 0:
        tl.store(verified.emitted + at, -1, mask=exists)
        put_verdict(verified, verdicts, request, column, DONE, column, token + 1, token, K)
        return
    given = tl.load(verdicts.num_drafts + request)
    status = tl.load(verified.status + at, mask=column <= given, other=0)
    n = tl.minimum(given, tl.min(tl.where(status != 0, column, COLUMNS)))
    is_draft = column < n
    draft = tl.load(judged.drafts + at, mask=is_draft, other=-1)
    temperature, method = temperature_of(states, state), method_of(methods, state)
    greedy = temperature == 0
    # Otherwise the rows' own draws have other streams than the finish's.
    ordinary = greedy | (method == COUPLED) | (given == 0)
    own_tokens = tl.load(drawn.token_ids + at, mask=column <= n, other=-1).to(tl.int32)

    p = _laws_at_drafts(states, judged, summary, state, at, column <= n, draft, ordinary)
    q = tl.load(judged.q_at_draft + at, mask=is_draft, other=1.0)
    ratio = tl.where(p == 0, 0.0, p / q)
    # NaN stays NaN, and no coin is below it.
    threshold = tl.where(ratio > 1, 1.0, ratio)
    if methods.rates is not None:
        rate = tl.load(methods.rates + column, mask=is_draft, other=0.0)
        threshold = tl.where(method == SYNTHETIC, tl.where(draft >= 0, rate, 0.0), threshold)
    coin = coins(step_key(states, state, first, column), WIDE)
    compares = (method == COUPLED) | (greedy & (method != SYNTHETIC))
    hit = tl.where(compares, own_tokens == draft, coin < threshold)
    accepted = tl.min(tl.where(is_draft & hit, n, column))

    outcome = tl.full([], DRAW, tl.int32)
    prefix = tl.zeros_like(ratio) + 1
    tl.store(verdicts.num_drafts + request, n)
    looks = looks_at_q(states, methods, state)
    dense = tl.max(tl.where(is_draft, tl.load(judged.lines + at, mask=is_draft, other=-1), -1)) >= 0
    # Without filters the scan's tiles serve: the interpreter has no `&` of a block and a number.
    weighed = column == tl.where(is_filtered(states, state), accepted, -1)
    if looks & (method == BLOCK) & (n > 0):
        accepted, lowest, weighed, prefix = _block(judged, at, column, n, ratio, p, dense, coin, K)
        tl.store(verdicts.lowest + request, lowest)
        if accepted < 0:
            outcome = tl.full([], WEIGH, tl.int32)
        else:
            weighed = column == tl.where(is_filtered(states, state), accepted, -1)
    if outcome == DRAW:
        is_bad = tl.max(tl.where((column == accepted) & (status != 0), 1, 0)) != 0
        if is_bad:
            outcome = tl.full([], DONE, tl.int32)
        elif ordinary:
            outcome = tl.full([], DONE, tl.int32)
            token = tl.max(tl.where(column == accepted, own_tokens, -1))
    tl.store(judged.prefixes + at, prefix, mask=exists)
    put_verdict(verified, verdicts, request, column, outcome, draft, accepted, token, K)
    emitted = tl.where(column < accepted, draft, tl.where(column == accepted, token, -1))
    tl.store(verified.emitted + at, emitted, mask=exists)
    if outcome != DONE:
        count = tl.sum(weighed.to(tl.int32))
        if count > 0:
            slot = tl.atomic_add(leftovers.control, count) + tl.cumsum(weighed.to(tl.int32), 0) - 1
            tl.store(leftovers.rows + slot, at.to(tl.int32), mask=weighed)


@triton.jit
def put_verdict(verified, verdicts, request, column, outcome, draft, accepted, token, K: tl.constexpr):
    """Stores the accepted drafts and the token after them; -1: it is drawn later, or the row is bad."""
    tl.store(verdicts.outcome + request, outcome)
    tl.store(verified.num_accepted + request, accepted)
    tl.store(verified.num_sampled + request, accepted + (token >= 0).to(tl.int32))
    sampled = tl.where(column < accepted, draft, tl.where(column == accepted, token, -1))
    tl.store(verified.token_ids + request * (K + 1) + column, sampled, mask=column <= K)


@triton.jit
def coins(key, WIDE: tl.constexpr):
    """float64 coins of a step's rows, as `rng.coin`; key: as for `race`."""
    seed, anchor, choice, step_row = key
    if WIDE:
        w0, w1, _, _ = words(step_row * 0, seed, anchor, _ACCEPT + _WIDE, choice, step_row, 2)
        bits = (w0.to(tl.uint64) << 21) | (w1.to(tl.uint64) >> 11)
        result = tl.minimum(bits.to(tl.float64) * 2.0**-53 + 2.0**-54, _LARGEST64)
    else:
        w0, _, _, _ = words(step_row * 0, seed, anchor, _ACCEPT, choice, step_row, 4)
        result = tl.minimum(w0.to(tl.float32) * 2.0**-32 + 2.0**-33, _LARGEST32).to(tl.float64)
    return result


@triton.jit
def _laws_at_drafts(states, judged, summary, state, at, is_row, draft, ordinary):
    """Float64 p of each row's draft, 0 without one; stores by which numbers p comes of the rows' values."""
    temperature = temperature_of(states, state)
    temperature = tl.where(temperature == 0, 1.0, temperature)
    maximum = tl.load(judged.maxima + at, mask=is_row, other=0.0)
    mass = tl.load(judged.masses + at, mask=is_row, other=1.0)
    cut_value, cut_id = tl.zeros_like(maximum) + MINUS_INF, draft * 0 - 1
    if is_filtered(states, state):
        mass = tl.exp(tl.load(summary.floats + summary.num_rows + at, mask=is_row, other=0.0))
        cut_value = tl.load(summary.cut_value + at, mask=is_row, other=0.0)
        cut_id = tl.load(summary.cut_id + at, mask=is_row, other=-1)
    elif ordinary == 0:
        # The finish skipped these rows: logprobs read what it would have left behind.
        tl.store(summary.floats + at, maximum.to(tl.float64), mask=is_row)
        tl.store(summary.floats + summary.num_rows + at, tl.log(mass), mask=is_row)
        tl.store(summary.cut_value + at, cut_value, mask=is_row)
        tl.store(summary.cut_id + at, cut_id, mask=is_row)
    tl.store(judged.masses + at, mass, mask=is_row)
    tl.store(judged.scales + at, scale_of(temperature) + tl.zeros_like(maximum), mask=is_row)
    tl.store(judged.cut_values + at, cut_value, mask=is_row)
    tl.store(judged.cut_ids + at, cut_id, mask=is_row)
    x = tl.load(judged.draft_values + at, mask=is_row, other=MINUS_INF)
    kept = ((x > cut_value) | ((x == cut_value) & (draft <= cut_id))) & (x > MINUS_INF) & (draft >= 0)
    return tl.where(kept, tl.exp((x.to(tl.float64) - maximum) / temperature) / mass, 0.0)


@triton.jit
def _block(judged, at, column, n, ratio, p, dense, coin, K: tl.constexpr):
    """Block verification: how many drafts are accepted, -1 where masses that are left decide; those at least.

    Then the rows to be weighed, and P_0 .. P_n (float64 [COLUMNS]). Column i is of the first i drafts and of row i.
    """
    prefix = tl.where(column == 0, 1.0, tl.zeros_like(ratio))
    last = tl.full([], 1.0, tl.float64)
    coin_before = tl.zeros_like(coin) + 2
    for j in tl.static_range(K):
        product = last * tl.sum(tl.where(column == j, ratio, 0.0))
        last = tl.where(last > 0, tl.where(product > 1, 1.0, product), 0.0)
        prefix = tl.where(column == j + 1, last, prefix)
        coin_before = tl.where(column == j + 1, tl.sum(tl.where(column == j, coin, 0.0)), coin_before)
    within = (column >= 1) & (column <= n)
    # h_i is at most P_i, and h_n is P_n.
    below = within & (coin_before < prefix)
    lowest = tl.zeros([], tl.int32)
    accepted = tl.full([], -1, tl.int32)
    weighed = below & False
    if not dense:
        # Of a point mass all but the draft is left.
        left = prefix * (1 - p)
        rest = left + 1 - prefix
        h = tl.where(column == n, prefix, tl.where(rest == 0, 1.0, left / rest))
        accepted = tl.max(tl.where(within & (coin_before < h), column, 0))
    elif tl.max(tl.where(below & (column == n), 1, 0)) != 0:
        accepted = n + tl.zeros([], tl.int32)
    else:
        # With P_i = 1 the first i drafts are accepted whatever is left, unless their laws are broken.
        fine = tl.load(judged.q_shifts + at, mask=column < n, other=0.0)
        may = (below | (column == 0)) & (column < n)
        sure = may & ((column == 0) | ((prefix == 1) & (fine == fine)))
        lowest = tl.max(tl.where(sure, column, 0))
        weighed = may & (column >= lowest)
    return accepted, lowest, weighed, prefix
