"""Programmatic dependent launch: a kernel is set up while the one before it runs (CUDA, Hopper and newer)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_LAST = tl.constexpr(4096)
"""Programs, at least as many as run at once: those before have ended when the last one begins"""


@triton.jit
def follow(OVERLAP: tl.constexpr):
    """Wait for the kernel before this one, and let the next one be set up.

    What comes before may read only what was there when the scan began: it waits for all before it, and touches nothing
    until then. A kernel that is not launched to be set up early waits for nothing here.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@triton.jit
def follow_of_many(EARLY: tl.constexpr, OVERLAP: tl.constexpr):
    """As `follow`, for a kernel of many programs, of which each pays for what it does here.

    Nothing is set up before the last programs begin, so these alone let it. EARLY: the kernel is itself set up early.
    """
    if EARLY:
        gdc_wait()
    if OVERLAP:
        if tl.program_id(0) >= tl.num_programs(0) - _LAST:
            gdc_launch_dependents()


@triton.jit
def let_next_start(OVERLAP: tl.constexpr):
    """For a kernel that follows others' kernels: it begins when they end."""
    if OVERLAP:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(OVERLAP: tl.constexpr):
    """As `follow`, for a kernel that lets the next one start later than that.

    Or for one that began without waiting, at its end: whoever follows it follows those before it, too.
    """
    if OVERLAP:
        gdc_wait()
