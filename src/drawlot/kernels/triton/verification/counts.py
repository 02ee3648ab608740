"""How far the programs are that find laws: what others wait for."""

import triton
import triton.language as tl

KNOWN, DONE, DRAWING, _REQUESTS = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
"""Places of counts: rows that have their laws or have none; programs that have nothing left to do, unless they draw for
an open request; the number below zero of these; and from there on, for each request, its rows that are done"""


@triton.jit
def clear_counts(counts, request, column):
    """All of them, by the programs of a grid with one for each row that a request may have."""
    if column == 0:
        if request == 0:
            place = tl.arange(0, 4)
            tl.store(counts + place, 0, mask=place < _REQUESTS)
        tl.store(counts + _REQUESTS + request, 0)


@triton.jit
def rows_done(counts, request):
    """Pointer to the count of a request's rows."""
    return counts + _REQUESTS + request


@triton.jit
def count_open_row(counts, request, num_rows, IS_LEFT: tl.constexpr):
    """Count a row of an open request as known and done; whether it is the last of the request, which draws.

    One instruction for all counts, since each waits until others can see what the program has stored. IS_LEFT: another
    launch's program of the row has been counted as done before.
    """
    tl.debug_barrier()
    place = tl.arange(0, 4)
    counted = (place != DRAWING) & ((place != DONE) | (not IS_LEFT))
    counts += tl.where(place == _REQUESTS, place + request, place)
    before = tl.atomic_add(counts, 1, mask=counted, sem="acq_rel")
    return tl.max(tl.where(place == _REQUESTS, before, 0)) == num_rows - 1
