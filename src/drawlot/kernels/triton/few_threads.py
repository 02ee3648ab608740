"""Threads that have nothing more to do leave a program, which has as many as its widest block is worth."""

import triton
import triton.language as tl
from triton.knobs import runtime

_INTERPRETED = tl.constexpr(runtime.interpret)
"""By an interpreter that has no threads"""


@triton.jit
def leave_but_first(N: tl.constexpr):
    """From here on only the first N threads go on, N a multiple of 32; no block that follows may have more numbers.

    Of a block of up to N numbers the first threads have one each, and all others repeat what these do: without them
    half as many instructions are issued. Barriers wait for threads that have not left (CUDA C++ Programming Guide,
    `__syncthreads`, since compute capability 7.0).
    """
    if not _INTERPRETED:
        tl.inline_asm_elementwise(
            "{ .reg .pred leaves; .reg .u32 own; mov.u32 own, %tid.x; setp.ge.u32 leaves, own, $1; @leaves exit; "
            "mov.u32 $0, 0; }",
            "=r,r",
            [N],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
