"""What penalties take from the mass of a `lowered` row, of which top_p asks for a share: weighed beside the scan.

The scan sums raw tiles. What touched tokens weigh less than that is added up by a program of its own, from a list of
the request's touched tokens, while others read the row. Sums are of integers relative to the best touched token, so
that it makes no difference in what order tokens were listed.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST
from drawlot.kernels.triton.edit_kernels import penalised
from drawlot.kernels.triton.lowered import load_penalties, may_be_lowered
from drawlot.kernels.triton.reduce import FIXED_POINT, of_fixed
from drawlot.kernels.triton.states import asked_by
from drawlot.kernels.triton.values import MINUS_INF, line_at, load_raw

MOST_TOUCHED = 8192
"""Tokens of a list: rows of a request that touches more are no longer lowered, if they need the mass"""
_WEIGHED_AT_ONCE = tl.constexpr(512)
"""Tokens"""
_SHARPEST = tl.constexpr(8.0)
"""So many times what is left of a mass it may have been: beyond that rounding of the whole would be seen in the rest"""


@triton.jit
def weigh_lost(rows, states, row):
    """Stores what `load_lost` loads of a row, if it is lowered and needs its mass."""
    state = tl.load(states.index + row).to(tl.int32)
    asked = tl.load(states.asked + tl.minimum(row, states.num_states - 1))
    if state != row:
        asked = tl.load(states.asked + tl.maximum(state, 0))
    scale, _wants, _apart, needs_sums, lowered, slot = asked_by(asked)
    if (state >= 0) & (slot >= 0) & lowered & needs_sums:
        if may_be_lowered(rows, row):
            highest, lost = _weighed(rows, row, slot, scale)
            at = rows.edits.new_values + line_at(row, rows.edits.width)
            tl.store(at, highest)
            tl.store(at + 1, lost)


@triton.jit
def _weighed(rows, row, slot, scale):
    """The highest value of a touched token, and what all of them weigh less than before, relative to it."""
    tables, penalties = rows.edits_of.tables, load_penalties(rows, slot)
    num, place = tl.load(tables.num_touched + slot), tl.arange(0, _WEIGHED_AT_ONCE)
    ids = tables.touched_ids + line_at(slot, tables.most_touched) + place
    highest, start = tl.full([], MINUS_INF, tl.float32), 0
    while start < num:
        token = tl.load(ids + start, mask=start + place < num, other=-1)
        highest = tl.maximum(highest, tl.max(load_raw(rows, row, tl.maximum(token, 0), token >= 0)))
        start += _WEIGHED_AT_ONCE
    lost, start = tl.zeros([], tl.int64), 0
    reference = tl.where(highest > MINUS_INF, highest, 0.0)
    while start < num:
        token = tl.load(ids + start, mask=start + place < num, other=-1)
        x = load_raw(rows, row, tl.maximum(token, 0), token >= 0)
        entries = tables.entries + line_at(slot, tables.vocab_size) + tl.maximum(token, 0)
        entry = tl.load(entries, mask=token >= 0, other=0)
        lower = penalised(x, entry, penalties[0], penalties[1], penalties[2])
        weight = tl.exp((x - reference) * scale) - tl.exp((lower - reference) * scale)
        lost += tl.sum((weight * FIXED_POINT).to(tl.int64))
        start += _WEIGHED_AT_ONCE
    return highest, of_fixed(lost).to(tl.float32)


@triton.jit
def load_lost(rows, row, needs):
    """What a row that needs it has lost: the highest value of a touched token, and a mass relative to that."""
    at = rows.edits.new_values + line_at(row, rows.edits.width)
    return tl.load(at, mask=needs, other=0.0), tl.load(at + 1, mask=needs, other=0.0)


@triton.jit
def reference_of(row_max, lost):
    """A value near the highest of a row; row_max: of untouched tokens; lost: of `load_lost`."""
    return tl.maximum(row_max, lost[0])


@triton.jit
def mass_left(mass, lost, reference, scale):
    """The mass of a row's edited values, and whether that is told well enough by the difference.

    mass: of its raw values, relative to a reference near the highest; lost: of `load_lost`.
    """
    left = mass - lost[1] * tl.exp((lost[0] - reference) * scale)
    return left, (left * _SHARPEST >= mass) & (mass < LARGEST)
