"""Between which values the cut of a whole row probably lies, by a sample of its tokens."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import fixed_sum_of_masses, of_fixed, running_sums, sum_two
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.tile_summary import LOG2_E
from drawlot.kernels.triton.values import (
    MINUS_INF,
    MINUS_INF_ORDER,
    TILE,
    load_all_values,
    order_of,
    value_of,
)

LARGEST = tl.constexpr(3.4028234663852886e38)
_PER_TILE = tl.constexpr(2)
"""Tokens of a sample"""
_BRACKET_ROUNDS = tl.constexpr(3)
_BINS = tl.constexpr(64)
_ERRORS = tl.constexpr(4.5)
"""Standard errors on either side: of 70,000 rows one is cut elsewhere"""
_LEAST = tl.constexpr(4.0)
"""Tokens that a sample's error is taken for at least, since a few say little about their number"""


@triton.jit
def sample_bracket(rows, tiles, row, filters, temperature, row_max, line, T: tl.constexpr):
    """low and high (float32): of the values of a row's tokens, the cut's is probably at least low, and below high.

    And whether it surely is at least low, and the mass (int64) of all tokens where top_k is off. Only tokens from
    `line` on are kept, as min_p wants it. What top_k or top_p asks for is found in a sample as they find it in the row,
    with as much on either side as the sample may err.
    """
    top_k, top_p, _min_p = filters
    scale, by_count = scale_of(temperature), top_k > 0
    tile = tl.arange(0, T)
    at, exists = row * tiles.stride + tile, tile < tiles.num
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    sample = sample_of(rows, row, _PER_TILE, T)
    all_mass = tl.zeros([], tl.int64)
    if by_count:
        needed = top_k.to(tl.float32)
        enough = tl.sum((maxima > MINUS_INF).to(tl.int32)) >= top_k
        lowest = tl.min(tl.where(maxima > MINUS_INF, maxima, LARGEST))
        bottom = tl.where(enough, lowest, -LARGEST)
        first, last = -row_max, -tl.where(enough, lowest, tl.min(tl.where(sample > MINUS_INF, sample, lowest)))
    else:
        sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
        all_mass = fixed_sum_of_masses(sums * tl.exp(tl.where(sums > 0, maxima - row_max, 0.0) * scale))
        mass = of_fixed(all_mass).to(tl.float32)
        left_out = (1 - top_p).to(tl.float32)
        needed = left_out * mass
        # Even if all tokens were just below, they would not weigh what top_p leaves out.
        z = tl.log(left_out) + tl.log(mass) - tl.log(tl.zeros([], tl.float32) + rows.num_tiles * TILE) - 1e-3
        bottom = (row_max + temperature * z).to(tl.float32)
        first, last = bottom, value_of(order_of(row_max) + 1)
    # So close that their difference is no infinity.
    if by_count:
        last = tl.minimum(tl.minimum(last, first + 3e38), LARGEST)
    else:
        first = tl.maximum(tl.maximum(first, last - 3e38), -LARGEST)
    law = row_max, scale, by_count, top_p.to(tl.float32), line
    start, stop = _narrowed(sample, rows.num_tiles * _PER_TILE, first, last, needed * _PER_TILE / TILE, law)
    unchanged = tl.where(by_count, stop == last, start == first)
    low = tl.where(unchanged, bottom, tl.where(by_count, -stop, start))
    low = tl.maximum(tl.maximum(low, line), -LARGEST)
    high = tl.where(by_count, value_of(order_of(-start) + 1), stop)
    # top_p counts again within what top_k keeps: all of that is listed.
    return low, tl.where(by_count & (top_p < 1), float("inf"), tl.maximum(high, low)), unchanged, all_mass


@triton.jit
def sample_of(rows, row, PER_TILE: tl.constexpr, T: tl.constexpr):
    """Values [T PER_TILE] of neighbours in each tile, in another place of each, lest ids have an order."""
    tile = tl.arange(0, T)
    place = ((tile.to(tl.uint32) * 2654435769) >> 16).to(tl.int32) % (TILE // PER_TILE) * PER_TILE
    ids = (tile * TILE + place)[:, None] + tl.arange(0, PER_TILE)[None, :]
    return load_all_values(rows, row, ids, (tile < rows.num_tiles)[:, None]).reshape(T * PER_TILE)


@triton.jit
def mass_of(x, row_max, scale):
    """exp(z), float32; 1 above row_max."""
    return mass_of_tokens(tl.minimum(x, row_max), row_max, scale)


@triton.jit
def mass_of_tokens(x, row_max, scale):
    """exp(z), float32, of values that a row has."""
    return tl.exp2((x - row_max) * (scale * LOG2_E))


@triton.jit
def _weight_of(x, row_max, scale, by_count):
    """What tokens weigh: one each, or their mass."""
    return tl.where(by_count, 1.0, mass_of(x, row_max, scale))


@triton.jit
def _narrowed(x, num, start, stop, needed, law):
    """The part of [start, stop) where `needed` is reached, by a sample of `num` tokens x.

    Tokens are added up from one side: by top_k from above, by top_p from below, where they are light and many, while
    few heavy ones make up what is kept. y ascends on the way: values or, by top_k, their negatives.
    """
    row_max, scale, by_count, top_p, line = law
    weight = tl.where(x > MINUS_INF, _weight_of(x, row_max, scale, by_count), 0.0)
    y = tl.where(by_count, -x, x)
    need, slack = needed, needed * 0
    if (by_count == 0) & (line > -LARGEST):
        # Of what is below the line top_p leaves out all.
        out, squares = sum_two(tl.where(x < line, weight, 0.0), tl.where(x < line, weight * weight, 0.0))
        need, slack = needed + top_p * out, top_p * _ERRORS * tl.sqrt(squares)
    bin = tl.arange(0, _BINS)
    round = 0
    while round < _BRACKET_ROUNDS:
        weighed, squares = sum_two(tl.where(y < start, weight, 0.0), tl.where(y < start, weight * weight, 0.0))
        # The outer two are for what is not between.
        width = tl.maximum((stop - start) / (_BINS - 2), 1e-30)
        place = tl.minimum(tl.maximum((y - start) * (1 / width) + 1, 0.0), _BINS - 1.0).to(tl.int32)
        number = tl.where((bin > 0) & (bin < _BINS - 1), tl.histogram(place, _BINS), 0).to(tl.float32)
        # However tokens lie within a bin, they weigh no more than at its end and no less than at its start.
        end = start + bin * width
        most, least = _weight_of(end, row_max, scale, by_count), _weight_of(end - width, row_max, scale, by_count)
        at_most, at_least, of_bins = running_sums(number * most, number * least, number * most * most)
        at_most, at_least = weighed + at_most, weighed + at_least
        variance = squares + of_bins - at_least * at_least / num
        error = _ERRORS * tl.sqrt(tl.maximum(variance, 0.0) + _LEAST * most * most) + slack
        is_before = (bin < _BINS - 1) & (at_most + error <= need)
        is_after = (bin < _BINS - 1) & (at_least - error >= need)
        stop = tl.min(tl.where(is_after, end, stop))
        start = tl.minimum(tl.max(tl.where(is_before, end, start)), stop)
        round += 1
    return start, stop


@triton.jit
def min_p_line(highest, temperature, min_p):
    """The lowest order (int32) whose z reaches log(min_p)."""
    row_max = value_of(highest).to(tl.float64)
    log_min_p = tl.log(min_p)
    # Rounding decides only near the value that the real line has.
    near = order_of((row_max + temperature * log_min_p).to(tl.float32)).to(tl.int64) + tl.arange(0, 8) - 4
    near = tl.minimum(tl.maximum(near, MINUS_INF_ORDER), highest.to(tl.int64))
    reach = (value_of(near).to(tl.float64) - row_max) / temperature >= log_min_p
    low = tl.max(tl.where(reach, MINUS_INF_ORDER, near))
    high = tl.min(tl.where(reach, near, highest.to(tl.int64)))
    while high - low > 1:
        middle = (low + high) // 2
        reaches = (value_of(middle).to(tl.float64) - row_max) / temperature >= log_min_p
        high = tl.where(reaches, middle, high)
        low = tl.where(reaches, low, middle)
    return high.to(tl.int32)
