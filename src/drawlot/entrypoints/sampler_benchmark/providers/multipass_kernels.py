"""The other kernels of the multi-pass pipeline, one stage each; [N, V] float32 in place unless said."""

# mypy: ignore-errors
import triton
import triton.language as tl

_SMALL = tl.constexpr(1.0 / 256)


@triton.jit
def penalties_kernel(
    x_ptr, counts_ptr, in_prompt_ptr, repetition_ptr, frequency_ptr, presence_ptr, V, BLOCK: tl.constexpr
):
    """Grid [N, V / BLOCK]. counts int32 [N, V], of the output; in_prompt bool [N, V]; the others float32 [N]."""
    row = tl.program_id(0).to(tl.int64)
    repetition, frequency = tl.load(repetition_ptr + row), tl.load(frequency_ptr + row)
    presence = tl.load(presence_ptr + row)
    if (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0):
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at, exists = row * V + ids, ids < V
        x = tl.load(x_ptr + at, mask=exists)
        count = tl.load(counts_ptr + at, mask=exists)
        in_prompt = tl.load(in_prompt_ptr + at, mask=exists)
        seen = (count > 0) | (in_prompt != 0)
        x = tl.where(seen, tl.where(x > 0, x / repetition, x * repetition), x)
        x = x - frequency * count - tl.where(count > 0, presence, 0.0)
        tl.store(x_ptr + at, x, mask=exists)


@triton.jit
def temperature_kernel(x_ptr, temperature_ptr, V, BLOCK: tl.constexpr):
    """Grid [N, V / BLOCK]; rows with temperature 0 or 1 are left alone."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    if (temperature != 0.0) & (temperature != 1.0):
        ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at = x_ptr + row * V + ids
        tl.store(at, tl.load(at, mask=ids < V) / temperature, mask=ids < V)


@triton.jit
def min_p_kernel(x_ptr, min_p_ptr, V, BLOCK: tl.constexpr):
    """Grid [N]: one sweep for the maximum, one to mask."""
    row = tl.program_id(0).to(tl.int64)
    min_p = tl.load(min_p_ptr + row)
    if min_p > 0.0:
        top = float("-inf")
        for start in range(0, V, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            top = tl.maximum(top, tl.max(tl.load(x_ptr + row * V + ids, mask=ids < V, other=float("-inf"))))
        line = top + tl.log(min_p)
        for start in range(0, V, BLOCK):
            ids = start + tl.arange(0, BLOCK)
            x = tl.load(x_ptr + row * V + ids, mask=ids < V, other=float("-inf"))
            tl.store(x_ptr + row * V + ids, float("-inf"), mask=(ids < V) & (x < line))


@triton.jit
def mixed_in(state, word):
    """One word of 32 bits into a state of MurmurHash3_x86_32."""
    word = word * 0xCC9E2D51
    word = ((word << 15) | (word >> 17)) * 0x1B873593
    state = state ^ word
    return ((state << 13) | (state >> 19)) * 5 + 0xE6546B64


@triton.jit
def finalized(state, length: tl.constexpr):
    """The last steps of MurmurHash3_x86_32 for so many bytes."""
    state = state ^ length
    state = (state ^ (state >> 16)) * 0x85EBCA6B
    state = (state ^ (state >> 13)) * 0xC2B2AE35
    return state ^ (state >> 16)


@triton.jit
def gumbel_kernel(
    x_ptr, temperature_ptr, seeds_ptr, positions_ptr, best_ptr, best_ids_ptr, V, NUM_BLOCKS, BLOCK: tl.constexpr
):
    """Grid [N, NUM_BLOCKS]: the best of each block of x [N, V] (any float dtype) with noise; without it at T = 0.

    Noise is MurmurHash3_x86_32, seeded with the low word of the seed, of its high word, position and id.
    best float32 and best_ids int64 [N, NUM_BLOCKS].
    """
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * V + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
    if tl.load(temperature_ptr + row) != 0.0:
        seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
        state = mixed_in(seed.to(tl.uint32), (seed >> 32).to(tl.uint32))
        word = finalized(mixed_in(mixed_in(state, position.to(tl.uint32)), ids.to(tl.uint32)), 12)
        u = tl.minimum(word.to(tl.float32) * 2.0**-32 + 2.0**-33, 1.0 - 2.0**-24)
        # -log(1 - u), by its series where 1 - u has lost the digits of u.
        series = u * (1.0 + u * (0.5 + u * (0.33333334 + u * 0.25)))
        x += -tl.log(tl.where(u < _SMALL, series, -tl.log(1.0 - u)))
    best = tl.max(x, 0)
    at = row * NUM_BLOCKS + block
    tl.store(best_ptr + at, best)
    tl.store(best_ids_ptr + at, tl.min(tl.where(x == best, ids, 2147483647)).to(tl.int64))


@triton.jit
def logprobs_kernel(logits_ptr, ids_ptr, logprobs_ptr, V, C, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    """Grid [N]: log-softmax of logits [N, V] (any float dtype) at ids int64 [N, C]; two sweeps."""
    row = tl.program_id(0).to(tl.int64)
    top = float("-inf")
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * V + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        top = tl.maximum(top, tl.max(x))
    mass = 0.0
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * V + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        mass += tl.sum(tl.exp(x - top))
    column = tl.arange(0, COLUMNS)
    ids = tl.load(ids_ptr + row * C + column, mask=column < C, other=0)
    x = tl.load(logits_ptr + row * V + ids).to(tl.float32)
    tl.store(logprobs_ptr + row * C + column, (x - top) - tl.log(mass), mask=column < C)


@triton.jit
def ranks_kernel(logits_ptr, token_ids_ptr, ranks_ptr, V, BLOCK: tl.constexpr):
    """Grid [N]: how many logits are at least the drawn token's, int64 [N]; one sweep."""
    row = tl.program_id(0).to(tl.int64)
    drawn = tl.load(logits_ptr + row * V + tl.load(token_ids_ptr + row)).to(tl.float32)
    count = 0
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * V + ids, mask=ids < V, other=float("-inf")).to(tl.float32)
        count += tl.sum((x >= drawn).to(tl.int32))
    tl.store(ranks_ptr + row, count.to(tl.int64))
