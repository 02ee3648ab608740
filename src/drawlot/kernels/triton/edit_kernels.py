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
from drawlot.kernels.triton.states import without_list
from drawlot.kernels.triton.values import (
    GROUP,
    MINUS_INF,
    SLICES,
    STRANDS,
    TILE,
    is_bad,
    line_at,
    load_logits,
    strands_of,
    words_of,
)

_BLOCK = tl.constexpr(128)
LAID_TILES = 32
"""Tiles that a program lays over a row"""


@triton.jit
def lay_over_kernel(rows, edits, NUM_PROGRAMS: tl.constexpr, TILES: tl.constexpr, OVERLAP: tl.constexpr):
    """Program: TILES of one row, see `begin_to_lay`."""
    row = (tl.program_id(0) // NUM_PROGRAMS).to(tl.int64)
    program = tl.program_id(0) % NUM_PROGRAMS
    follow(OVERLAP)
    slot = slot_of(edits, tl.load(edits.state_rows + row))
    if slot < 0:
        kind = 0
    else:
        tile = program * TILES + tl.arange(0, TILES)
        kind, left, asked = begin_to_lay(rows, edits, row, tile, load_asked(edits, row, slot, tile, 1), 1)
        while tl.max(left) != 0:
            token, _, x, entry = load_next(rows, edits, row, slot, tile, left)
            lay_next(rows, edits, row, slot, asked, token, x, entry)
            left &= left - 1
    if program == 0:
        tl.store(rows.edits.kind + row, kind)


@triton.jit
def slot_of(edits, state):
    """Of a request, -1 if it has none."""
    return tl.where(state < 0, -1, tl.load(edits.tables.slot_of + tl.maximum(state, 0)))


@triton.jit
def load_asked(edits, row, slot, tile, SIDE: tl.constexpr):
    """What is asked of a row that edits a slot, and the words with the bits of tiles [M] of it: all at once.

    The words are int32 [M, 8 / SIDE, 4], so that each thread has them at hand. SIDE: strands of a thread, side by side.
    """
    tables = edits.tables
    num_drafts, touched = tl.load(edits.local_positions + row), load_touched(edits, slot, tile, SIDE)
    penalties = tables.penalties + slot.to(tl.int64) * 4
    repetition, frequency, presence = tl.load(penalties), tl.load(penalties + 1), tl.load(penalties + 2)
    flags = tl.load(penalties + 3).to(tl.int32)
    return touched, (num_drafts, flags, repetition, frequency, presence)


@triton.jit
def load_touched(edits, slot, tile, SIDE: tl.constexpr):
    """The words of `load_asked`."""
    start = edits.tables.touched + line_at(slot, edits.tables.num_words)
    return tl.load(_of_tiles(start, words_of(tile, SIDE)), mask=_exist(edits.tables, tile), other=0)


@triton.jit
def _of_tiles(base, word):
    """Pointers to words of tiles: 16 bytes at a time."""
    # As if those of strands were side by side, so that threads are.
    return tl.multiple_of(tl.max_contiguous(base + word, [1, 2, SLICES]), [1, 1, 16])


@triton.jit
def _exist(tables, tile):
    return (tile * SLICES < tables.num_words)[:, None, None]


@triton.jit
def begin_to_lay(rows, edits, row, tile, loaded, SIDE: tl.constexpr):
    """Writes to `rows.edits` which tokens of tiles [M] of it are touched; loaded: of `load_asked`.

    Returns the kind of the row there, the bits of each strand's touched tokens, slice by slice, and what is asked of
    them. SIDE: as for `load_asked`; the bits are int32 [M, 8 / SIDE, SIDE].
    """
    overlay, tables, word = rows.edits, edits.tables, words_of(tile, SIDE)
    touched, asked = loaded
    num_drafts, flags = asked[0], asked[1]
    # Drafts before the row count as output.
    back = 0
    while back < num_drafts:
        draft = tl.load(edits.input_ids + row - back).to(tl.int32)
        touched |= tl.where(word == draft >> 5, 1 << (draft & 31), 0)
        back += 1
    thread, slice = tl.arange(0, STRANDS // SIDE)[None, :, None], tl.arange(0, SLICES)[None, None, :]
    start, exist = overlay.touched + line_at(row, overlay.words), _exist(tables, tile)
    tl.store(_of_tiles(start, word), touched, mask=exist & (thread == 0))
    # One strand after the other: threads would exchange what has four dimensions.
    left = _bits_of(touched, thread * SIDE, slice)
    if SIDE == 2:
        left = tl.join(left, _bits_of(touched, thread * SIDE + 1, slice))
    else:
        left = left[:, :, None]
    return tl.where((flags & ALLOWED) != 0, 2, 1), left, asked


@triton.jit
def _bits_of(touched, strand, slice):
    """[M, .]: bits of the strands, slice by slice, of words [M, ., 4]."""
    return tl.sum(((touched >> (strand * GROUP)) & 15) << (slice * GROUP), 2)


@triton.jit
def most_left(left):
    """How many tokens are left of a strand at most; left: of `begin_to_lay`."""
    return tl.max(num_bits(left))


@triton.jit
def num_bits(x):
    """How many bits of int32 are set, in the way that the compiler makes one instruction of."""
    x = x.to(tl.uint32)
    pairs = x - ((x >> 1) & 0x55555555)
    fours = (pairs & 0x33333333) + ((pairs >> 2) & 0x33333333)
    eights = (fours + (fours >> 4)) & 0x0F0F0F0F
    return ((eights * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def load_next(rows, edits, row, slot, tile, left):
    """The lowest token that is left of each strand, -1 where there is none, its bit, raw value and entry.

    tile, left: of `begin_to_lay`. The bit is negative where nothing is left.
    """
    SIDE: tl.constexpr = left.shape[2]
    tables = edits.tables
    # A power of two is exact in float32, which knows its exponent.
    bit = ((left & -left).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
    ids = (tile * TILE)[:, None, None] + (bit >> 2) * (TILE // SLICES) + strands_of(SIDE) * GROUP + (bit & 3)
    # As if those of dimension 1 were side by side, so that threads load what they lay. In a function it would be lost.
    ids = tl.max_contiguous(ids, [2, 4, 1])
    # A draft may be no token.
    mask = (left != 0) & (ids < rows.vocab_size)
    x = load_logits(rows, row, ids, mask)
    if rows.bitmask is not None:
        x = tl.where(_has_bit(rows.bitmask + line_at(row, rows.bitmask_stride), ids, mask), x, MINUS_INF)
    entry = tl.load(tables.entries + line_at(slot, tables.vocab_size) + ids, mask=mask, other=0)
    return tl.where(mask, ids, -1), bit, x, entry


@triton.jit
def lay_next(rows, edits, row, slot, asked, ids, x, entry):
    """Writes the new values of tokens, which `load_next` has found, to `rows.edits`, and returns them.

    Hard masks come first, then bias, then penalties. The tokens are looked at once, however often rows are read.
    asked: of `begin_to_lay`.
    """
    overlay, tables = rows.edits, edits.tables
    num_drafts, flags, repetition, frequency, presence = asked
    mask = ids >= 0
    entry = _with_drafts(edits, row, num_drafts, ids, entry)
    # Most who edit ask for penalties alone.
    if flags != 0:
        forbidden = (entry & MASKED) != 0
        if (flags & STOPS) != 0:
            too_short = tl.load(edits.positions + row) < tl.load(tables.limits + 2 * slot.to(tl.int64))
            forbidden = forbidden | (((entry & STOPS) != 0) & too_short)
        if (flags & ALLOWED) != 0:
            forbidden = forbidden | ((entry & ALLOWED) == 0)
        if (flags & ENDS_BAD_WORD) != 0:
            ends = (entry & ENDS_BAD_WORD) != 0
            forbidden = forbidden | _has_bit(tables.banned + line_at(row, tables.num_words), ids, mask & ends)
        # What is forbidden is bad all the same.
        x = tl.where(forbidden & (is_bad(x) == 0), MINUS_INF, x)
        if (flags & BIASED) != 0:
            biased = mask & ((entry & BIASED) != 0)
            at = tl.max_contiguous(tables.bias + line_at(slot, tables.vocab_size) + ids, [2, 4, 1])
            x += tl.load(at, mask=biased, other=0.0)
    x = penalised(x, entry, repetition, frequency, presence)
    tl.store(tl.max_contiguous(overlay.new_values + line_at(row, overlay.width) + ids, [2, 4, 1]), x, mask=mask)
    return x


@triton.jit
def penalised(x, entry, repetition, frequency, presence):
    """Values of tokens with these entries under penalties."""
    count = entry >> COUNT_SHIFT
    # An exact quotient of -inf, which is where there is no token, would take a function in machine code.
    scaled = tl.where(x > 0, tl.div_rn(tl.maximum(x, -1.0), repetition), x * repetition)
    lower = scaled - frequency * count.to(tl.float32) - tl.where(count > 0, presence, 0.0)
    return tl.where((entry & SEEN) != 0, lower, x)


@triton.jit
def _has_bit(words, ids, mask):
    """Bit id & 31 of word id >> 5 of tokens that `load_next` has found; False where masked."""
    at = tl.max_contiguous(words + (ids >> 5), [2, 4, 1])
    return ((tl.load(at, mask=mask, other=0) >> (ids & 31)) & 1) != 0


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
    num_bad_words = tl.load(tables.limits + slot * 2 + 1)
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
    num_touched, ids = tl.load(tables.num_touched + slot), tables.touched_ids + slot * tables.most_touched
    start = 0
    while start < count:
        column = start + tl.arange(0, _BLOCK)
        token = tl.load(tokens + column * emitted.column_stride, mask=column < count, other=-1)
        valid = (token >= 0) & (token < tables.vocab_size)
        token = tl.where(valid, token, 0)
        entry = tables.entries + slot * tables.vocab_size + token
        # A token may be there twice, and sums of integers are the same in any order.
        is_new = (valid & (tl.atomic_or(entry, SEEN, mask=valid) == 0)).to(tl.int32)
        tl.atomic_add(entry, ONE, mask=valid)
        at = num_touched + tl.cumsum(is_new, 0) - 1
        tl.store(ids + at, token, mask=(is_new != 0) & (at < tables.most_touched))
        num_touched += tl.sum(is_new)
        bit = (1 << (token & 31)).to(tl.int32)
        tl.atomic_or(tables.touched + slot * tables.num_words + (token >> 5), bit, mask=valid)
        start += _BLOCK
    tl.store(tables.num_touched + slot, num_touched)
    if num_touched > tables.most_touched:
        asked = tl.load(tables.asked + state)
        tl.store(tables.asked + state, without_list(asked))
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
