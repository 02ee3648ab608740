"""The parameters of a row."""

import triton
import triton.language as tl

_SMALLEST_TEMPERATURE = tl.constexpr(2.0**-126)
_WANTS, _APART, _NEEDS_SUMS, _LOWERED, _SLOT_SHIFT = (tl.constexpr(number) for number in (1, 2, 4, 8, 4))


@triton.jit
def temperature_of(states, state):
    """float64, 0 = greedy; small ones as `inputs.SMALLEST_TEMPERATURE`."""
    return _bounded(tl.load(states.floats + state))


@triton.jit
def _bounded(temperature):
    return tl.where(temperature == 0, temperature, tl.maximum(temperature, _SMALLEST_TEMPERATURE))


@triton.jit
def filters_of(states, state):
    """top_k (int64, 0 = off), top_p and min_p (float64; 1 and 0 = off)."""
    top_k = tl.maximum(tl.load(states.ints + state), 0)
    top_p = tl.load(states.floats + states.num_states + state)
    min_p = tl.load(states.floats + 2 * states.num_states + state)
    return top_k, top_p, min_p


@triton.jit
def scan_scale(states, state):
    """float32: the scan sums at this scale what the row will read."""
    return asked_of_scan(states, state)[0]


@triton.jit
def asked_of_scan(states, state):
    """What `bits_for_scan` holds of a request.

    Returns the scale of `scan_scale`; whether logprobs are wanted; whether they need sums apart if nothing is edited;
    whether the row itself needs sums, not only bounds of them; whether it is `lowered`; and the slot, int32.
    """
    return asked_by(tl.load(states.asked + state))


@triton.jit
def asked_by(asked):
    """As `asked_of_scan`, of a number that is there already."""
    others = (asked >> 32).to(tl.int32)
    scale = asked.to(tl.int32).to(tl.float32, bitcast=True)
    wants, apart, needs_sums = (others & (_WANTS | _APART)) != 0, (others & _APART) != 0, (others & _NEEDS_SUMS) != 0
    lowered = (others & _LOWERED) != 0
    return scale, wants, apart, needs_sums, lowered, (others >> _SLOT_SHIFT) - 1


@triton.jit
def bits_for_scan(temperature, top_k, wanted, slot, lowered):
    """int64, of requests: bits of 1 / T for tile races and top-p, else of 1; above them what else the scan asks.

    That is whether logprobs are wanted, and whether the row is then summed at another scale than theirs; whether it
    needs sums; whether it is `lowered`; and 1 + slot among requests with edits (-1: none). Greedy rows and rows with
    top_k need masses of whole rows at T as bounds at most, so that their pass serves raw logprobs; of edited rows with
    top_k, which have two passes, any bounds do.
    """
    scale = tl.where((temperature == 0) | (top_k > 0), 1.0, scale_of(_bounded(temperature)))
    wants = tl.where(wanted != 0, tl.where(scale != 1.0, _APART, _WANTS), 0)
    needs_sums = tl.where((temperature != 0) & (top_k > 0), 0, _NEEDS_SUMS)
    flags = wants + needs_sums + tl.where(lowered != 0, _LOWERED, 0)
    others = flags.to(tl.int64) + ((1 + slot) << _SLOT_SHIFT)
    return scale.to(tl.int32, bitcast=True).to(tl.int64) + (others << 32)


@triton.jit
def without_list(asked):
    """As `bits_for_scan` of a request that touches too many tokens for a list: lowered only if it needs no sums."""
    is_off = ((asked >> 32) & _NEEDS_SUMS) != 0
    return tl.where(is_off, asked & ~(_LOWERED << 32), asked)


@triton.jit
def scale_of(temperature):
    """float32 1 / T; never 0, so that it keeps -inf."""
    return tl.maximum(1.0 / temperature.to(tl.float32), 2.0**-126)


@triton.jit
def noise_key(states, state, row):
    """seed, position, choice and row within the step: what noise is a function of, beside stream and id."""
    seed = tl.load(states.ints + states.num_states + state)
    choice = tl.load(states.ints + 2 * states.num_states + state)
    position = tl.load(states.positions + row)
    step_row = position * 0
    if states.step_rows is not None:
        step_row = tl.load(states.step_rows + row)
    return seed, position, choice, step_row
