"""What happens to the tables of edits in a step: bad words are looked for before it, emitted tokens enter after it."""

import triton
import triton.language as tl

from drawlot.kernels.triton.edit_flags import ONE, SEEN

_BLOCK = tl.constexpr(128)


@triton.jit
def bad_words_kernel(rows, states):
    """Program: one row. Bans the last ids of the bad words that the row would complete."""
    row = tl.program_id(0).to(tl.int64)
    edits = rows.edits
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
