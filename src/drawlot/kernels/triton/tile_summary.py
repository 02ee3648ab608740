"""What is known of a tile without its tokens: its mass, its maximum, which group has that, and what others reach."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import two_highest
from drawlot.kernels.triton.values import GROUP, MINUS_INF, order_of

GROUPS = tl.constexpr(32)
"""Of four neighbours, in a tile"""
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def tile_sums(x, maxima, scale):
    """float32 [M]: sum of exp((x - maximum) scale) of tiles, [M, 128] or in slices; NaN where x is NaN or +inf.

    maxima: of x itself, whose weight is taken to be in the sum: by others, no token would weigh nearly 0. Passes over
    rows sum in blocks laid out alike, so that equal tiles have equal bits.
    """
    slope, top, rest = _fused_exponent(tl.where(maxima == MINUS_INF, 0.0, maxima), scale)
    mass = tl.exp2(tl.fma(x, of_each(slope, x), of_each(top, x)))
    if len(x.shape) == 3:
        mass = tl.sum(mass, 1)
    # Exactly 1 for a maximum alone, and 0 for no token. In another order ptxas takes seven instructions more.
    unit = tl.exp2(rest)
    return 1.0 + (tl.sum(mass, 1) - unit) * tl.exp2(rest * -1.0)


@triton.jit
def _fused_exponent(maxima, scale):
    """slope and top, so that x slope + top, one instruction, is an exponent of 2; and that of the maximum itself.

    The latter is what rounding `top` leaves, which all of a tile have in common. The difference of value and maximum
    would take an instruction more: scaled values must not tie where logits do not. Above 2^30 all but the maximum weigh
    nothing, at a lower slope, too, by which nothing is infinite. maxima: finite.
    """
    power = tl.maximum(maxima.to(tl.int32, bitcast=True) & 0x7F800000, 30 << 23)
    # 2^30 divided by the power of two at or below the maximum, by its bits.
    most = ((255 << 23) - power + (29 << 23)).to(tl.float32, bitcast=True)
    slope = tl.minimum(scale * LOG2_E, most)
    # By a product: a difference from 0 is an instruction more.
    top = maxima * slope * -1.0
    return slope, top, tl.fma(maxima, slope, top)


@triton.jit
def of_each(of_tile, x):
    """A number of each tile [M], for its tokens."""
    if len(x.shape) == 3:
        result = of_tile[:, None, None]
    else:
        result = of_tile[:, None]
    return result


@triton.jit
def tile_maxima(x):
    """[M]: of tiles [M, 128] or in slices."""
    if len(x.shape) == 3:
        x = tl.max(x, 1)
    return tl.max(x, 1)


@triton.jit
def best_group(x, SIDE: tl.constexpr = 1):
    """Of tiles: the maximum; the first of 32 groups of four neighbours that has it, and what the others reach.

    x: as for `tile_sums`; SIDE: groups that a thread has side by side of slices. The latter in one int32, see
    `group_of` and `others_of`.
    """
    if len(x.shape) == 3:
        maxima, first, others = _best_group_of_slices(x, SIDE)
    else:
        best = tl.max(x.reshape(x.shape[0], GROUPS, GROUP), 2)
        group = tl.arange(0, GROUPS)[None, :]
        maxima = tl.max(best, 1)
        first = tl.min(tl.where(best == maxima[:, None], group, GROUPS), 1)
        others = tl.max(tl.where(group == first[:, None], MINUS_INF, best), 1)
    return maxima, (order_of(others) & -GROUPS) | first


@triton.jit
def _best_group_of_slices(x, SIDE: tl.constexpr):
    """Maxima, the first groups that have them, and what the others reach."""
    M: tl.constexpr = x.shape[0]
    THREADS: tl.constexpr = 32 // (SIDE * GROUP)
    best = tl.max(x.reshape(M, 4, THREADS, SIDE, GROUP), 4)
    # Pairs of slices, then what a thread has, then what a tile has.
    one, other = tl.split(tl.permute(best.reshape(M, 2, 2, THREADS, SIDE), (0, 1, 3, 4, 2)))
    high, low = two_highest(tl.maximum(one, other), tl.minimum(one, other), 1)
    high, low = two_highest(high, low, 2)
    maxima, others = two_highest(high, low, 1)
    # Numbers that do not depend on the thread are constants.
    group = tl.arange(0, 4)[:, None, None] * (THREADS * SIDE) + tl.arange(0, SIDE)[None, None, :]
    first = tl.where(best == maxima[:, None, None, None], group[None, :, :, :], GROUPS)
    first = tl.min(tl.min(first, 3), 1) + (tl.arange(0, THREADS) * SIDE)[None, :]
    return maxima, tl.min(first, 1), others


@triton.jit
def group_of(best_groups):
    """The group that has a tile's maximum, 0 to 31."""
    return best_groups & (GROUPS - 1)


@triton.jit
def others_of(best_groups):
    """An order that no token of a tile's other groups exceeds; that of -inf if they have none."""
    return best_groups | (GROUPS - 1)
