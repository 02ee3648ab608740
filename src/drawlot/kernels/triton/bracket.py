"""Between which values the cut of a whole row lies. A sample of its tokens says where; whether it is so, a read of all."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import sum_of_masses, sum_two
from drawlot.kernels.triton.scan import LOG2_E
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.values import (
    MINUS_INF,
    MINUS_INF_ORDER,
    TILE,
    load_values,
    order_of,
    value_of,
)

LARGEST = tl.constexpr(3.4028234663852886e38)
_SAMPLES = tl.constexpr(8192)
_PER_TILE = tl.constexpr(8)
"""Tokens of a sample, at most: 32 bytes of float32, which memory hands out as one"""
_BINS = tl.constexpr(64)
_ROUNDS = tl.constexpr(3)
_ERRORS = tl.constexpr(4.0)
"""Standard errors on either side: one row in 16,000 is cut elsewhere"""
_LEAST = tl.constexpr(4.0)
"""Tokens that a sample's error is taken for at least, since a few say little about their number"""


@triton.jit
def sample_bracket(rows, tiles, row, filters, temperature, row_max, line, T: tl.constexpr):
    """low and high (float32): of the values of a row's tokens, the cut's is probably at least low, and below high.

    Only tokens from `line` on are kept, as min_p wants it. What top_k or top_p asks for is found in a sample as they
    find it in the row, with as much on either side as the sample may err.
    """
    top_k, top_p, _min_p = filters
    PER_TILE: tl.constexpr = max(min(_PER_TILE, _SAMPLES // T), 1)
    TIMES: tl.constexpr = TILE // PER_TILE
    tile = tl.arange(0, T)
    at, exists = row * tiles.stride + tile, tile < rows.num_tiles
    # Another place in each tile, lest ids have an order.
    place = ((tile.to(tl.uint32) * 2654435769) >> 16).to(tl.int32) % TIMES
    ids = (tile * TILE + place * PER_TILE)[:, None] + tl.arange(0, PER_TILE)[None, :]
    x = load_values(rows, row, ids, exists[:, None]).reshape(T * PER_TILE)
    scale, by_count = scale_of(temperature), top_k > 0
    weight = tl.where(x > MINUS_INF, _weight_of(x, row_max, scale, by_count), 0.0)
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    if by_count:
        need, slack = top_k.to(tl.float32) / TIMES, tl.zeros([], tl.float32)
        enough = tl.sum((maxima > MINUS_INF).to(tl.int32)) >= top_k
        bottom = tl.where(enough, tl.min(tl.where(maxima > MINUS_INF, maxima, LARGEST)), -LARGEST)
        first = -row_max
        last = -tl.where(enough, bottom, tl.min(tl.where(x > MINUS_INF, x, row_max)))
    else:
        sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
        mass = sum_of_masses(sums * tl.exp(tl.where(sums > 0, maxima - row_max, 0.0) * scale))
        out, squares = sum_two(tl.where(x < line, weight, 0.0), tl.where(x < line, weight * weight, 0.0))
        share, left_out = top_p.to(tl.float32), (1 - top_p).to(tl.float32)
        need, slack = left_out * mass / TIMES + share * out, share * _ERRORS * tl.sqrt(squares)
        # Even if all tokens were just below, they would not weigh what top_p leaves out.
        z = tl.log(left_out) + tl.log(mass) - tl.log(tl.zeros([], tl.float32) + rows.num_tiles * TILE) - 1e-3
        bottom = (row_max + temperature * z).to(tl.float32)
        first = bottom
        last = value_of(order_of(row_max) + 1)
    num = rows.num_tiles * PER_TILE
    return _narrowed(x, weight, num, first, last, 0.0, need, slack, bottom, filters, row_max, scale, line)


@triton.jit
def bracket_in_list(x, num, low, high, times, outside, need, filters, temperature, row_max, line):
    """As `sample_bracket`, in [low, high), of which a list has tokens x [num], one of `times`.

    outside: how many come before, or by top_p what those below weigh; need: of them and more.
    """
    top_k, _top_p, _min_p = filters
    scale, by_count = scale_of(temperature), top_k > 0
    first, last = tl.where(by_count, -high, low), tl.where(by_count, -low, high)
    weight = _weight_of(x, row_max, scale, by_count)
    outside, need, slack = outside / times, need / times, tl.zeros([], tl.float32)
    return _narrowed(x, weight, num, first, last, outside, need, slack, low, filters, row_max, scale, line)


@triton.jit
def mass_of(x, row_max, scale):
    """exp(z), float32."""
    return tl.exp2((tl.minimum(x, row_max) - row_max) * (scale * LOG2_E))


@triton.jit
def _weight_of(x, row_max, scale, by_count):
    """What tokens weigh: one each, or their mass."""
    return tl.where(by_count, 1.0, mass_of(x, row_max, scale))


@triton.jit
def _narrowed(x, weight, num, first, last, outside, need, slack, bottom, filters, row_max, scale, line):
    """low and high, by `num` tokens x and their weights.

    Tokens are added up from one side: by top_k from above, by top_p from below, where they are light and many, while
    few heavy ones make up what is kept. y ascends on the way, and first <= y < last; bottom: what low is if nothing
    narrows it; slack: what else may be wrong.
    """
    top_k, top_p, _min_p = filters
    by_count = top_k > 0
    y = tl.where(by_count, -x, x)
    # So close that their difference is no infinity.
    start = tl.where(by_count, first, tl.maximum(tl.maximum(first, last - 3e38), -LARGEST))
    stop = tl.where(by_count, tl.minimum(tl.minimum(last, first + 3e38), LARGEST), last)
    first, last = start, stop
    bin = tl.arange(0, _BINS)
    round = 0
    while round < _ROUNDS:
        weighed, squares = sum_two(tl.where(y < start, weight, 0.0), tl.where(y < start, weight * weight, 0.0))
        # The outer two are for what is not between.
        width = tl.maximum((stop - start) / (_BINS - 2), 1e-30)
        place = tl.minimum(tl.maximum((y - start) / width + 1, 0.0), _BINS - 1.0).to(tl.int32)
        number = tl.where((bin > 0) & (bin < _BINS - 1), tl.histogram(place, _BINS), 0).to(tl.float32)
        # However tokens lie within a bin, they weigh no more than at its end and no less than at its start.
        end = start + bin * width
        most, least = _weight_of(end, row_max, scale, by_count), _weight_of(end - width, row_max, scale, by_count)
        at_most, at_least = weighed + tl.cumsum(number * most, 0), weighed + tl.cumsum(number * least, 0)
        variance = squares + tl.cumsum(number * most * most, 0) - at_least * at_least / num
        error = _ERRORS * tl.sqrt(tl.maximum(variance, 0.0) + _LEAST * most * most) + slack
        is_before = (bin < _BINS - 1) & (outside + at_most + error <= need)
        is_after = (bin < _BINS - 1) & (outside + at_least - error >= need)
        stop = tl.min(tl.where(is_after, end, stop))
        start = tl.minimum(tl.max(tl.where(is_before, end, start)), stop)
        round += 1
    unchanged = tl.where(by_count, stop == last, start == first)
    low = tl.where(unchanged, bottom, tl.where(by_count, -stop, start))
    low = tl.maximum(tl.maximum(low, line), -LARGEST)
    high = tl.where(by_count, value_of(order_of(-start) + 1), stop)
    # top_p counts again within what top_k keeps: all of that is listed.
    return low, tl.where(by_count & (top_p < 1), float("inf"), tl.maximum(high, low))


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
