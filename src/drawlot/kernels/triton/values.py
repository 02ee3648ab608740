"""Reads of the logits: as the model gave them, under the grammar's bitmask, as edited; their order as integers."""

import triton
import triton.language as tl

from drawlot.kernels.triton.edit_flags import (
    ALLOWED,
    BIASED,
    COUNT_SHIFT,
    ENDS_BAD_WORD,
    MASKED,
    ONE,
    SEEN,
    STOPS,
)

TILE = tl.constexpr(128)
MINUS_INF = tl.constexpr(float("-inf"))
MINUS_INF_ORDER = tl.constexpr(-0x7F800001)
LAST_ID = tl.constexpr(2**31 - 1)


@triton.jit
def order_of(x):
    """int32 that orders as the float32 values do; -0.0 and 0.0 are one value."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(order):
    """The float32 value of an order."""
    order = order.to(tl.int32)
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ids_of(tiles):
    """int32 [M, 128]: the ids of tiles [M]."""
    return tiles[:, None] * TILE + tl.arange(0, TILE)[None, :]


@triton.jit
def slices_of(tiles):
    """int32 [M, 4, 32]: the ids of tiles [M] in slices.

    Eight lanes read a slice of float32, four one of half that width, and a thread has a part of each slice of its tile:
    what a warp reduces, it reduces for four tiles at once, or eight. M: at least so many times the number of warps.
    """
    slice, lane = tl.arange(0, 4) * 32, tl.arange(0, 32)
    return (tiles * TILE)[:, None, None] + slice[None, :, None] + lane[None, None, :]


@triton.jit
def load_logits(rows, row, ids, mask):
    """float32: the logits of a row (int64) at ids (int32) as the model gave them; -inf where masked or no token."""
    mask = mask & (ids < rows.vocab_size)
    return tl.load(rows.logits + row * rows.stride + ids, mask=mask, other=MINUS_INF).to(tl.float32)


@triton.jit
def load_all_logits(rows, row, ids, mask):
    """As `load_logits`, for a pass over all rows, of which few are read again."""
    mask = mask & (ids < rows.vocab_size)
    x = tl.load(rows.logits + row * rows.stride + ids, mask=mask, other=MINUS_INF, eviction_policy="evict_first")
    return x.to(tl.float32)


@triton.jit
def load_raw(rows, row, ids, mask):
    """What raw logprobs are computed from: the logits with the grammar bitmask alone."""
    return grammar_masked(rows, row, load_logits(rows, row, ids, mask), ids, mask)


@triton.jit
def load_values(rows, row, ids, mask):
    """The values of stage 2."""
    return edited(rows, row, load_raw(rows, row, ids, mask), ids, mask)


@triton.jit
def grammar_masked(rows, row, x, ids, mask):
    """Logits under the bitmask."""
    if rows.bitmask is not None:
        x = tl.where(_bits(rows.bitmask + row * rows.bitmask_stride, rows, ids, mask), x, MINUS_INF)
    return x


@triton.jit
def edited(rows, row, x, ids, mask):
    """Raw values, edited: hard masks, then bias, then penalties."""
    if rows.overlay is not None:
        kind = tl.load(rows.overlay.kind + row)
        if kind != 0:
            touched = _bits(rows.overlay.touched + row * rows.overlay.words, rows, ids, mask)
            new = tl.load(rows.overlay.new_values + row * rows.overlay.width + ids, mask=touched, other=0.0)
            x = tl.where(touched, new, tl.where(kind == 2, MINUS_INF, x))
    if rows.edits is not None:
        slot = slot_of(rows, row)
        if slot >= 0:
            tables = rows.edits.tables
            touched = _bits(tables.touched + slot * tables.num_words, rows, ids, mask)
            entry = tl.load(tables.entries + slot * tables.vocab_size + ids, mask=touched, other=0)
            entry = _with_drafts(rows, row, ids, entry)
            limits = tables.limits + slot * 4
            too_short = tl.load(rows.edits.positions + row) < tl.load(limits)
            forbidden = _forbidden(entry, too_short, only_allowed=tl.load(limits + 1) != 0)
            # In branches, since what is seldom there would keep registers from all else.
            if tl.load(limits + 2) != 0:
                ends = (entry & ENDS_BAD_WORD) != 0
                words = tl.load(tables.banned + row * tables.num_words + (ids >> 5), mask=ends, other=0)
                forbidden = forbidden | (((words >> (ids & 31)) & 1) != 0)
            x = tl.where(forbidden, MINUS_INF, x)
            if tl.load(limits + 3) != 0:
                bias = tl.load(tables.bias + slot * tables.vocab_size + ids, mask=(entry & BIASED) != 0, other=0.0)
                x += bias
            x = tl.where((entry & SEEN) != 0, _penalised(tables.penalties + slot * 4, x, entry), x)
    return x


@triton.jit
def is_edited(rows, row):
    """Whether edits beyond the bitmask may make the row's values differ from raw ones."""
    result = row != row
    if rows.overlay is not None:
        result = result | (tl.load(rows.overlay.kind + row) != 0)
    if rows.edits is not None:
        result = result | (slot_of(rows, row) >= 0)
    return result


@triton.jit
def slot_of(rows, row):
    """int64: the place of the row's request in the tables of edits, -1 if it edits nothing; the row is not skipped."""
    return tl.load(rows.edits.tables.slot_of + tl.load(rows.edits.state_rows + row))


@triton.jit
def _with_drafts(rows, row, ids, entry):
    """The entries of tokens with the drafts before the row counted as output."""
    num_drafts = tl.load(rows.edits.local_positions + row)
    back = 0
    while back < num_drafts:
        same = ids == tl.load(rows.edits.input_ids + row - back)
        entry = tl.where(same, (entry | SEEN) + ONE, entry)
        back += 1
    return entry


@triton.jit
def _forbidden(entry, too_short, only_allowed):
    """Whether tokens may not be drawn, bad words apart."""
    forbidden = ((entry & MASKED) != 0) | (((entry & STOPS) != 0) & too_short)
    return forbidden | (((entry & ALLOWED) == 0) & only_allowed)


@triton.jit
def _penalised(penalties, x, entry):
    repetition, frequency, presence = tl.load(penalties), tl.load(penalties + 1), tl.load(penalties + 2)
    count = entry >> COUNT_SHIFT
    x = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    return x - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)


@triton.jit
def _bits(words, rows, ids, mask):
    mask = mask & (ids < rows.vocab_size)
    return ((tl.load(words + (ids >> 5), mask=mask, other=0) >> (ids & 31)) & 1) != 0
