"""The noise contract of `drawlot.rng` in Triton, bit for bit: compile without fused multiply-add."""

import triton
import triton.language as tl

from drawlot import rng

_WIDE = tl.constexpr(128)
_SQRT_HALF_BITS32 = tl.constexpr(0x3F3504F3)
_SQRT_HALF_BITS64 = tl.constexpr(0x3FE6A09E60000000)
_SMALL = tl.constexpr(1 - 0.7071067690849304)
_LARGEST32 = tl.constexpr(1 - 2.0**-24)
_LARGEST64 = tl.constexpr(1 - 2.0**-53)
_LN2_HIGH = tl.constexpr(rng._LN2_HIGH)
_LN2_LOW = tl.constexpr(rng._LN2_LOW)
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6, _Q7, _Q8 = (tl.constexpr(q) for q in rng._Q32)


@triton.jit
def words(ids, seed, position, stream, choice, step_row, IDS_PER_BLOCK: tl.constexpr):
    """The four Philox words of the block that holds each id: uint32, of the shape of the ids (int32, >= 0)."""
    block = (ids // IDS_PER_BLOCK).to(tl.uint32)
    position_low = (position & 0xFFFFFFFF).to(tl.uint32)
    position_high = (((position >> 32) & 0xFFFF) | (step_row << 16)).to(tl.uint32)
    purpose = (choice * 256 + stream).to(tl.uint32)
    return tl.philox(seed, block, position_low, position_high, purpose)


@triton.jit
def gumbel(ids, seed, position, stream, choice, step_row, WIDE: tl.constexpr):
    """Gumbel noise of each id (int32): float32, float64 if WIDE; see `rng.gumbel_noise`."""
    if WIDE:
        w0, w1, w2, w3 = words(ids, seed, position, stream + _WIDE, choice, step_row, 2)
        odd = (ids & 1) == 1
        result = gumbel_of_word_pairs(tl.where(odd, w2, w0), tl.where(odd, w3, w1))
    else:
        w0, w1, w2, w3 = words(ids, seed, position, stream, choice, step_row, 4)
        odd = (ids & 1) == 1
        word = tl.where((ids & 2) == 2, tl.where(odd, w3, w2), tl.where(odd, w1, w0))
        result = gumbel_of_words(word)
    return result


@triton.jit
def gumbel_of_range(first, N: tl.constexpr, seed, position, stream, choice, step_row, WIDE: tl.constexpr):
    """Gumbel noise of ids first .. first + N - 1, first a multiple of 4: ids share words, and these are made once."""
    if WIDE:
        block = first + 2 * tl.arange(0, N // 2)
        w0, w1, w2, w3 = words(block, seed, position, stream + _WIDE, choice, step_row, 2)
        high, low = tl.join(w0, w2).reshape(N), tl.join(w1, w3).reshape(N)
        result = gumbel_of_word_pairs(high, low)
    else:
        block = first + 4 * tl.arange(0, N // 4)
        w0, w1, w2, w3 = words(block, seed, position, stream, choice, step_row, 4)
        result = gumbel_of_words(tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(N))
    return result


@triton.jit
def gumbel_of_words(word):
    """Float32 noise of uint32 words: -log(-log1p(-u)) with u = min(word 2^-32 + 2^-33, 1 - 2^-24)."""
    u = tl.minimum(word.to(tl.float32) * 2.0**-32 + 2.0**-33, _LARGEST32)
    return -_log32(-_log1p_negative32(u))


@triton.jit
def gumbel_of_word_pairs(high, low):
    """Float64 noise from 53 of 64 bits."""
    bits = (high.to(tl.uint64) << 21) | (low.to(tl.uint64) >> 11)
    u = tl.minimum(bits.to(tl.float64) * 2.0**-53 + 2.0**-54, _LARGEST64)
    return -_log64(-_log1p_negative64(u))


@triton.jit
def _log1p_negative32(u):
    exponent, fraction = _split32(1 - u)
    small = u < _SMALL
    return _log_reduced32(tl.where(small, 0.0, exponent), tl.where(small, -u, fraction))


@triton.jit
def _log32(x):
    exponent, fraction = _split32(x)
    return _log_reduced32(exponent, fraction)


@triton.jit
def _split32(x):
    """(e, f) with x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2))."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS32) >> 23
    fraction = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1
    return exponent.to(tl.float32), fraction


@triton.jit
def _log_reduced32(exponent, f):
    polynomial = f * _Q8
    polynomial += _Q7
    polynomial = polynomial * f + _Q6
    polynomial = polynomial * f + _Q5
    polynomial = polynomial * f + _Q4
    polynomial = polynomial * f + _Q3
    polynomial = polynomial * f + _Q2
    polynomial = polynomial * f + _Q1
    polynomial = polynomial * f + _Q0
    result = f * f * polynomial
    result += exponent * _LN2_LOW
    result += f
    result += exponent * _LN2_HIGH
    return result


@triton.jit
def _log1p_negative64(u):
    exponent, fraction = _split64(1 - u)
    small = u < _SMALL
    return _log_reduced64(tl.where(small, 0.0, exponent), tl.where(small, -u, fraction))


@triton.jit
def _log64(x):
    exponent, fraction = _split64(x)
    return _log_reduced64(exponent, fraction)


@triton.jit
def _split64(x):
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - _SQRT_HALF_BITS64) >> 52
    fraction = (bits - (exponent << 52)).to(tl.float64, bitcast=True) - 1
    return exponent.to(tl.float64), fraction


@triton.jit
def _log_reduced64(exponent, f):
    s = f / (2 + f)
    square = s * s
    series = square * 0 + 1 / 23
    for i in tl.static_range(10):
        series = series * square + 1 / (21 - 2 * i)
    tail = 2 * s * square * series
    return exponent * 0.6931471805599453 + (2 * s + tail)
