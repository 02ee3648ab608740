"""Which drafts are accepted: one by its row, and those of `block` together."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.noise import words
from drawlot.kernels.triton.verification.leftover import is_kept
from drawlot.kernels.triton.verification.requests import SYNTHETIC

_ACCEPT = tl.constexpr(int(rng.Stream.ACCEPT))
_WIDE = tl.constexpr(rng._WIDE)
_BAD, _SURE = tl.constexpr(-1.0), tl.constexpr(-2.0)
"""In the place of ratios: the row is bad; its draft is sure, though what it came from is no law"""
_LARGEST32 = tl.constexpr(1 - 2.0**-24)
_LARGEST64 = tl.constexpr(1 - 2.0**-53)


@triton.jit
def coin_of(key, WIDE: tl.constexpr):
    """float64 coin of a step's row, as `rng.coin`; key: as for `race_of_range`."""
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
def coded_ratio(ratio, status, has_law):
    """The ratio of a row's draft, or what else `accept_block` has to know: the row is bad, or q is no law.

    A law of few tokens that is none says nothing of others: such a draft is sure, and NaN what is left of the row.
    """
    broken = tl.where(ratio > 1, _SURE, float("nan"))
    return tl.where(status != 0, _BAD, tl.where(has_law, ratio, broken))


@triton.jit
def accepts(methods, method, column, draft, ratio, coin):
    """Whether a row's coin accepts its draft, by `standard` and `synthetic`."""
    # NaN stays NaN, and no coin is below it.
    threshold = tl.where(ratio > 1, 1.0, ratio)
    if methods.rates is not None:
        if (method == SYNTHETIC) & (draft >= 0):
            threshold = tl.load(methods.rates + column)
        elif method == SYNTHETIC:
            threshold = threshold * 0
    return coin < threshold


@triton.jit
def accept_block(judged, first, num_drafts, DENSE: tl.constexpr, K: tl.constexpr):
    """Block verification of requests: how many drafts are accepted at least, and bits of the rows to be weighed first.

    first, num_drafts: of one request, or of many. Where drafts have laws (DENSE), what is left of some rows has to be
    known before more can be said; of a point mass all but the draft is left.
    """
    ratio = _look_up(judged.ratios + first, num_drafts > 0, DENSE)
    prefix, lowest, weighed = tl.zeros_like(ratio) + 1, tl.zeros_like(num_drafts), tl.zeros_like(num_drafts)
    for i in tl.static_range(1, K + 1):
        coin = _look_up(judged.coins + first + (i - 1), num_drafts >= i, DENSE)
        prefix = next_prefix(prefix, ratio)
        ratio = _look_up(judged.ratios + first + i, num_drafts >= i, DENSE)
        # h_i is at most P_i, and h_n is P_n.
        is_last = (num_drafts == i) | (ratio == _BAD)
        exists, below = num_drafts >= i, coin < prefix
        if DENSE:
            # With P_i = 1 the first i drafts are accepted whatever is left, unless there is no law.
            lowest = tl.where(exists & below & (is_last | ((prefix == 1) & (ratio >= 0))), i, lowest)
            weighed = tl.where(exists & below & (is_last == 0), weighed | (1 << i), weighed)
        else:
            left = prefix * (1 - ratio)
            rest = left + 1 - prefix
            h = tl.where(is_last, prefix, tl.where(rest == 0, 1.0, left / rest))
            lowest = tl.where(exists & (coin < h), i, lowest)
    return lowest, weighed & (-2 << lowest)


@triton.jit
def _look_up(pointer, exists, AT_ONCE: tl.constexpr):
    """A number if it exists. AT_ONCE: or any, if that is not known yet."""
    if AT_ONCE:
        number = tl.load(pointer)
    else:
        number = tl.load(pointer, mask=exists, other=0.0)
    return number


@triton.jit
def prefixes_of(judged, first, column, K: tl.constexpr):
    """P of columns of a request."""
    last = tl.full([], 1.0, tl.float64)
    prefix = tl.zeros_like(column).to(tl.float64) + 1
    for j in tl.static_range(K):
        last = next_prefix(last, tl.load(judged.ratios + first + j))
        prefix = tl.where(column == j + 1, last, prefix)
    return prefix


@triton.jit
def next_prefix(prefix, ratio):
    """P_(i+1) of P_i and the ratio of the draft between, as in `coded_ratio`; none after a bad row."""
    product = tl.where(ratio == _SURE, 2.0, prefix * ratio)
    return tl.where(prefix > 0, tl.where(product > 1, 1.0, product), 0.0)
