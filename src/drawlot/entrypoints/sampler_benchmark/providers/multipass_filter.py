"""The top-k/top-p mask of the multi-pass pipeline, as vLLM describes its own (after Qrita, arXiv 2602.01518).

One program a row: the mean and deviation of the first block guess a line; one sweep copies what lies above it to
scratch; a ternary search finds the k-th value there, then the value at which the kept mass reaches p; a last sweep
writes -inf over the rest. Where the guess was too high the searches sweep the row itself. Ties go to lower ids.
"""

# mypy: ignore-errors
import triton
import triton.language as tl

_LOOSER = tl.constexpr(0.15)


@triton.jit
def upper_quantile(q):
    """z with P(N(0, 1) > z) = q, to 5e-4 (Abramowitz and Stegun, 26.2.23)."""
    t = tl.sqrt(-2.0 * tl.log(tl.minimum(q, 1.0 - q)))
    z = t - (2.515517 + t * (0.802853 + t * 0.010328)) / (1.0 + t * (1.432788 + t * (0.189269 + t * 0.001308)))
    return tl.where(q < 0.5, z, -z)


@triton.jit
def guessed_line(x_ptr, k, p, V, BLOCK: tl.constexpr):
    """A line above which k tokens, or p of the mass without k, would lie if logits were normal; inf: no use."""
    ids = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + ids, mask=ids < V, other=float("-inf"))
    finite = x > float("-inf")
    number = tl.maximum(tl.sum(finite.to(tl.float32)), 1.0)
    mean = tl.sum(tl.where(finite, x, 0.0)) / number
    std = tl.sqrt(tl.sum(tl.where(finite, (x - mean) * (x - mean), 0.0)) / number)
    if k < V:
        z = upper_quantile(k.to(tl.float32) / V)
        z = z - _LOOSER * tl.abs(z)
    else:
        # Weighted by exp(x), normal logits are normal again, around mean + std^2.
        z = std - (1.0 + _LOOSER) * upper_quantile(1.0 - p) - _LOOSER
    return tl.where(z > 0.0, mean + z * std, float("inf"))


@triton.jit
def first_sweep(x_ptr, scratch_ptr, line, V, BLOCK: tl.constexpr):
    """Copies what lies above the line; returns maximum, minimum, number and mass of the row, and of the copied."""
    top, low = float("-inf"), float("inf")
    mass, copied_mass, number, copied = 0.0, 0.0, 0, 0
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + ids, mask=ids < V, other=float("-inf"))
        finite = x > float("-inf")
        number += tl.sum(finite.to(tl.int32))
        low = tl.minimum(low, tl.min(tl.where(finite, x, float("inf"))))
        new_top = tl.maximum(top, tl.max(x))
        scale = tl.where(new_top > top, tl.exp(top - new_top), 1.0)
        weights = tl.where(finite, tl.exp(x - new_top), 0.0)
        above = x > line
        mass = mass * scale + tl.sum(weights)
        copied_mass = copied_mass * scale + tl.sum(tl.where(above, weights, 0.0))
        tl.store(scratch_ptr + copied + tl.cumsum(above.to(tl.int32), 0) - 1, x, mask=above)
        copied += tl.sum(above.to(tl.int32))
        top = new_top
    return top, low, number, mass, copied, copied_mass


@triton.jit
def reaching(x_ptr, size, a, b, top, BLOCK: tl.constexpr):
    """Number and mass of the tokens >= a, and of those >= b."""
    count_a, count_b, mass_a, mass_b = 0, 0, 0.0, 0.0
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + at, mask=at < size, other=float("-inf"))
        weights = tl.exp(x - top)
        count_a += tl.sum((x >= a).to(tl.int32))
        count_b += tl.sum((x >= b).to(tl.int32))
        mass_a += tl.sum(tl.where(x >= a, weights, 0.0))
        mass_b += tl.sum(tl.where(x >= b, weights, 0.0))
    return count_a, count_b, mass_a, mass_b


@triton.jit
def search(x_ptr, size, low, above_top, top, k, goal, BLOCK: tl.constexpr):
    """The highest line that k tokens and a mass of `goal` reach.

    Returns the line, the number and mass of tokens >= it, and of those > it. Stops early where the line parts the
    tokens exactly: k of them reach it, or raising it would lose a single one.
    """
    high = above_top
    count_low, count_high, mass_low, mass_high = size + 1, 0, 0.0, 0.0
    a, b = low, low + (high - low) * 0.6666667
    moving = True
    while moving:
        count_a, count_b, mass_a, mass_b = reaching(x_ptr, size, a, b, top, BLOCK)
        b_does = (count_b >= k) & (mass_b >= goal)
        a_does = (count_a >= k) & (mass_a >= goal)
        high = tl.where(b_does, high, tl.where(a_does, b, a))
        count_high = tl.where(b_does, count_high, tl.where(a_does, count_b, count_a))
        mass_high = tl.where(b_does, mass_high, tl.where(a_does, mass_b, mass_a))
        low = tl.where(b_does, b, tl.where(a_does, a, low))
        count_low = tl.where(b_does, count_b, tl.where(a_does, count_a, count_low))
        mass_low = tl.where(b_does, mass_b, tl.where(a_does, mass_a, mass_low))
        third = (high - low) * 0.33333334
        a, b = low + third, high - third
        moving = (count_low - count_high > 1) & (count_low != k) & ((a > low) | (b < high))
    return low, count_low, mass_low, count_high, mass_high


@triton.jit
def mask_below(x_ptr, line, ties, V, BLOCK: tl.constexpr):
    """Keeps what is above the line and the first `ties` tokens on it."""
    seen = 0
    for start in range(0, V, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + ids, mask=ids < V, other=float("-inf"))
        drop = x < line
        if ties < V:
            on_line = (x == line).to(tl.int32)
            drop = drop | ((on_line > 0) & (seen + tl.cumsum(on_line, 0) > ties))
            seen += tl.sum(on_line)
        tl.store(x_ptr + ids, float("-inf"), mask=(ids < V) & drop)


@triton.jit
def top_k_top_p_kernel(x_ptr, scratch_ptr, top_k_ptr, top_p_ptr, V, BLOCK: tl.constexpr):
    """In place on float32 [N, V]; scratch float32 [N, V]; top_k int32 [N], V = off; top_p float32 [N], 1 = off."""
    row = tl.program_id(0).to(tl.int64)
    k, p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    if (k < V) | (p < 1.0):
        x_row, scratch = x_ptr + row * V, scratch_ptr + row * V
        guess = guessed_line(x_row, k, p, V, BLOCK)
        top, low, number, mass, copied, copied_mass = first_sweep(x_row, scratch, guess, V, BLOCK)
        tl.debug_barrier()
        k = tl.where(k < number, k, V)
        enough = tl.where(k < V, copied >= k, copied_mass >= p * mass)
        source, size, line = x_row, V, low
        if enough:
            source, size, line = scratch, copied, guess
        above_top = top + tl.maximum(tl.abs(top) * 2.0e-7, 1.0e-30)
        ties = V
        if k < V:
            line, count, mass, count_above, mass_above = search(source, size, line, above_top, top, k, 0.0, BLOCK)
            if count > k:
                ties = k - count_above
                mass = mass_above + ties * tl.exp(line - top)
        if p < 1.0:
            goal = p * mass
            lowest = line
            line, count, _, count_above, mass_above = search(source, size, line, above_top, top, 1, goal, BLOCK)
            if line > lowest:
                ties = V
            if count - count_above > 1:
                ties = tl.minimum(ties, tl.ceil((goal - mass_above) / tl.exp(line - top)).to(tl.int32))
        mask_below(x_row, line, ties, V, BLOCK)
