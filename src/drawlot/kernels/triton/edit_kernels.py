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
from drawlot.kernels.triton.values import MINUS_INF, load_raw

_BLOCK = tl.constexpr(128)
LAID_WORDS = 128
"""Words of 32 tokens that a program lays over a row"""


@triton.jit
def lay_over_kernel(rows, edits, NUM_PARTS: tl.constexpr, WORDS: tl.constexpr, OVERLAP: tl.constexpr):
    """Program: WORDS words of one row, see `lay_over`."""
    row = (tl.program_id(0) // NUM_PARTS).to(tl.int64)
    part = tl.program_id(0) % NUM_PARTS
    follow(OVERLAP)
    slot = slot_of(edits, tl.load(edits.state_rows + row))
    if slot < 0:
        kind = 0
    else:
        kind = lay_over(rows, edits, row, slot, part * WORDS + tl.arange(0, WORDS))
    if part == 0:
        tl.store(rows.edits.kind + row, kind)


@triton.jit
def slot_of(edits, state):
    """Of a request, -1 if it has none."""
    return tl.where(state < 0, -1, tl.load(edits.tables.slot_of + tl.maximum(state, 0)))


@triton.jit
def lay_over(rows, edits, row, slot, word):
    """Writes the new values of touched tokens of words [M] of a row to `rows.edits`, and returns its kind there.

    Hard masks come first, then bias, then penalties. The tokens are looked at once, however often rows are read.
    """
    overlay, tables = rows.edits, edits.tables
    WORDS: tl.constexpr = word.shape[0]
    # All at once, before any branch.
    num_drafts = tl.load(edits.local_positions + row)
    limits, penalties = tables.limits + slot * 4, tables.penalties + slot * 4
    too_short = tl.load(edits.positions + row) < tl.load(limits)
    only_allowed, num_bad_words, has_bias = tl.load(limits + 1) != 0, tl.load(limits + 2), tl.load(limits + 3) != 0
    repetition, frequency, presence = tl.load(penalties), tl.load(penalties + 1), tl.load(penalties + 2)
    touched = touched_words(edits, row, slot, word)
    tl.store(overlay.touched + row * overlay.words + word, touched, mask=word < tables.num_words)
    left = touched.to(tl.uint32, bitcast=True)
    while tl.max((left != 0).to(tl.int32)) != 0:
        # Four tokens of each word at a time: most words have none or few.
        bit0, left = _next_bit(left)
        bit1, left = _next_bit(left)
        bit2, left = _next_bit(left)
        bit3, left = _next_bit(left)
        bit = tl.join(tl.join(bit0, bit2), tl.join(bit1, bit3)).reshape(WORDS, 4)
        ids = word[:, None] * 32 + bit
        # A draft may be no token.
        mask = (bit >= 0) & (ids < rows.vocab_size)
        x = load_raw(rows, row, ids, mask)
        entry = tl.load(tables.entries + slot * tables.vocab_size + ids, mask=mask, other=0)
        entry = _with_drafts(edits, row, num_drafts, ids, entry)
        forbidden = ((entry & MASKED) != 0) | (((entry & STOPS) != 0) & too_short)
        forbidden = forbidden | (((entry & ALLOWED) == 0) & only_allowed)
        if num_bad_words != 0:
            ends = (entry & ENDS_BAD_WORD) != 0
            banned = tl.load(tables.banned + row * tables.num_words + (ids >> 5), mask=mask & ends, other=0)
            forbidden = forbidden | (((banned >> (ids & 31)) & 1) != 0)
        x = tl.where(forbidden, MINUS_INF, x)
        if has_bias:
            biased = mask & ((entry & BIASED) != 0)
            x += tl.load(tables.bias + slot * tables.vocab_size + ids, mask=biased, other=0.0)
        count = entry >> COUNT_SHIFT
        penalised = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
        penalised = penalised - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)
        x = tl.where((entry & SEEN) != 0, penalised, x)
        tl.store(overlay.new_values + row * overlay.width + ids, x, mask=mask)
    return tl.where(only_allowed, 2, 1)


@triton.jit
def touched_words(edits, row, slot, word):
    """Words of 32 tokens with the bits of those that a request's edits touch."""
    tables = edits.tables
    num_drafts = tl.load(edits.local_positions + row)
    touched = tl.load(tables.touched + slot * tables.num_words + word, mask=word < tables.num_words, other=0)
    # Drafts before the row count as output.
    back = 0
    while back < num_drafts:
        draft = tl.load(edits.input_ids + row - back).to(tl.int32)
        touched |= tl.where(word == draft >> 5, 1 << (draft & 31), 0)
        back += 1
    return touched


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
def _next_bit(word):
    """The place of the lowest bit of uint32 words, -1 where there is none, and the words without it."""
    without = word & (word - 1)
    # A power of two is exact in float32, which knows its exponent.
    exponent = (word ^ without).to(tl.float32).to(tl.int32, bitcast=True) >> 23
    return tl.where(word == 0, -1, exponent - 127), tl.where(word == 0, word, without)


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
