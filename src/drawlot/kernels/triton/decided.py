"""How rows tell that they are decided: that it is known what they leave to the programs that follow.

One word, `control[UNDECIDED]`, counts decided rows in its lower half, and in its upper half those that leave something.
So one look says both: mostly no row leaves anything, and nothing else needs to be read then. A row has two shares,
since it may have two programs, and the word begins at -2 N.

A row that is decided lets whole rows' programs start: they come when all are. Those that came earlier would ask the
same word again and again beside rows that are being finished, or find no place there and begin when these have ended.
Rows that have a raw rank to tell let them start before, since they take as long to come as that does.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.summary import UNDECIDED

ONE_SHARE, BOTH_SHARES = tl.constexpr(1), tl.constexpr(2)
_LEAVES = tl.constexpr(1 << 32)


@triton.jit
def decide(tiles, leaves, SHARES: tl.constexpr, OVERLAP: tl.constexpr):
    """Counts shares of a row decided, which leave something or not; what is stored need not be seen by others.

    OVERLAP: whether that lets the next kernel start, as far as this row is concerned.
    """
    tl.atomic_add(tiles.control + UNDECIDED, tl.where(leaves, _LEAVES + SHARES, SHARES), sem="relaxed")
    let_next_start(OVERLAP)


@triton.jit
def decide_and_leave(tiles, SHARES: tl.constexpr, OVERLAP: tl.constexpr):
    """Counts shares of a row decided that leave something, once what the program has stored can be seen."""
    tl.debug_barrier()
    tl.atomic_add(tiles.control + UNDECIDED, _LEAVES + SHARES, sem="release")
    let_next_start(OVERLAP)


@triton.jit
def wait_until_decided(tiles):
    """Wait until all rows are decided, and return how often something is left, which can be read then."""
    decided = tl.atomic_add(tiles.control + UNDECIDED, 0, sem="relaxed")
    while (decided & 0xFFFFFFFF) != 0:
        decided = tl.atomic_add(tiles.control + UNDECIDED, 0, sem="relaxed")
    if decided != 0:
        # What was left was stored before.
        tl.atomic_add(tiles.control + UNDECIDED, 0, sem="acquire")
        tl.debug_barrier()
    return decided >> 32
