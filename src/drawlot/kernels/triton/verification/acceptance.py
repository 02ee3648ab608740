"""Which drafts are accepted: one by its row, and those of `block` together, [COLUMNS] with an entry for each row."""

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
def p_at_draft(x, draft, maximum, mass, temperature, cut_value, cut_id):
    """float64: p of a row's draft with value x; 0 without a draft (-1), or of one that the row does not keep."""
    kept = is_kept(x, draft, cut_value, cut_id) & (draft >= 0)
    temperature = tl.where(temperature == 0, 1.0, temperature)
    return tl.where(kept, tl.exp((x.to(tl.float64) - maximum) / temperature) / mass, 0.0)


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
def accept_block(judged, at, column, n, ratio, dense, coin, K: tl.constexpr):
    """Block verification: how many drafts are accepted at least, the rows to be weighed before more is known, and P.

    Column i of P (float64 [COLUMNS]) is of the first i drafts and of row i.
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
    accepted = tl.zeros([], tl.int32)
    weighed = below & False
    if not dense:
        # Of a point mass all but the draft is left, and p is the ratio.
        left = prefix * (1 - ratio)
        rest = left + 1 - prefix
        h = tl.where(column == n, prefix, tl.where(rest == 0, 1.0, left / rest))
        accepted = tl.max(tl.where(within & (coin_before < h), column, 0))
    elif tl.max(tl.where(below & (column == n), 1, 0)) != 0:
        accepted = n + tl.zeros([], tl.int32)
    else:
        # With P_i = 1 the first i drafts are accepted whatever is left, unless their laws are broken.
        fine = tl.load(judged.q_shifts + at, mask=column < n, other=0.0)
        may = below & (column < n)
        accepted = tl.max(tl.where(may & (prefix == 1) & (fine == fine), column, 0))
        weighed = may & (column > accepted)
    return accepted, weighed, prefix
