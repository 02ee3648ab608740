"""Reads of the logits: as the model gave them, under the grammar's bitmask, as edited; their order as integers."""

import triton
import triton.language as tl

TILE = tl.constexpr(128)
SLICES, GROUP, STRANDS = tl.constexpr(4), tl.constexpr(4), tl.constexpr(8)
"""Of a tile: slices of 32 tokens, whose bits are a word; of a slice: groups of four tokens; strands of a group of each
slice, of which a thread of the scan has one, or of half-width logits two"""
MINUS_INF = tl.constexpr(float("-inf"))
MINUS_INF_ORDER = tl.constexpr(-0x7F800001)
LAST_ID = tl.constexpr(2**31 - 1)
_FEW_VALUES = tl.constexpr(2048)
"""Tokens that are read here and there"""


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
    slice, lane = tl.arange(0, SLICES) * 32, tl.arange(0, 32)
    return (tiles * TILE)[:, None, None] + slice[None, :, None] + lane[None, None, :]


@triton.jit
def words_of(tiles, SIDE: tl.constexpr):
    """int32 [M, 8 / SIDE, 4]: where the bits of tiles [M] lie, a word a slice, the same for all threads of a tile."""
    thread, slice = tl.arange(0, STRANDS // SIDE)[None, :, None], tl.arange(0, SLICES)[None, None, :]
    return (tiles * SLICES)[:, None, None] + thread * 0 + slice


@triton.jit
def strands_of(SIDE: tl.constexpr):
    """int32 [1, 8 / SIDE, SIDE]: numbers of the strands of a tile, by threads that have SIDE each."""
    return tl.arange(0, STRANDS // SIDE)[None, :, None] * SIDE + tl.arange(0, SIDE)[None, None, :]


@triton.jit
def line_at(row, stride):
    """int64: where a row's line begins, row * stride: one instruction, since neither is negative."""
    row = row.to(tl.uint32)
    # A compile-time 1 and 64 bits, too.
    stride = stride + row * 0
    return (row.to(tl.uint64) * stride.to(tl.uint64)).to(tl.int64)


@triton.jit
def widened(x):
    """As float32, whose values they are."""
    if x.dtype == tl.bfloat16:
        # Otherwise the compiler takes two instructions for every other one of a pair.
        result = (x.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        result = x.to(tl.float32)
    return result


@triton.jit
def load_logits(rows, row, ids, mask):
    """float32: the logits of a row (int64) at ids (int32) as the model gave them; -inf where masked or no token."""
    mask = mask & (ids < rows.vocab_size)
    return widened(tl.load(rows.logits + row * rows.stride + ids, mask=mask, other=MINUS_INF))


@triton.jit
def load_all_logits(rows, row, ids, mask):
    """As `load_logits`, for a pass over all rows, of which few are read again; mask: None, if all ids are tokens'."""
    return load_line(rows, line_at(row, rows.stride), ids, mask)


@triton.jit
def load_line(rows, start, ids, mask):
    """As `load_all_logits`, of the row whose line starts there."""
    at = rows.logits + start + ids
    if len(ids.shape) == 3:
        # As if tiles were side by side rather than slices: else Triton 3.9 gives a tile's slices to different threads.
        at = tl.max_contiguous(at, [2, 1, 32])
    if mask is None:
        x = tl.load(at, eviction_policy="evict_first")
    else:
        x = tl.load(at, mask=mask & (ids < rows.vocab_size), other=MINUS_INF, eviction_policy="evict_first")
    return widened(x)


@triton.jit
def load_raw(rows, row, ids, mask):
    """What raw logprobs are computed from: the logits with the grammar bitmask alone."""
    return grammar_masked(rows, row, load_logits(rows, row, ids, mask), ids, mask)


@triton.jit
def load_all_values(rows, row, ids, mask):
    """As `load_values`, for a pass over a whole row, which would push the code of kernels out of the cache."""
    return edited(rows, row, grammar_masked(rows, row, load_all_logits(rows, row, ids, mask), ids, mask), ids, mask)


@triton.jit
def load_stretch(rows, row, first, end, N: tl.constexpr):
    """As `load_all_values`, of N tokens side by side, none from `end` on."""
    place = tl.arange(0, N)
    ids = first + place
    start = rows.logits + (row * rows.stride + first)
    if first + N <= end:
        # Without masks, and by one address: 40 instructions fewer, of 290 for 16 tokens a thread.
        x = tl.load(start + place, eviction_policy="evict_first")
    else:
        x = tl.load(start + place, mask=ids < end, other=MINUS_INF, eviction_policy="evict_first")
    return edited(rows, row, grammar_masked(rows, row, widened(x), ids, ids < end), ids, ids < end)


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
def grammar_masked_slices(rows, row, x, tiles, SIDE: tl.constexpr):
    """As `grammar_masked`, of tiles [M] in slices, of which a thread reads the words of its own tokens.

    SIDE: strands of a thread.
    """
    if rows.bitmask is not None:
        word = words_of(tiles, SIDE)
        # As if those of threads were side by side, so that each loads what it needs.
        at = tl.max_contiguous(rows.bitmask + line_at(row, rows.bitmask_stride) + word, [2, 4, 1])
        words = tl.load(at, mask=word * 32 < rows.vocab_size, other=0)
        bit = strands_of(SIDE)[:, None, :, :, None] * GROUP + tl.arange(0, GROUP)[None, None, None, None, :]
        is_allowed = ((tl.permute(words, (0, 2, 1))[:, :, :, None, None] >> bit) & 1) != 0
        own = x.reshape(x.shape[0], SLICES, STRANDS // SIDE, SIDE, GROUP)
        x = tl.where(is_allowed, own, MINUS_INF).reshape(x.shape)
    return x


@triton.jit
def edited(rows, row, x, ids, mask):
    """Raw values, edited."""
    return _laid_over(rows.overlay, rows, row, _laid_over(rows.edits, rows, row, x, ids, mask), ids, mask)


@triton.jit
def _laid_over(overlay, rows, row, x, ids, mask):
    if overlay is not None:
        kind = tl.load(overlay.kind + row)
        if kind > 0:
            x = laid_over(overlay, kind, rows, row, x, ids, mask)
    return x


@triton.jit
def laid_over(overlay, kind, rows, row, x, ids, mask):
    """Values under an overlay that changes the row, which is of this kind."""
    touched = _bits(overlay.touched + row * overlay.words, rows, ids, mask)
    # Of few tokens all new values, whatever they are where no token is touched: otherwise one load waits for another.
    is_few: tl.constexpr = len(x.shape) < 3 and x.numel <= _FEW_VALUES
    return with_new_values(overlay, kind, row, x, ids, touched, mask & (ids < rows.vocab_size) if is_few else touched)


@triton.jit
def with_new_values(overlay, kind, row, x, ids, touched, mask):
    """As `laid_over`, for who knows which tokens are touched; mask: which of the others are loaded, too."""
    new = tl.load(overlay.new_values + row * overlay.width + ids, mask=mask, other=0.0)
    return tl.where(touched, new, tl.where(kind == 2, MINUS_INF, x))


@triton.jit
def under_overlay(rows, row, x, ids):
    """Edited values under what is laid over them: refused drafts, of which none has a value."""
    return _laid_over(rows.overlay, rows, row, x, ids, x > MINUS_INF)


@triton.jit
def kind_of(rows, row):
    """`Overlay.kind` of a row in `Rows.edits`; 0 if there are none."""
    kind = tl.zeros([], tl.int32)
    if rows.edits is not None:
        kind = tl.load(rows.edits.kind + row)
    return kind


@triton.jit
def load_edits_of_groups(overlay, row, kind, group, ids, exists):
    """Words with the bits of touched tokens of groups of four [M], and the new values of all that they have [M, 4].

    kind: of `kind_of`; nothing is loaded for a row that the overlay does not change.
    """
    exists = exists & (group < tl.where(kind > 0, LAST_ID, 0))
    touched = tl.load(overlay.touched + row * overlay.words + (group >> 3), mask=exists, other=0)
    # A line of them begins, as each group does, at 16 bytes.
    at = tl.multiple_of(overlay.new_values + row * overlay.width + ids, [1, 16])
    return touched, tl.load(at, mask=exists[:, None], other=0.0)


@triton.jit
def with_edits_of_groups(rows, kind, group, ids, x, touched, new):
    """Raw values of groups [M, 4], edited; touched, new: of `load_edits_of_groups`."""
    if rows.edits is not None:
        if kind > 0:
            bits = touched[:, None] >> (ids & 31)
            # A draft may be no token.
            is_touched = ((bits & 1) != 0) & (ids < rows.vocab_size)
            x = tl.where(is_touched, new, tl.where(kind == 2, MINUS_INF, x))
    return x


@triton.jit
def is_bad(x):
    """NaN and +inf, of which one makes a row's status."""
    return (x != x) | (x == float("inf"))


@triton.jit
def is_edited(rows, row):
    """Whether edits beyond the bitmask are laid over the row, so that its values may differ from raw ones."""
    return touches(rows.edits, row) | touches(rows.overlay, row)


@triton.jit
def touches(overlay, row):
    """Whether an overlay, if there is one, has values of the row."""
    result = row != row
    if overlay is not None:
        result = tl.load(overlay.kind + row) > 0
    return result


@triton.jit
def _bits(words, rows, ids, mask):
    """Bit id & 31 of word id >> 5; False where masked or no token."""
    mask = mask & (ids < rows.vocab_size)
    return ((tl.load(words + (ids >> 5), mask=mask, other=0) >> (ids & 31)) & 1) != 0
