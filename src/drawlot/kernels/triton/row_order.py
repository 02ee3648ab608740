"""Which row a program of a scan reads: of the last rows edited ones first, whose programs take longer.

The last programs of a scan are waited for. Where edits are laid over all rows, edited ones have programs ahead of all
others; their own do nothing, and no program has to know an order. Where rows may be `lowered` the last rows' programs
work one out: programs ahead would cost steps of many rows more, by what each program then has to know.

A row is taken for that of the request with its number, as it mostly is, which is known a load sooner. Where it is not,
rows come in another order, or one that nobody edits is read twice, to the same end.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.edit_kernels import num_bits
from drawlot.kernels.triton.states import asked_of_scan

_LAST_ROWS = tl.constexpr(32)
"""Of which edited ones come first: one a lane of a warp"""


@triton.jit
def row_ahead(states, num_rows, number):
    """Of the last rows the one that is edited after so many others; -1 if none is."""
    rows, edited = _edited_of_last(states, num_rows)
    is_it = (edited != 0) & (_num_before(edited, tl.arange(0, _LAST_ROWS)) == number)
    return tl.max(tl.where(is_it, rows, -1))


@triton.jit
def is_ahead(states, num_rows, row, AHEAD: tl.constexpr):
    """Whether programs ahead, of so many rows, read an edited row."""
    place, result = (row - tl.maximum(num_rows - _LAST_ROWS, 0)).to(tl.int32), row < 0
    if place >= 0:
        rows, edited = _edited_of_last(states, num_rows)
        is_edited = tl.sum(tl.where(rows == row, edited, 0)) != 0
        result = is_edited & (_num_before(edited, place) < AHEAD)
    return result


@triton.jit
def row_in_order(states, item, num_items, orders, NUM_BLOCKS: tl.constexpr, BY_MASS: tl.constexpr):
    """The row of a program, if no rows come ahead: of the last ones, edited ones that are not lowered come first.

    orders: 0, if all are lowered as a rule, 1, if all of these have top_k or BY_MASS, as for `scan_kernel`; else 2.
    Nothing is looked up where none would come first.
    """
    row = item // NUM_BLOCKS
    start = num_items
    if orders > BY_MASS:
        start = tl.maximum(num_items - _LAST_ROWS * NUM_BLOCKS, 0)
    if item >= start:
        first, place = row - (item - start) // NUM_BLOCKS, tl.arange(0, _LAST_ROWS)
        exists = (first + place) * NUM_BLOCKS < num_items
        edited = _edited(states, first + place, exists, True, BY_MASS)
        before = _num_before(edited, place)
        at = tl.where(edited != 0, before, tl.sum(edited) + place - before)
        row = first + tl.sum(tl.where(at == row - first, place, 0))
    return row


@triton.jit
def _edited_of_last(states, num_rows):
    """The last rows [32], and which of these edits are laid over, if none is lowered."""
    rows = tl.maximum(num_rows - _LAST_ROWS, 0) + tl.arange(0, _LAST_ROWS)
    return rows, _edited(states, rows, rows < num_rows, False, False)


@triton.jit
def _edited(states, rows, exists, LOWERS: tl.constexpr, BY_MASS: tl.constexpr):
    """int32, 1 where edits are to be laid over a row that exists: not if it is lowered, in case LOWERS.

    BY_MASS: as for `scan_kernel`.
    """
    # There may be more rows than requests.
    _, _, _, needs_sums, lowered, slot = asked_of_scan(states, tl.minimum(rows, states.num_states - 1))
    edited = (slot >= 0) & exists
    if LOWERS:
        edited = edited & (lowered == 0 if BY_MASS else (lowered == 0) | needs_sums)
    return edited.to(tl.int32)


@triton.jit
def _num_before(edited, place):
    """How many of 32 flags come before places; by sums of a warp the compiler sees that all threads read one row."""
    return num_bits(tl.sum(edited << tl.arange(0, _LAST_ROWS)) & ((1 << place) - 1))
