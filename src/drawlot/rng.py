"""The noise contract: noise is a pure function of (seed, position, stream, token id, choice).

Philox4x32-10 (Salmon et al., SC'11) with key = the 64-bit seed and counter words

    0  id >> 2 (token or tile id; the low two bits choose one of the four output words)
    1  position, low 32 bits
    2  position, bits 32..47, and the row within the step << 16
    3  stream, and choice << 8

Float64 noise takes 64 bits an id, so word 0 is id >> 1 and the low bit chooses a pair of words, on streams of its own
(+ 128). All functions take NumPy arrays (uint64) or torch tensors (int64) alike and return bit-equal noise for both:
integer arithmetic wraps mod 2^64 in both, and floats see only correctly rounded single operations.
"""

import sys
from enum import IntEnum
from typing import Any

import numpy as np
import torch

# A NumPy array or a torch tensor; the functions use only what both spell alike.
Array = Any

_MASK = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_WIDE = 128
_LOW = 0 if sys.byteorder == "little" else 1  # of the two 32-bit halves of a product in memory


class Stream(IntEnum):
    """What a noise is for; two purposes never share one, except that coupled drafting uses the target's."""

    TARGET_TILE = 0
    TARGET_TOKEN = 1
    DRAFT_TILE = 2
    DRAFT_TOKEN = 3
    ACCEPT = 4
    RESIDUAL_TILE = 5
    RESIDUAL_TOKEN = 6
    BONUS_TILE = 7
    BONUS_TOKEN = 8


# The streams of the two races of a draw.
TARGET = (Stream.TARGET_TILE, Stream.TARGET_TOKEN)
DRAFT = (Stream.DRAFT_TILE, Stream.DRAFT_TOKEN)
RESIDUAL = (Stream.RESIDUAL_TILE, Stream.RESIDUAL_TOKEN)
BONUS = (Stream.BONUS_TILE, Stream.BONUS_TOKEN)


def philox4x32(counter: tuple[Array, Array, Array, Array], key: tuple[Array, Array]) -> tuple[Array, ...]:
    """Ten rounds of Philox4x32.

    Args:
        counter: Four arrays of words in [0, 2^32), broadcast against each other.
        key: Two arrays of words in [0, 2^32).

    Returns:
        Four arrays of words in [0, 2^32): uint32, or int64 tensors.
    """
    if isinstance(counter[0], torch.Tensor):
        return _philox_torch(counter, key)
    # Two pairs instead of four words, in place, and products split by a view: what small arrays cost is operations.
    shape = np.broadcast(*counter, *key).shape
    even, odd = np.empty((2, *shape), np.uint32), np.empty((2, *shape), np.uint32)
    even[0], even[1], odd[0], odd[1] = counter[0], counter[2], counter[1], counter[3]
    ones = (1,) * len(shape)
    product = np.empty((2, *shape), np.uint64)
    halves = product.view(np.uint32).reshape(2, *shape, 2)[::-1]
    low, high = halves[..., _LOW], halves[..., 1 - _LOW]
    multiplier = np.array(_MULTIPLIER, np.uint64).reshape(2, *ones)
    key_pair = np.empty((2, *ones[key[0].ndim :], *key[0].shape), np.uint32)
    key_pair[0], key_pair[1] = key
    weyl = np.array(_WEYL, np.uint32).reshape(2, *ones)
    for round_key in key_pair + np.arange(10, dtype=np.uint32).reshape(10, 1, *ones) * weyl:
        np.multiply(even, multiplier, out=product)
        np.bitwise_xor(high, odd, out=even)
        even ^= round_key
        odd[...] = low
    return even[0], odd[0], even[1], odd[1]


def _philox_torch(counter: tuple[Array, ...], key: tuple[Array, Array]) -> tuple[Array, ...]:
    """`philox4x32` of int64 tensors: torch has no unsigned product of 32 by 32 bits, but int64 wraps alike."""
    w0, w1, w2, w3 = counter
    k0, k1 = key
    for _ in range(10):
        # w1, w3 and the keys keep bits above 32: they only enter an xor that is masked before it is multiplied.
        product0, product1 = w0 * _MULTIPLIER[0], w2 * _MULTIPLIER[1]
        w0, w1, w2, w3 = ((product1 >> 32) ^ w1 ^ k0) & _MASK, product1, ((product0 >> 32) ^ w3 ^ k1) & _MASK, product0
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return w0, w1 & _MASK, w2, w3 & _MASK


def words(seed: Array, position: Array, stream: int, block: Array, choice: Array, row: Array) -> tuple[Array, ...]:
    """The four Philox words of counter block `block` (an id >> 2) for each broadcast element; see the module's head."""
    counter = (
        block,
        position & _MASK,
        ((position >> 32) & 0xFFFF) | (row << 16),
        choice * 256 + (int(stream) if isinstance(stream, int) else stream),
    )
    return philox4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))


def uniform32(word: Array) -> Array:
    """Float32 in (0, 1): min(float32(word) 2^-32 + 2^-33, 1 - 2^-24)."""
    xp = _namespace(word)
    uniform = _cast(word, xp.float32) * 2.0**-32  # exact: the word is what is rounded
    uniform += 2.0**-33
    return xp.clip(uniform, None, 1 - 2.0**-24, out=uniform)


def uniform64(high: Array, low: Array) -> Array:
    """Float64 in (0, 1) from 53 of 64 bits: min((bits + 1/2) 2^-53, 1 - 2^-53)."""
    xp = _namespace(high)
    integer = xp.int64 if xp is torch else xp.uint64
    bits = (_cast(high, integer) << 21) | (_cast(low, integer) >> 11)
    return xp.clip(_cast(bits, xp.float64) * 2.0**-53 + 2.0**-54, None, 1 - 2.0**-53)


def gumbel(uniform: Array) -> Array:
    """Gumbel noise -log(-log1p(-u)) in the dtype of `uniform`: the fine end of u near 0 is where races are won."""
    return -_log(-_log1p_negative(uniform))


def rough_gumbel(uniform: Array) -> Array:
    """`gumbel` of NumPy arrays within ROUGH / 2, in a tenth of its time: it tells who may win, never who wins."""
    return -np.log(-np.log1p(-uniform))


ROUGH = 1e-3
"""Who is further behind by `rough_gumbel` has lost by `gumbel`."""


def gumbel_noise(
    ids: Array, seed: Array, position: Array, stream: int | Array, choice: Array, row: Array, *, wide: bool = False
) -> Array:
    """Gumbel noise for each id: `gumbel` of `uniforms`, with the same arguments."""
    return gumbel(uniforms(ids, seed, position, stream, choice, row, wide=wide))


def uniforms(
    ids: Array, seed: Array, position: Array, stream: int | Array, choice: Array, row: Array, *, wide: bool = False
) -> Array:
    """What the noise of each id is made of.

    Args:
        ids: Token or tile ids.
        seed, position, choice, row: Integers that broadcast against the ids.
        stream: A `Stream`, or integers that broadcast against the ids.
        wide: Float64 noise from 64 bits (`use_fp64_gumbel`) instead of float32 from 32.

    Returns:
        float32 or float64 in (0, 1), of the shape of the ids.
    """
    if wide:
        w0, w1, w2, w3 = words(seed, position, stream + _WIDE, ids >> 1, choice, row)
        odd = (ids & 1) == 1
        xp = _namespace(ids)
        return uniform64(xp.where(odd, w2, w0), xp.where(odd, w3, w1))
    xp = _namespace(ids)
    w0, w1, w2, w3 = words(seed, position, stream, ids >> 2, choice, row)
    high = xp.where((ids & 1) == 1, w3, w2)
    low = xp.where((ids & 1) == 1, w1, w0)
    return uniform32(xp.where((ids & 2) == 2, high, low))


def uniforms_run(
    first: Array,
    count: int,
    seed: Array,
    position: Array,
    stream: int,
    choice: Array,
    row: Array,
    *,
    wide: bool = False,
) -> Array:
    """`uniforms` of the ids first .. first + count - 1, computing each block of words once.

    Args:
        first: Ids [N], multiples of 4.
        count: How many ids follow each.
        seed, position, choice, row: Integers [N].
        stream: A `Stream`.
        wide: As for `uniforms`.

    Returns:
        float32 or float64 [N, count].
    """
    xp = _namespace(seed)
    ids_per_block = 2 if wide else 4
    offsets = xp.arange(-(-count // ids_per_block), dtype=seed.dtype)
    offsets = offsets.to(seed.device) if xp is torch else offsets
    blocks = first[:, None] // ids_per_block + offsets
    seed, position, choice, row = (part[:, None] for part in (seed, position, choice, row))
    w0, w1, w2, w3 = words(seed, position, stream + _WIDE if wide else stream, blocks, choice, row)
    if wide:
        uniform = xp.stack((uniform64(w0, w1), uniform64(w2, w3)), -1)
    else:
        uniform = uniform32(xp.stack((w0, w1, w2, w3), -1))
    return uniform.reshape(len(seed), -1)[:, :count]


def coin(seed: Array, anchor: Array, choice: Array, row: Array, *, wide: bool = False) -> Array:
    """The coin that decides over the draft of a row of a verified step: id 0 of the stream ACCEPT.

    Args:
        seed, choice, row: Integers that broadcast against each other.
        anchor: The position of the step's row 0.
        wide: Float64 from 64 bits instead of float32 from 32.

    Returns:
        Uniform in (0, 1), float32 or float64.
    """
    stream = Stream.ACCEPT + _WIDE if wide else Stream.ACCEPT
    w0, w1, _, _ = words(seed, anchor, stream, seed * 0, choice, row)
    return uniform64(w0, w1) if wide else uniform32(w0)


# log(1 + f) = f + f^2 Q(f) on [sqrt(1/2) - 1, sqrt(2) - 1]; largest relative error 4.2e-9 (tools/fit_log1p.py).
_Q32 = (
    -0.49999988079071045,
    0.33333325386047363,
    -0.25001609325408936,
    0.20002013444900513,
    -0.16608430445194244,
    0.141805961728096,
    -0.13247500360012054,
    0.12914729118347168,
    -0.0762317031621933,
)
# Few bits each, so that exponent * _LN2_HIGH is exact.
_LN2_HIGH, _LN2_LOW = 355 / 512, -2.12194440054690583e-4
_SQRT_HALF = 0.7071067690849304  # a float32 value
_SQRT_HALF_BITS = {23: 0x3F3504F3, 52: 0x3FE6A09E60000000}


def _log1p_negative(u: Array) -> Array:
    """log(1 - u) for u in (0, 1), accurate for small u, where 1 - u would have lost its digits."""
    xp = _namespace(u)
    exponent, fraction = _split(1 - u)
    small = u < 1 - _SQRT_HALF
    return _log_reduced(xp.where(small, xp.zeros_like(exponent), exponent), xp.where(small, -u, fraction))


def _log(x: Array) -> Array:
    """log(x) for normal positive x."""
    return _log_reduced(*_split(x))


def _split(x: Array) -> tuple[Array, Array]:
    """(e, f) with x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); e in the dtype of x. Exact."""
    xp = _namespace(x)
    integer, mantissa_bits = (xp.int64, 52) if x.dtype == xp.float64 else (xp.int32, 23)
    bits = x.view(integer)
    # Counted from the bits of sqrt(1/2), the exponent field changes where 1 + f would leave its interval.
    exponent = (bits - _SQRT_HALF_BITS[mantissa_bits]) >> mantissa_bits
    fraction = (bits - (exponent << mantissa_bits)).view(x.dtype)
    fraction -= 1
    return _cast(exponent, x.dtype), fraction


def _log_reduced(exponent: Array, f: Array) -> Array:
    """Exponent * log(2) + log(1 + f) for 1 + f in [sqrt(1/2), sqrt(2)]."""
    xp = _namespace(f)
    if f.dtype == xp.float64:
        # log(1 + f) = 2 atanh(s) = 2 (s + s^3 / 3 + s^5 / 5 + ...), s = f / (2 + f), s^2 < 0.03: 11 terms reach 2^-53.
        s = f / (2 + f)
        square = s * s
        series = square * 0 + 1 / 23
        for odd in range(21, 1, -2):
            series *= square
            series += 1 / odd
        tail = 2 * s * square * series
        return exponent * 0.6931471805599453 + (2 * s + tail)
    polynomial = f * _Q32[-1]
    polynomial += _Q32[-2]
    for coefficient in reversed(_Q32[:-2]):
        polynomial *= f
        polynomial += coefficient
    result = f * f
    result *= polynomial
    result += exponent * _LN2_LOW
    result += f
    result += exponent * _LN2_HIGH
    return result


def _namespace(array: Array) -> Any:
    return torch if isinstance(array, torch.Tensor) else np


def _cast(array: Array, dtype: Any) -> Array:
    return array.to(dtype) if isinstance(array, torch.Tensor) else array.astype(dtype)
