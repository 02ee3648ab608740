"""Where top_p probably cuts a row, by a sample of its tokens: a guess, which a read of the row must bear out."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import mass_of_tokens, sample_of
from drawlot.kernels.triton.reduce import FIXED_POINT, of_fixed, span
from drawlot.kernels.triton.values import MINUS_INF, TILE

NUM_BINS = tl.constexpr(512)
_PER_TILE = tl.constexpr(2)
"""Tokens of a sample"""
_FEW = tl.constexpr(64.0)
"""Rows that keep fewer tokens have been cut in a short list"""
_LOW_ERRORS, _HIGH_ERRORS = tl.constexpr(4.0), tl.constexpr(3.0)
"""Standard errors: of 30,000 rows the cut of one is lower, and of 700 that of one is higher"""
_LEAST = tl.constexpr(4.0)
"""Tokens that a sample's error is taken for at least, since a few say little about their number"""


@triton.jit
def span_of_cut(rows, top_p, all_mass):
    """float32: between which z a cut is that no short list holds; all_mass: int64, of all tokens.

    Were all tokens below they would not weigh what top_p leaves out; were a few above they would weigh more than all.
    """
    log_total = tl.log(of_fixed(all_mass).to(tl.float32))
    log_num = tl.log(tl.zeros([], tl.float32) + rows.num_tiles * TILE)
    bottom = tl.log((1 - top_p).to(tl.float32)) + log_total - log_num
    return bottom, tl.minimum(log_total - tl.log(tl.full([], _FEW, tl.float32)), 0.0)


@triton.jit
def sample_for_cut(rows, row, T: tl.constexpr):
    """What `likely_cut` is given of a row: values of some of its tokens."""
    return sample_of(rows, row, _PER_TILE, T)


@triton.jit
def likely_cut(rows, whole, slot, x, top_p, temperature, row_max, scale, all_mass, line, has_line):
    """float32, twice: the cut's value is hardly ever below the first, and seldom above the second.

    x: of `sample_for_cut`; all_mass: int64, of all tokens; line: the lowest value that min_p keeps, if `has_line`.
    Masses of the sample are added up in `whole.bins`, by ranges of z, and then from below, where tokens are light and
    many.
    """
    mass = tl.where(x > MINUS_INF, mass_of_tokens(x, row_max, scale), 0.0)
    total = of_fixed(all_mass).to(tl.float32)
    left_out = (1 - top_p).to(tl.float32)
    need = left_out * total * (_PER_TILE / TILE)
    if has_line:
        # Of what is below the line top_p leaves out all.
        need += top_p.to(tl.float32) * tl.sum(tl.where(x < line, mass, 0.0))
    bottom, top = span_of_cut(rows, top_p, all_mass)
    width = tl.maximum(top - bottom, 1e-3) / NUM_BINS
    # The highest bin is for all that is above.
    place = ((x - row_max) * scale - bottom) * (1 / width)
    at = tl.minimum(tl.maximum(place, 0.0), NUM_BINS - 1.0).to(tl.int32)
    bins = whole.bins + slot * NUM_BINS
    tl.atomic_add(bins + at, (mass * FIXED_POINT).to(tl.int64), mask=mass > 0, sem="relaxed")
    tl.debug_barrier()
    bin = tl.arange(0, NUM_BINS)
    own = of_fixed(tl.load(bins + bin)).to(tl.float32)
    heaviest = tl.exp(bottom + (bin + 1) * width)
    up_to, squares = tl.associative_scan((own, own * heaviest), 0, _sum_two)
    short, over = need - up_to, up_to - need
    is_before = (short >= 0) & (short * short >= _LOW_ERRORS * _LOW_ERRORS * (squares + _LEAST * heaviest * heaviest))
    is_after = (over >= 0) & (over * over >= _HIGH_ERRORS * _HIGH_ERRORS * squares)
    before, after, _ = span(tl.where(is_before, bin, -1), tl.where(is_after, bin, NUM_BINS - 1), bin)
    low = tl.where(before < NUM_BINS - 1, row_max + temperature * (bottom + (before + 1) * width), row_max)
    return low.to(tl.float32), (row_max + temperature * (bottom + (after + 1) * width)).to(tl.float32)


@triton.jit
def _sum_two(a0, a1, b0, b1):
    return a0 + b0, a1 + b1
