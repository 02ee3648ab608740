"""Programs that work on rows together: a barrier for the whole grid.

The grid has as many programs as run at once, so that none waits for one that cannot start. Two such grids on two
streams may each hold half of the GPU and wait for ever: draw on one stream at a time.
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
