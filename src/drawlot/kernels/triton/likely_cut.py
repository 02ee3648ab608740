"""Where top_p probably cuts a row, by a sample of its tokens: a guess, which a read of the row must bear out."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST, mass_of_tokens, sample_of
from drawlot.kernels.triton.reduce import of_fixed, sum_four
from drawlot.kernels.triton.values import MINUS_INF, TILE

_MOST = tl.constexpr(4096)
"""Tokens of a sample, if each tile has one"""
_FEW_KEPT = tl.constexpr(64.0)
"""Rows that keep fewer tokens have been cut in a short list"""
_LOW_ERRORS, _HIGH_ERRORS = tl.constexpr(3.5), tl.constexpr(2.0)
"""Standard errors: of 4,000 rows the cut of one is lower, and of 40 that of one is higher"""
_LEAST = tl.constexpr(4.0)
"""Tokens that a sample's error is taken for at least, since a few say little about their number"""
_GUESS_ROUNDS = tl.constexpr(4)
"""Half of them for both, half for each of the two"""


@triton.jit
def sample_for_cut(rows, row, T: tl.constexpr):
    """What `likely_cut` is given of a row: values of some tokens of each tile."""
    return sample_of(rows, row, max(min(4, _MOST // T), 1), T)


@triton.jit
def likely_cut(rows, x, top_p, temperature, row_max, scale, all_mass, line, T: tl.constexpr):
    """float32, twice: the cut's value is hardly ever below the first, and seldom above the second.

    x: of `sample_for_cut`; all_mass: int64, of all tokens; line: the lowest value that min_p keeps, or -LARGEST.
    Masses are added up from below, where tokens are light and many.
    """
    z = (x - row_max) * scale
    mass = tl.where(x > MINUS_INF, mass_of_tokens(x, row_max, scale), 0.0)
    total = of_fixed(all_mass).to(tl.float32)
    left_out = (1 - top_p).to(tl.float32) * total
    need = left_out * (x.shape[0] / (T * TILE))
    if line > -LARGEST:
        # Of what is below the line top_p leaves out all.
        need += top_p.to(tl.float32) * tl.sum(tl.where(x < line, mass, 0.0))
    # Were all tokens below they would not weigh what top_p leaves out; were a few above they would weigh more than all.
    low = tl.log(left_out) - tl.log(tl.zeros([], tl.float32) + rows.num_tiles * TILE)
    top = tl.maximum(tl.minimum(tl.log(total) - tl.log(tl.full([], _FEW_KEPT, tl.float32)), 0.0), low)
    # The lowest level that is too high for `low`, and the highest that is too low for `likely`.
    too_high, too_low, likely, round = top, low, top, 0
    while round < _GUESS_ROUNDS:
        # First both are sought in one place, in fifths of it; then each in its own, in thirds.
        step, far_step = (likely - low) / 5, (likely - low) / 5
        start, far_start = low, low + 2 * step
        if round >= _GUESS_ROUNDS // 2:
            step, far_step = (too_high - low) / 3, (likely - too_low) / 3
            far_start = too_low
        one, two, three, four = start + step, start + 2 * step, far_start + far_step, far_start + 2 * far_step
        below_one, below_two, below_three, below_four = sum_four(
            tl.where(z < one, mass, 0.0),
            tl.where(z < two, mass, 0.0),
            tl.where(z < three, mass, 0.0),
            tl.where(z < four, mass, 0.0),
        )
        found = low, too_high, too_low, likely
        found = _judged(one, below_one, need, found)
        found = _judged(two, below_two, need, found)
        found = _judged(three, below_three, need, found)
        low, too_high, too_low, likely = _judged(four, below_four, need, found)
        round += 1
    low_value = tl.maximum((row_max + temperature * low).to(tl.float32), line)
    return low_value, tl.maximum((row_max + temperature * likely).to(tl.float32), low_value)


@triton.jit
def _judged(level, below, need, found):
    """What is found of `low` and `likely`, and a level more, by the mass `below` it in a sample."""
    low, too_high, too_low, likely = found
    # No token below is heavier than one there: so much is the square of the error at most.
    heaviest, short = tl.exp(level), need - below
    low_error = _LOW_ERRORS * _LOW_ERRORS * heaviest * (below + _LEAST * heaviest)
    high_error = _HIGH_ERRORS * _HIGH_ERRORS * heaviest * below
    is_low = (short >= 0) & (short * short >= low_error)
    is_high = (short <= 0) & (short * short >= high_error)
    low, too_high = (
        tl.where(is_low, tl.maximum(level, low), low),
        tl.where(is_low, too_high, tl.minimum(level, too_high)),
    )
    return (
        low,
        too_high,
        tl.where(is_high, too_low, tl.maximum(level, too_low)),
        tl.where(is_high, tl.minimum(level, likely), likely),
    )
