"""What becomes of a whole row: one of its proposals is its token, or it is left for another read."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import law_of_row, put_column, result_of
from drawlot.kernels.triton.proposal import NEEDED_ID, NEEDED_VALUE, TOKEN, VALUE
from drawlot.kernels.triton.ranks import ask_for_rank
from drawlot.kernels.triton.summary import COUNT_OF_UNSURE

MARGIN = tl.constexpr(2.0**-17)
"""More than what rounding adds to a mass of a row, and takes away"""


@triton.jit
def proposal_at(at):
    """Value and id of the token that a proposal needs, and of the proposed one."""
    return float_at(at + NEEDED_VALUE), tl.load(at + NEEDED_ID), float_at(at + VALUE), tl.load(at + TOKEN)


@triton.jit
def float_at(at):
    """Of a place in `Whole.proposals`."""
    return tl.load(at).to(tl.float32, bitcast=True)


@triton.jit
def put_token(
    states,
    tiles,
    whole,
    columns,
    drawn,
    summary,
    row,
    value,
    token,
    rank,
    wants,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
):
    """Stores the token of a row, and its rank in the order of values, if it is one; else that is left to be counted.

    wants: of `proposal.put_request`.
    """
    tl.store(drawn.token_ids + row, token)
    tl.store(drawn.status + row, 0)
    if (wants == 1) & (rank > 0):
        if columns is None:
            tl.store(summary.rank + row, rank.to(tl.int32))
        else:
            state = tl.load(states.index + row)
            maximum, log_mass, temperature, _, _ = law_of_row(states, summary, state, row, RAW)
            logprob = result_of(value, maximum, log_mass, temperature, RAW, LOGITS)
            put_column(columns, row, token, logprob, rank, row >= 0)
    elif wants != 0:
        ask_for_rank(tiles, whole, columns, summary, row)


@triton.jit
def leave_for_cut(tiles, whole, columns, summary, row, wants):
    """Leaves a row to the reads that find its cut, and its rank to be counted."""
    tl.store(whole.unsure + tl.atomic_add(tiles.control + COUNT_OF_UNSURE, 1), row)
    if wants != 0:
        ask_for_rank(tiles, whole, columns, summary, row)
