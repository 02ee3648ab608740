"""Rows whose edits lower values at most: scanned as if nothing were edited, since what a token may be is known then.

Penalties of those who want to hear less of a token lower it. So raw tiles bound the edited ones from above, and tiles
whose best group has no touched token from below: a line that enough of these reach has all that top_k keeps among the
tokens whose raw values reach it, at least one of them untouched. A list of such tokens is edited, by their entries, and
holds the row. The scan reads no entries then, and stores no new values. A row that its list does not hold, or whose
tiles say of no line, is laid over whole, by `scan.lay_row`. Steps of few rows lay edits over all of them as they scan,
since the finish that knows of lowered rows takes longer for all.

Rows with top_p alone also need the mass of what is edited, see `lost_mass`. Those of half-width logits are lowered, too
(`BY_MASS`): their scan waits for its instructions. A scan of float32 waits for memory, and would wait for more of it.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.edit_kernels import penalised
from drawlot.kernels.triton.listing import NO_KEY, key_of, value_and_token
from drawlot.kernels.triton.tile_summary import group_of
from drawlot.kernels.triton.values import GROUP, MINUS_INF, SLICES, line_at, load_raw, order_of

_GROUPS_A_SLICE = tl.constexpr(8)


@triton.jit
def kind_of_lowered(slot):
    """`Overlay.kind` of a row that is `lowered`: nothing is laid over it, and its request has this slot."""
    return -1 - slot


@triton.jit
def slot_of_lowered(kind):
    """The slot, by the kind."""
    return -1 - kind


@triton.jit
def may_be_lowered(rows, row):
    """Whether a row may be lowered if its request says so: drafts before it are not in the tables."""
    return tl.load(rows.edits_of.local_positions + row) == 0


@triton.jit
def lows_of(maxima, best_groups, touched):
    """Orders [M] that an untouched token of a tile has; that of -inf if its best group has a touched one.

    touched: int32 [M, threads, 4], the words with the bits of tiles, the same for all threads of one.
    """
    group, slice = group_of(best_groups)[:, None, None], tl.arange(0, SLICES)[None, None, :]
    bits = (touched >> ((group % _GROUPS_A_SLICE) * GROUP)) & 15
    of_group = tl.max(tl.sum(tl.where(slice == group // _GROUPS_A_SLICE, bits, 0), 2), 1)
    return order_of(tl.where(of_group == 0, maxima, MINUS_INF))


@triton.jit
def load_penalties(rows, slot):
    """Repetition, frequency and presence of a row that edits this slot; 0 if it has none (-1)."""
    at, mask = rows.edits_of.tables.penalties + tl.maximum(slot, 0).to(tl.int64) * 4, slot >= 0
    repetition, frequency = tl.load(at, mask=mask, other=0.0), tl.load(at + 1, mask=mask, other=0.0)
    return repetition, frequency, tl.load(at + 2, mask=mask, other=0.0)


@triton.jit
def lower_list(rows, lists, row, slot, penalties, line, keys, ROOM: tl.constexpr, BY_MASS: tl.constexpr):
    """Edits the tokens of a list [ROOM], which other threads may read then; returns their keys, and the highest value.

    Below the line (an order) others may come before a token: its value is -inf. penalties: of `load_penalties`; keys:
    of raw values.
    """
    repetition, frequency, presence = penalties
    place, exists, tables = tl.arange(0, ROOM), keys > NO_KEY, rows.edits_of.tables
    x, token = value_and_token(keys)
    entry = tl.load(tables.entries + line_at(slot, tables.vocab_size) + token, mask=exists, other=0)
    x = penalised(x, entry, repetition, frequency, presence)
    if BY_MASS:
        x = tl.where(order_of(x) < line, MINUS_INF, x)
    highest = tl.max(x)
    # Until all have read their keys: where threads come together for a maximum is Triton's affair.
    tl.debug_barrier()
    keys = tl.where(exists, key_of(x, token), NO_KEY)
    tl.store(lists.keys + row * lists.room + place, keys)
    tl.debug_barrier()
    return keys, highest


@triton.jit
def without_touched(rows, slot, ids, x):
    """Values of ids, -inf where an edit touches them."""
    tables = rows.edits_of.tables
    exists = ids < rows.vocab_size
    words = tl.load(tables.touched + line_at(slot, tables.num_words) + (ids >> 5), mask=exists, other=0)
    return tl.where(((words >> (ids & 31)) & 1) != 0, MINUS_INF, x)


@triton.jit
def load_lowered(rows, row, slot, penalties, ids):
    """Values of ids [M], all tokens or past the last one, of a row that is lowered; penalties: of `load_penalties`."""
    x, tables = load_raw(rows, row, ids, ids >= 0), rows.edits_of.tables
    entry = tl.load(tables.entries + line_at(slot, tables.vocab_size) + ids, mask=ids < rows.vocab_size, other=0)
    return penalised(x, entry, penalties[0], penalties[1], penalties[2])
