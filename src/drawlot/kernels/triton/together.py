"""Programs that work together: a barrier for a whole grid, the last of a few programs, counts and values to wait for.

A grid with a barrier has as many programs as run at once, so that none waits for one that cannot start. Two such grids
on two streams may each hold half of the GPU and wait for ever: draw on one stream at a time.
"""

import triton
import triton.language as tl


@triton.jit
def wait_for_all(arrivals, num_programs, round):
    """Wait until all programs of the grid have come here; rounds count from 1, and the arrivals begin at 0."""
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel") + 1
    while arrived < round * num_programs:
        arrived = tl.atomic_add(arrivals, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def is_last(arrivals, num_programs):
    """Whether all others of some programs have come here before, whose stores can now be read; arrivals begin at 0."""
    return is_last_of(arrivals, 1, num_programs)


@triton.jit
def is_last_of(arrivals, own, num):
    """As `is_last`, for a program that does `own` of `num` things."""
    tl.debug_barrier()
    return tl.atomic_add(arrivals, own, sem="acq_rel") + own == num


@triton.jit
def count_up(count):
    """Count one up, once what the program has stored can be seen."""
    tl.debug_barrier()
    tl.atomic_add(count, 1, sem="release")


@triton.jit
def wait_for(count, number):
    """Wait until a count has come to a number, and return it; what those stored that `count_up` can be read then."""
    reached = tl.atomic_add(count, 0, sem="acquire")
    while reached < number:
        reached = tl.atomic_add(count, 0, sem="acquire")
    tl.debug_barrier()
    return reached


@triton.jit
def wait_for_values(pointers, mask, NOT_YET: tl.constexpr):
    """Values of a block, 0 where masked, once none is NOT_YET: each tells of itself alone that it is there."""
    values = tl.load(pointers, mask=mask, other=0.0, volatile=True)
    while tl.max((values == NOT_YET).to(tl.int32)) != 0:
        values = tl.load(pointers, mask=mask, other=0.0, volatile=True)
    return values
