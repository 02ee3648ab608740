"""How far the programs are that find laws: what others wait for."""

import triton
import triton.language as tl

from drawlot.kernels.triton.together import wait_for

DONE, _FIRST = tl.constexpr(0), tl.constexpr(1)
"""Places of counts: programs that have nothing left to do, unless they draw for an open request. From there on two for
each request: of its rows that are done, and, for as many as there are groups of requests, of a group's rows that have
their laws or have none"""


@triton.jit
def clear_counts(counts, request, column):
    """All of them, by the programs of a grid with one for each row that a request may have."""
    if column == 0:
        if request == 0:
            tl.store(counts + DONE, 0)
        tl.store(rows_done(counts, request), 0)
        tl.store(rows_known(counts, request), 0)


@triton.jit
def rows_done(counts, request):
    """Pointer to the count of a request's rows."""
    return counts + _FIRST + 2 * request


@triton.jit
def rows_known(counts, group):
    """Pointer to the count of a group's rows."""
    return counts + _FIRST + 2 * group + 1


@triton.jit
def wait_for_group(counts, group, num_reqs, K: tl.constexpr, REQUESTS: tl.constexpr):
    """Wait until all rows of a group have their laws, or have none; REQUESTS: of a group."""
    wait_for(rows_known(counts, group), tl.minimum(num_reqs - group * REQUESTS, REQUESTS) * (K + 1))


@triton.jit
def count_open_row(counts, request, num_rows, REQUESTS: tl.constexpr, IS_LEFT: tl.constexpr):
    """Count a row of an open request as known and done; whether it is the last of the request, which draws.

    One instruction for all counts, since each waits until others can see what the program has stored. IS_LEFT: another
    launch's program of the row has been counted as done before.
    """
    tl.debug_barrier()
    number = tl.arange(0, 4)
    place = tl.where(number == 2, _FIRST + 2 * request, _FIRST + 1 + 2 * (request // REQUESTS))
    place = tl.where(number == 0, DONE, place)
    counted = (number != 1) & ((number != 0) | (not IS_LEFT))
    before = tl.atomic_add(counts + place, 1, mask=counted, sem="acq_rel")
    return tl.max(tl.where(number == 2, before, 0)) == num_rows - 1
