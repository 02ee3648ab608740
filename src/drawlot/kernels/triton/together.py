"""Programs that work on rows together: tickets, and a barrier for the whole grid.

The grid has as many programs as run at once, so that none waits for one that cannot start. Two such grids on two
streams may each hold half of the GPU and wait for ever: draw on one stream at a time.
"""

import triton
import triton.language as tl


@triton.jit
def is_last(tickets, row, num_parts):
    """Whether this program is the last of a row's parts to come here; what the others have stored can then be read."""
    tl.debug_barrier()
    last = tl.atomic_add(tickets + row, 1, sem="acq_rel") == num_parts - 1
    if last:
        tl.store(tickets + row, 0)
    tl.debug_barrier()
    return last


@triton.jit
def wait_for_all(arrivals, num_programs, ROUND: tl.constexpr):
    """Wait until all programs of the grid have come here; rounds count from 1, and the arrivals begin at 0."""
    tl.debug_barrier()
    arrived = tl.atomic_add(arrivals, 1, sem="acq_rel") + 1
    while arrived < ROUND * num_programs:
        arrived = tl.atomic_add(arrivals, 0, sem="acquire")
    tl.debug_barrier()
