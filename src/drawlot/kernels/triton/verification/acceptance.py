"""Which drafts are accepted: one by its row, and those of `block` together."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.noise import words
from drawlot.kernels.triton.verification.leftover import is_kept
from drawlot.kernels.triton.verification.requests import COUPLED, SYNTHETIC

_ACCEPT = tl.constexpr(int(rng.Stream.ACCEPT))
_WIDE = tl.constexpr(rng._WIDE)
_LARGEST32 = tl.constexpr(1 - 2.0**-24)
_LARGEST64 = tl.constexpr(1 - 2.0**-53)


@triton.jit
def coin_of(key, WIDE: tl.constexpr):
    """float64 coin of a step's row, as `rng.coin`; key: as for `race`."""
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
def ratio_of_draft(x, draft, maximum, mass, q, per_temperature, cut_value, cut_id):
    """float64: p / q of a row's draft with value x; 0 without a draft (-1), or of one that the row does not keep."""
    kept = is_kept(x, draft, cut_value, cut_id) & (draft >= 0)
    weight = tl.exp(tl.where(kept, x.to(tl.float64) - maximum, -1.0) * per_temperature)
    # Float64 divides slowly, and slowest by far a zero: once, and something else.
    is_zero = (kept == 0) | (weight == 0)
    return tl.where(is_zero, 0.0, tl.where(is_zero, 1.0, weight) / (mass.to(tl.float64) * q))


@triton.jit
def accepts(methods, method, temperature, column, draft, token, ratio, coin):
    """Whether a row accepts its draft, by all methods but `block`; token: what a row draws for itself, if known."""
    # NaN stays NaN, and no coin is below it.
    threshold = tl.where(ratio > 1, 1.0, ratio)
    if methods.rates is not None:
        if (method == SYNTHETIC) & (draft >= 0):
            threshold = tl.load(methods.rates + column)
        elif method == SYNTHETIC:
            threshold = threshold * 0
    by_token = (method == COUPLED) | ((temperature == 0) & (method != SYNTHETIC))
    return tl.where(by_token, token == draft, coin < threshold)


@triton.jit
def accept_block(judged, verified, first, num_rows, given, dense, K: tl.constexpr, COLUMNS: tl.constexpr):
    """Block verification of a request: how many drafts come before its first bad row, how many are accepted at least.

    Stores P of each row, of the drafts before it, and which rows have to be weighed before more is known, where drafts
    have laws (dense): of a point mass all but the draft is left.
    """
    column = tl.arange(0, COLUMNS)
    at, exists = first + column, column < num_rows
    status = tl.load(verified.status + at, mask=exists, other=0)
    ratio = tl.load(judged.ratios + at, mask=exists, other=0.0)
    shift = tl.load(judged.q_shifts + at, mask=exists, other=0.0)
    coin = tl.load(judged.coins + at - 1, mask=exists & (column > 0), other=2.0)
    n = tl.minimum(given, tl.min(tl.where(status != 0, column, COLUMNS)))
    # Ratios after the n-th make P of rows that nobody asks.
    prefix, last = tl.where(column == 0, 1.0, tl.zeros_like(ratio)), tl.full([], 1.0, tl.float64)
    for j in tl.static_range(K):
        product = last * tl.load(judged.ratios + first + j)
        last = tl.where(last > 0, tl.where(product > 1, 1.0, product), 0.0)
        prefix = tl.where(column == j + 1, last, prefix)
    # h_i is at most P_i, and h_n is P_n.
    within = (column >= 1) & (column <= n)
    below = within & (coin < prefix)
    if dense:
        # With P_i = 1 the first i drafts are accepted whatever is left, unless the law is broken.
        is_sure = below & ((column == n) | ((prefix == 1) & (shift == shift)))
        accepted = tl.max(tl.where(is_sure, column, 0))
    else:
        left = prefix * (1 - ratio)
        rest = left + 1 - prefix
        h = tl.where(column == n, prefix, tl.where(rest == 0, 1.0, left / rest))
        accepted = tl.max(tl.where(within & (coin < h), column, 0))
    weighed = below & (column < n) & (column > accepted)
    tl.store(judged.prefixes + at, prefix, mask=exists)
    tl.store(judged.weighed + at, weighed.to(tl.int32), mask=exists)
    return n, accepted
