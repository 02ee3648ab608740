"""Several reductions of a block at once: each costs a barrier, and a finish has many."""

import triton
import triton.language as tl
from triton.knobs import runtime

from drawlot.kernels.triton.values import LAST_ID, MINUS_INF

_ONE_BY_ONE = tl.constexpr(runtime.interpret)
"""The interpreter reduces tuples in Python, element by element"""
LARGEST_KEY = tl.constexpr(2**63 - 1)
"""No token has it"""


@triton.jit
def lines_of(block):
    """Lines that a warp of 8 has to itself, for whose integers one instruction does."""
    N: tl.constexpr = block.shape[0]
    LINE: tl.constexpr = 128 if N >= 1024 else (N // 8 if N >= 256 else (32 if N >= 32 else N))
    return block.reshape(N // LINE, LINE)


@triton.jit
def _folded(block):
    """What each thread can add by itself of a long block: several blocks at once would fill the registers."""
    N: tl.constexpr = block.shape[0]
    if N > 1024:
        block = tl.sum(block.reshape(N // 1024, 1024), 0)
    return block


@triton.jit
def sum_two_and_largest(first, second):
    """Sums of two int32 blocks, and the maximum of the second."""
    if _ONE_BY_ONE:
        result = tl.sum(first), tl.sum(second), tl.max(second)
    else:
        result = tl.reduce((first, second, second), 0, _sum_two_and_largest)
    return result


@triton.jit
def _sum_two_and_largest(a_first, a_second, a_largest, b_first, b_second, b_largest):
    return a_first + b_first, a_second + b_second, tl.maximum(a_largest, b_largest)


@triton.jit
def span_and_moments(largest, smallest, count, x):
    """Maximum, minimum and sum of three int32 blocks, and the sums of x [N] (float32) and of its squares."""
    if _ONE_BY_ONE:
        result = tl.max(largest), tl.min(smallest), tl.sum(count), tl.sum(x), tl.sum(x * x)
    else:
        result = tl.reduce(_span_of_lines(largest, smallest, count, x), 0, _span_and_moments)
    return result


@triton.jit
def span_moments_and_largest(largest, smallest, count, x, first, second):
    """As `span_and_moments`, and the largest of each of two int32 blocks."""
    if _ONE_BY_ONE:
        span = tl.max(largest), tl.min(smallest), tl.sum(count), tl.sum(x), tl.sum(x * x)
        result = span, tl.max(first), tl.max(second)
    else:
        high, low, num, total, squares = _span_of_lines(largest, smallest, count, x)
        first, second = tl.max(lines_of(first), 1), tl.max(lines_of(second), 1)
        high, low, num, total, squares, first, second = tl.reduce(
            (high, low, num, total, squares, first, second), 0, _span_moments_and_largest
        )
        result = (high, low, num, total, squares), first, second
    return result


@triton.jit
def _span_of_lines(largest, smallest, count, x):
    high, low, num = tl.max(lines_of(largest), 1), tl.min(lines_of(smallest), 1), tl.sum(lines_of(count), 1)
    return high, low, num, tl.sum(lines_of(x), 1), tl.sum(lines_of(x * x), 1)


@triton.jit
def _span_and_moments(a0, a1, a2, a3, a4, b0, b1, b2, b3, b4):
    return tl.maximum(a0, b0), tl.minimum(a1, b1), a2 + b2, a3 + b3, a4 + b4


@triton.jit
def _span_moments_and_largest(a0, a1, a2, a3, a4, a5, a6, b0, b1, b2, b3, b4, b5, b6):
    span = tl.maximum(a0, b0), tl.minimum(a1, b1), a2 + b2, a3 + b3, a4 + b4
    return span[0], span[1], span[2], span[3], span[4], tl.maximum(a5, b5), tl.maximum(a6, b6)


_WORD = tl.constexpr(2**21 - 1)
FIXED_POINT = tl.constexpr(2.0**40)
"""What masses are multiplied with to become integers, whose sums are the same in every order: room for 2^22 tokens"""


@triton.jit
def fixed_sum_of_masses(mass):
    """int64 sum of numbers in [0, 128], the same in every layout."""
    N: tl.constexpr = mass.shape[0]
    if N >= 1024:
        # Four neighbours as floats, in an order that no layout changes: an int64 takes longer to make than to add.
        of_thread = tl.sum(tl.sum(mass.reshape(N // 128, 32, 2, 2), 3), 2)
        of_thread = (of_thread * FIXED_POINT).to(tl.int64)
        # Of a line that a warp has to itself three words of 21 bits are summed by one instruction each.
        low, middle = (of_thread & _WORD).to(tl.int32), ((of_thread >> 21) & _WORD).to(tl.int32)
        low, middle, high = tl.sum(low, 1), tl.sum(middle, 1), tl.sum((of_thread >> 42).to(tl.int32), 1)
        fixed = low.to(tl.int64) + (middle.to(tl.int64) << 21) + (high.to(tl.int64) << 42)
    else:
        fixed = (mass * FIXED_POINT).to(tl.int64)
    return tl.sum(fixed)


@triton.jit
def of_fixed(mass):
    """float64 mass of an integer one."""
    return mass.to(tl.float64) * (1 / FIXED_POINT)


@triton.jit
def sum_of_masses(mass):
    """As `fixed_sum_of_masses`, in float32."""
    return fixed_sum_of_masses(mass).to(tl.float32) * (1 / FIXED_POINT)


@triton.jit
def total_of(count):
    """Sum of an int32 block."""
    return tl.sum(tl.sum(lines_of(count), 1), 0)


@triton.jit
def element_of(x, index):
    """A number of a block, which one exchange tells all threads; a sum of one element takes two."""
    return tl.max(tl.gather(x, tl.zeros([1], tl.int32) + index, 0))


@triton.jit
def sum_two(first, second):
    """Sums of two blocks."""
    if _ONE_BY_ONE:
        result = tl.sum(first), tl.sum(second)
    else:
        first, second = _folded(first), _folded(second)
        result = tl.reduce((tl.sum(lines_of(first), 1), tl.sum(lines_of(second), 1)), 0, _sum_two)
    return result


@triton.jit
def _sum_two(a_first, a_second, b_first, b_second):
    return a_first + b_first, a_second + b_second


@triton.jit
def sum_four(a, b, c, d):
    """Sums of four blocks."""
    if _ONE_BY_ONE:
        result = tl.sum(a), tl.sum(b), tl.sum(c), tl.sum(d)
    else:
        result = tl.reduce((_folded(a), _folded(b), _folded(c), _folded(d)), 0, _sum_four)
    return result


@triton.jit
def _sum_four(a0, a1, a2, a3, b0, b1, b2, b3):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3


@triton.jit
def first_largest(key, token, payload):
    """The token with the largest key, the lower one among equals, and its payload; int32 both."""
    _, winner, payload = largest(key, token, payload)
    return winner, payload


@triton.jit
def winner_of(key, token):
    """The token (int32) with the largest key, the lower one among equals; LAST_ID if all keys are -inf."""
    if _ONE_BY_ONE:
        highest = tl.max(key)
        result = tl.min(tl.where((key == highest) & (key > MINUS_INF), token, LAST_ID))
    else:
        _, result = tl.reduce((key, token), 0, _winner)
    return result


@triton.jit
def _winner(a_key, a_token, b_key, b_token):
    a_wins = (a_key > b_key) | ((a_key == b_key) & (a_token < b_token))
    return tl.where(a_wins, a_key, b_key), tl.where(a_wins, a_token, b_token)


@triton.jit
def largest(key, token, payload):
    """The largest key, its token, the lower one among equals, and its payload; int32 both."""
    if _ONE_BY_ONE:
        highest = tl.max(key)
        winner = tl.min(tl.where((key == highest) & (key > MINUS_INF), token, LAST_ID))
        result = highest, winner, tl.max(tl.where(token == winner, payload, -LAST_ID))
    else:
        result = tl.reduce((key, token, payload), 0, _first_largest)
    return result


@triton.jit
def _first_largest(a_key, a_token, a_payload, b_key, b_token, b_payload):
    a_wins = (a_key > b_key) | ((a_key == b_key) & (a_token < b_token))
    key = tl.where(a_wins, a_key, b_key)
    return key, tl.where(a_wins, a_token, b_token), tl.where(a_wins, a_payload, b_payload)


@triton.jit
def two_largest(key, token):
    """The tokens (int32) with the two largest keys, the lower first among equals, and the key of the third."""
    if _ONE_BY_ONE:
        first = tl.min(tl.where(key == tl.max(key), token, LAST_ID))
        others = tl.where(token == first, MINUS_INF, key)
        second = tl.min(tl.where((others == tl.max(others)) & (token != first), token, LAST_ID))
        result = first, second, tl.max(tl.where(token == second, MINUS_INF, others))
    else:
        nothing = tl.full(key.shape, float("-inf"), key.dtype)
        _, first, _, second, third = tl.reduce((key, token, nothing, token, nothing), 0, _two_largest)
        result = first, second, third
    return result


@triton.jit
def _two_largest(a_key, a_token, a_next, a_next_token, a_third, b_key, b_token, b_next, b_next_token, b_third):
    key, token, after, after_token = _best_two(
        a_key, a_token, a_next, a_next_token, b_key, b_token, b_next, b_next_token
    )
    # Of the lower of the best and the higher of the next ones the lower, or a third one.
    third = tl.minimum(tl.minimum(a_key, b_key), tl.maximum(a_next, b_next))
    return key, token, after, after_token, tl.maximum(third, tl.maximum(a_third, b_third))


@triton.jit
def two_highest(high, low, axis: tl.constexpr):
    """Along an axis of pairs, high >= low, the two highest of all numbers, which may be equal."""
    if _ONE_BY_ONE:
        first, is_first = tl.max(high, axis), high == tl.expand_dims(tl.max(high, axis), axis)
        second = tl.maximum(tl.max(low, axis), tl.max(tl.where(is_first, MINUS_INF, high), axis))
        result = first, tl.where(tl.sum(is_first.to(tl.int32), axis) > 1, first, second)
    else:
        result = tl.reduce((high, low), axis, _two_highest)
    return result


@triton.jit
def _two_highest(a, a_next, b, b_next):
    return tl.maximum(a, b), tl.maximum(tl.minimum(a, b), tl.maximum(a_next, b_next))


@triton.jit
def two_lowest(key):
    """The two lowest keys (int64) of a block, each of which one alone has."""
    if _ONE_BY_ONE:
        lowest = tl.min(key)
        result = lowest, tl.min(tl.where(key == lowest, LARGEST_KEY, key))
    else:
        result = tl.reduce((key, tl.full(key.shape, LARGEST_KEY, tl.int64)), 0, _two_lowest)
    return result


@triton.jit
def _two_lowest(a_key, a_next, b_key, b_next):
    return tl.minimum(a_key, b_key), tl.minimum(tl.maximum(a_key, b_key), tl.minimum(a_next, b_next))


@triton.jit
def best_two_of_groups(key, token):
    """Of each group g of blocks [M, N, S], all [:, g, :], the two largest keys with their tokens (int32): four [N].

    Among equals the lower token comes first; of keys of -inf it is any.
    """
    if _ONE_BY_ONE:
        first = tl.max(tl.max(key, 2), 0)
        is_first = key == first[None, :, None]
        winner = tl.min(tl.min(tl.where(is_first, token, LAST_ID), 2), 0)
        others = tl.where(token == winner[None, :, None], MINUS_INF, key)
        second = tl.max(tl.max(others, 2), 0)
        is_second = (others == second[None, :, None]) & (token != winner[None, :, None])
        next_winner = tl.min(tl.min(tl.where(is_second, token, LAST_ID), 2), 0)
        result = first, winner, second, tl.where(next_winner == LAST_ID, winner, next_winner)
    else:
        nothing = tl.full(key.shape, float("-inf"), key.dtype)
        result = tl.reduce(tl.reduce((key, token, nothing, token), 2, _best_two), 0, _best_two)
    return result


@triton.jit
def _best_two(a_key, a_token, a_next, a_next_token, b_key, b_token, b_next, b_next_token):
    # The same from either side: threads that have the same numbers put what each finds in the same place.
    a_wins = (a_key > b_key) | ((a_key == b_key) & (a_token < b_token))
    loser, losing_token = tl.minimum(a_key, b_key), tl.where(a_wins, b_token, a_token)
    after, after_token = tl.where(a_wins, a_next, b_next), tl.where(a_wins, a_next_token, b_next_token)
    loser_is_next = (loser > after) | ((loser == after) & (losing_token < after_token))
    return (
        tl.maximum(a_key, b_key),
        tl.where(a_wins, a_token, b_token),
        tl.maximum(loser, after),
        tl.where(loser_is_next, losing_token, after_token),
    )


@triton.jit
def sum_by_tile(mass, tile):
    """Running sums of a block within runs of equal tiles: the last of a run has all of it."""
    sums, _ = tl.associative_scan((mass, tile), 0, _sum_by_tile)
    return sums


@triton.jit
def _sum_by_tile(a_mass, a_tile, b_mass, b_tile):
    return tl.where(a_tile == b_tile, a_mass + b_mass, b_mass), b_tile


@triton.jit
def running_sums(a, b, c):
    """Of three blocks."""
    return tl.associative_scan((a, b, c), 0, _sum_three)


@triton.jit
def _sum_three(a0, a1, a2, b0, b1, b2):
    return a0 + b0, a1 + b1, a2 + b2


@triton.jit
def largest_of_two(a, b):
    """The largest number of each of two blocks."""
    if _ONE_BY_ONE:
        result = tl.max(a), tl.max(b)
    else:
        result = tl.reduce((a, b), 0, _largest_of_two)
    return result


@triton.jit
def _largest_of_two(a, b, other_a, other_b):
    return tl.maximum(a, other_a), tl.maximum(b, other_b)


@triton.jit
def sum_and_smallest(a, b):
    """The sum of a block, and the smallest number of another."""
    if _ONE_BY_ONE:
        result = tl.sum(a), tl.min(b)
    else:
        result = tl.reduce((a, b), 0, _sum_and_smallest)
    return result


@triton.jit
def _sum_and_smallest(a, b, other_a, other_b):
    return a + other_a, tl.minimum(b, other_b)
