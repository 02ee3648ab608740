"""A kernel that reads."""

# mypy: ignore-errors
import triton
import triton.language as tl


@triton.jit
def read_kernel(x_ptr, sums_ptr, size, BLOCK: tl.constexpr):
    """sums float32 [programs]: of blocks of x, any float dtype."""
    program = tl.program_id(0).to(tl.int64)
    at = program * BLOCK + tl.arange(0, BLOCK)
    tl.store(sums_ptr + program, tl.sum(tl.load(x_ptr + at, mask=at < size, other=0.0).to(tl.float32)))
