"""What requests edit: before a step new values are laid over its rows, after it emitted tokens enter the tables."""

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
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.values import MINUS_INF, is_bad, load_raw

_BLOCK = tl.constexpr(128)
PART = tl.constexpr(16)
"""Neighbours that one thread lays over a row, one after the other"""
LAID_PARTS = 256
"""Parts that a program lays over a row"""
PARTS_OF_WORD = tl.constexpr(2)
"""Whose bits a word of 32 has"""


@triton.jit
def lay_over_kernel(rows, edits, NUM_PROGRAMS: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr):
    """Program: PARTS of one row, see `begin_to_lay`."""
    row = (tl.program_id(0) // NUM_PROGRAMS).to(tl.int64)
    program = tl.program_id(0) % NUM_PROGRAMS
    follow(OVERLAP)
    slot = slot_of(edits, tl.load(edits.state_rows + row))
    if slot < 0:
        kind = 0
    else:
        part = program * PARTS + tl.arange(0, PARTS)
        kind, left, asked = begin_to_lay(rows, edits, row, part, load_asked(edits, row, slot, part))
        while tl.max(left) != 0:
            token, x, entry = load_next(rows, edits, row, slot, part, left)
            lay_next(rows, edits, row, slot, asked, token, x, entry)
            left &= left - 1
    if program == 0:
        tl.store(rows.edits.kind + row, kind)


@triton.jit
def slot_of(edits, state):
    """Of a request, -1 if it has none."""
    return tl.where(state < 0, -1, tl.load(edits.tables.slot_of + tl.maximum(state, 0)))


@triton.jit
def load_asked(edits, row, slot, part):
    """What is asked of a row that edits a slot, and the words with the bits of parts [M] of it: all at once."""
    tables = edits.tables
    num_drafts, word = tl.load(edits.local_positions + row), part // PARTS_OF_WORD
    touched = tl.load(tables.touched + slot * tables.num_words + word, mask=word < tables.num_words, other=0)
    limits, penalties = tables.limits + slot * 4, tables.penalties + slot * 4
    too_short = tl.load(edits.positions + row) < tl.load(limits)
    only_allowed, num_bad_words, has_bias = tl.load(limits + 1) != 0, tl.load(limits + 2), tl.load(limits + 3) != 0
    repetition, frequency, presence = tl.load(penalties), tl.load(penalties + 1), tl.load(penalties + 2)
    asked = num_drafts, too_short, only_allowed, num_bad_words, has_bias, repetition, frequency, presence
    return touched, asked


@triton.jit
def begin_to_lay(rows, edits, row, part, loaded):
    """Writes to `rows.edits` which tokens of parts [M] of it are touched; loaded: of `load_asked`.

    Returns the kind of the row there, the bits of each part's touched tokens (int32 [M]), and what is asked of them.
    """
    overlay, tables, word = rows.edits, edits.tables, part // PARTS_OF_WORD
    touched, asked = loaded
    num_drafts, only_allowed = asked[0], asked[2]
    # Drafts before the row count as output.
    back = 0
    while back < num_drafts:
        draft = tl.load(edits.input_ids + row - back).to(tl.int32)
        touched |= tl.where(word == draft >> 5, 1 << (draft & 31), 0)
        back += 1
    is_first = part % PARTS_OF_WORD == 0
    tl.store(overlay.touched + row * overlay.words + word, touched, mask=is_first & (word < tables.num_words))
    return tl.where(only_allowed, 2, 1), (touched >> (part % PARTS_OF_WORD * PART)) & 0xFFFF, asked


@triton.jit
def load_next(rows, edits, row, slot, part, left):
    """The lowest token that is left of each part, -1 where there is none, its raw value and its entry.

    part, left: of `begin_to_lay`.
    """
    tables = edits.tables
    # A power of two is exact in float32, which knows its exponent.
    bit = ((left & -left).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    ids = part * PART + bit
    # A draft may be no token.
    mask = (left != 0) & (ids < rows.vocab_size)
    x = load_raw(rows, row, ids, mask)
    entry = tl.load(tables.entries + slot * tables.vocab_size + ids, mask=mask, other=0)
    return tl.where(mask, ids, -1), x, entry


@triton.jit
def lay_next(rows, edits, row, slot, asked, ids, x, entry):
    """Writes the new values of tokens, which `load_next` has found, to `rows.edits`, and returns them.

    Hard masks come first, then bias, then penalties. The tokens are looked at once, however often rows are read.
    asked: of `begin_to_lay`.
    """
    overlay, tables = rows.edits, edits.tables
    num_drafts, too_short, only_allowed, num_bad_words, has_bias, repetition, frequency, presence = asked
    mask = ids >= 0
    entry = _with_drafts(edits, row, num_drafts, ids, entry)
    forbidden = ((entry & MASKED) != 0) | (((entry & STOPS) != 0) & too_short)
    forbidden = forbidden | (((entry & ALLOWED) == 0) & only_allowed)
    if num_bad_words != 0:
        ends = (entry & ENDS_BAD_WORD) != 0
        banned = tl.load(tables.banned + row * tables.num_words + (ids >> 5), mask=mask & ends, other=0)
        forbidden = forbidden | (((banned >> (ids & 31)) & 1) != 0)
    # What is forbidden is bad all the same.
    x = tl.where(forbidden & (is_bad(x) == 0), MINUS_INF, x)
    if has_bias:
        biased = mask & ((entry & BIASED) != 0)
        x += tl.load(tables.bias + slot * tables.vocab_size + ids, mask=biased, other=0.0)
    count = entry >> COUNT_SHIFT
    penalised = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    penalised = penalised - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)
    x = tl.where((entry & SEEN) != 0, penalised, x)
    tl.store(overlay.new_values + row * overlay.width + ids, x, mask=mask)
    return x


@triton.jit
def _with_drafts(edits, row, num_drafts, ids, entry):
    """The entries of tokens with the drafts before the row counted as output."""
    back = 0
    while back < num_drafts:
        same = ids == tl.load(edits.input_ids + row - back)
        entry = tl.where(same, (entry | SEEN) + ONE, entry)
        back += 1
    return entry


@triton.jit
def bad_words_kernel(_rows, edits):
    """Program: one row. Bans the last ids of the bad words that the row would complete."""
    row = tl.program_id(0).to(tl.int64)
    tables = edits.tables
    state = tl.load(edits.state_rows + row)
    if state < 0:
        return
    slot = tl.load(tables.slot_of + state)
    if slot < 0:
        return
    num_bad_words = tl.load(tables.limits + slot * 4 + 2)
    banned = tables.banned + row * tables.num_words
    start = 0
    while start < num_bad_words:
        last, exists = _last_ids(tables, slot, start, num_bad_words)
        tl.store(banned + (last >> 5), 0, mask=exists)
        start += _BLOCK
    tl.debug_barrier()
    num_drafts = tl.load(edits.local_positions + row)
    start = 0
    while start < num_bad_words:
        last, exists = _last_ids(tables, slot, start, num_bad_words)
        word = start + tl.arange(0, _BLOCK)
        complete = exists
        back = 1
        while back < tables.longest_bad_word:
            # The token before the row, the one before that, and so on: first drafts, then output.
            if back <= num_drafts:
                token = tl.load(edits.input_ids + row - back + 1).to(tl.int32)
            else:
                token = tl.load(tables.tails + (slot + 1) * tables.longest_bad_word - (back - num_drafts))
            expected = tl.load(_end_of(tables, slot, word) - back, mask=exists, other=-1)
            complete = complete & ((expected == -1) | (expected == token))
            back += 1
        tl.atomic_or(banned + (last >> 5), 1 << (last & 31), mask=complete)
        start += _BLOCK


@triton.jit
def _last_ids(tables, slot, start, num_bad_words):
    word = start + tl.arange(0, _BLOCK)
    exists = word < num_bad_words
    return tl.load(_end_of(tables, slot, word), mask=exists, other=0), exists


@triton.jit
def _end_of(tables, slot, word):
    """Where the last ids of words lie."""
    return tables.bad_words + (slot * tables.most_bad_words + word + 1) * tables.longest_bad_word - 1


@triton.jit
def commit_kernel(tables, emitted):
    """Program: one request, which emitted `num_sampled` tokens."""
    request = tl.program_id(0).to(tl.int64)
    state = tl.load(emitted.state_rows + request)
    if state < 0:
        return
    slot = tl.load(tables.slot_of + state)
    if slot < 0:
        return
    count = tl.minimum(tl.load(emitted.num_sampled + request).to(tl.int32), emitted.width)
    tokens = emitted.token_ids + request * emitted.stride
    start = 0
    while start < count:
        column = start + tl.arange(0, _BLOCK)
        token = tl.load(tokens + column * emitted.column_stride, mask=column < count, other=-1)
        valid = (token >= 0) & (token < tables.vocab_size)
        token = tl.where(valid, token, 0)
        entry = tables.entries + slot * tables.vocab_size + token
        # A token may be there twice, and sums of integers are the same in any order.
        tl.atomic_or(entry, SEEN, mask=valid)
        tl.atomic_add(entry, ONE, mask=valid)
        bit = (1 << (token & 31)).to(tl.int32)
        tl.atomic_or(tables.touched + slot * tables.num_words + (token >> 5), bit, mask=valid)
        start += _BLOCK
    start = 0
    while (start < tables.longest_bad_word) & (count > 0):
        # The tail moves to the left; what is read later lies to the right of what is written.
        column = start + tl.arange(0, _BLOCK)
        source = column + count
        kept = source < tables.longest_bad_word
        tails = tables.tails + slot * tables.longest_bad_word
        old = tl.load(tails + source, mask=kept, other=-1)
        at = (source - tables.longest_bad_word) * emitted.column_stride
        new = tl.load(
            tokens + at, mask=(source >= tables.longest_bad_word) & (column < tables.longest_bad_word), other=-1
        )
        tl.debug_barrier()
        tl.store(tails + column, tl.where(kept, old, new.to(tl.int32)), mask=column < tables.longest_bad_word)
        tl.debug_barrier()
        start += _BLOCK
