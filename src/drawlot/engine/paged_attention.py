# mypy: disable-error-code="import-untyped, untyped-decorator, no-untyped-def"
"""Attention of a decode step, in Triton: each row has one new token and reads its paged context by a block table.

Flash-decoding (Dao et al. 2023): parts of a context are attended to side by side, then combined. No shape and no launch
depends on a length, so the calls can be captured in a CUDA graph; a row of length 0 is padding: it writes and reads
nothing, and its output is 0. All arithmetic is float32, but the products of half precision operands.

B: rows, H and G: query and KV heads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawlot.errors import ModelError

MAX_HEAD_DIM = 256
# Of keys or values that a program holds at a time: several programs share a multiprocessor.
_TILE_BYTES = 8192
_LOG2E = tl.constexpr(1.4426950408889634)


def store(
    key: Tensor, value: Tensor, keys: Tensor, values: Tensor, tables: Tensor, table_width: Tensor, lengths: Tensor
) -> None:
    """Write each row's new key and value into the cache, at position length - 1.

    Args:
        key: [1, G, B, key_dim]; value: [1, G, B, value_dim].
        keys: [num_blocks, block_size, G, key_dim]; values: [num_blocks, block_size, G, value_dim].
        tables: int64, flat: row b's i-th block is entry b * table_width + i.
        table_width: int64 [1], on the device.
        lengths: int64 [B], tokens of the context, the new one included; 0 for padding.
    """
    heads, rows = key.shape[1:3]
    key, value = _rows(key), _rows(value)
    _store[rows, heads](
        key,
        value,
        keys,
        values,
        tables,
        table_width,
        lengths,
        *key.stride()[1:3],
        *value.stride()[1:3],
        HEADS=heads,
        KEY_DIM=key.shape[3],
        VALUE_DIM=value.shape[3],
        KEY_BLOCK=triton.next_power_of_2(key.shape[3]),
        VALUE_BLOCK=triton.next_power_of_2(value.shape[3]),
        BLOCK_SIZE=keys.shape[1],
        num_warps=1,
    )


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    table_width: Tensor,
    lengths: Tensor,
    *,
    num_parts: int,
    scale: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attend from each row's new token to its context; arguments as in `store` and `PagedBatch.attend`.

    Args:
        query: [1, H, B, key_dim], head dimensions up to MAX_HEAD_DIM.
        keys: The cache; values, tables, table_width and lengths likewise.
        num_parts: Into how many parts a context is split at most.
        scale: Of the scores; None is key_dim ** -0.5.
        window: A token sees this many tokens, itself included.
        softcap: Bound of the scores by tanh.
        sinks: [H], a score for each head that takes part in the softmax and has no value.

    Returns:
        [1, B, H, value_dim] in the query's dtype.

    Raises:
        ModelError: A head is too wide.
    """
    query = _rows(query)
    _, heads, rows, key_dim = query.shape
    kv_heads, value_dim = values.shape[2:]
    if max(key_dim, value_dim) > MAX_HEAD_DIM:
        widest = max(key_dim, value_dim)
        raise ModelError(f"head dimension {widest}: a GPU decodes up to {MAX_HEAD_DIM} (enforce_eager does without)")
    output = query.new_empty(1, rows, heads, value_dim)
    partial = query.new_empty((rows, heads, num_parts, value_dim) if num_parts > 1 else 0, dtype=torch.float32)
    # Largest score and sum of weights of each part.
    stats = query.new_empty((2, rows, heads, num_parts) if num_parts > 1 else 0, dtype=torch.float32)
    key_block, value_block = (max(16, triton.next_power_of_2(dim)) for dim in (key_dim, value_dim))
    tile = _TILE_BYTES // (max(key_block, value_block) * keys.element_size())
    _attend[rows, kv_heads, num_parts](
        query,
        keys,
        values,
        tables,
        table_width,
        lengths,
        sinks,
        output,
        partial,
        stats,
        key_dim**-0.5 if scale is None else scale,
        softcap or 0.0,
        *query.stride()[1:3],
        HEADS=heads,
        KV_HEADS=kv_heads,
        GROUP_BLOCK=max(16, triton.next_power_of_2(heads // kv_heads)),
        KEY_DIM=key_dim,
        VALUE_DIM=value_dim,
        KEY_BLOCK=key_block,
        VALUE_BLOCK=value_block,
        BLOCK_SIZE=keys.shape[1],
        TILE=min(max(tile, 16), 64),
        WINDOW=window or 0,
        SOFTCAP=softcap is not None,
        num_warps=4,
        num_stages=3,
    )
    if num_parts > 1:
        _combine[rows, heads](
            partial,
            stats,
            sinks,
            output,
            HEADS=heads,
            PARTS=num_parts,
            PARTS_BLOCK=triton.next_power_of_2(num_parts),
            VALUE_DIM=value_dim,
            VALUE_BLOCK=value_block,
        )
    return output


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


@triton.jit
def _slots(tables, table_width, row, positions, mask, BLOCK_SIZE: tl.constexpr):
    """Where in the cache the tokens at these positions lie."""
    blocks = tl.load(tables + row * tl.load(table_width) + positions // BLOCK_SIZE, mask=mask)
    return blocks * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit
def _store(
    key,
    value,
    keys,
    values,
    tables,
    table_width,
    lengths,
    key_head_stride,
    key_row_stride,
    value_head_stride,
    value_row_stride,
    HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(lengths + row)
    if length > 0:
        slot = _slots(tables, table_width, row, length - 1, None, BLOCK_SIZE) * HEADS + head
        i = tl.arange(0, KEY_BLOCK)
        new = tl.load(key + head * key_head_stride + row * key_row_stride + i, mask=i < KEY_DIM)
        tl.store(keys + slot * KEY_DIM + i, new, mask=i < KEY_DIM)
        i = tl.arange(0, VALUE_BLOCK)
        new = tl.load(value + head * value_head_stride + row * value_row_stride + i, mask=i < VALUE_DIM)
        tl.store(values + slot * VALUE_DIM + i, new, mask=i < VALUE_DIM)


@triton.jit
def _attend(
    query,
    keys,
    values,
    tables,
    table_width,
    lengths,
    sinks,
    output,
    partial,
    stats,
    scale,
    softcap,
    query_head_stride,
    query_row_stride,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP_BLOCK: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """One part of a row's context for the query heads of one KV head."""
    row = tl.program_id(0)
    kv_head = tl.program_id(1)
    part = tl.program_id(2)
    parts = tl.num_programs(2)
    length = tl.load(lengths + row)
    first = tl.maximum(length - WINDOW, 0) if WINDOW else length * 0
    # Parts are equal in whole tiles; every tile of a part has a visible token.
    last_tile = (length + TILE - 1) // TILE
    tiles_a_part = (last_tile - first // TILE + parts - 1) // parts
    begin = first // TILE + part * tiles_a_part
    end = tl.minimum(begin + tiles_a_part, last_tile)

    member = tl.arange(0, GROUP_BLOCK)
    group: tl.constexpr = HEADS // KV_HEADS
    head = kv_head * group + member
    in_group = member < group
    key_i = tl.arange(0, KEY_BLOCK)
    value_i = tl.arange(0, VALUE_BLOCK)
    q = tl.load(
        query + row * query_row_stride + head[:, None] * query_head_stride + key_i[None, :],
        mask=in_group[:, None] & (key_i < KEY_DIM)[None, :],
        other=0.0,
    )
    top = tl.full([GROUP_BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([GROUP_BLOCK], tl.float32)
    acc = tl.zeros([GROUP_BLOCK, VALUE_BLOCK], tl.float32)
    for tile in range(begin, end):
        position = tile * TILE + tl.arange(0, TILE)
        visible = (position >= first) & (position < length)
        slot = _slots(tables, table_width, row, position, visible, BLOCK_SIZE) * KV_HEADS + kv_head
        k = tl.load(
            keys + slot[None, :] * KEY_DIM + key_i[:, None],
            mask=visible[None, :] & (key_i < KEY_DIM)[:, None],
            other=0.0,
        )
        score = tl.dot(q, k, input_precision="ieee") * scale
        if SOFTCAP:
            # tanh(x) is 2 sigmoid(2 x) - 1.
            score = softcap * (2 * tl.sigmoid(2 * score / softcap) - 1)
        score = tl.where(visible[None, :], score * _LOG2E, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        weight = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight, 1)
        v = tl.load(
            values + slot[:, None] * VALUE_DIM + value_i[None, :],
            mask=visible[:, None] & (value_i < VALUE_DIM)[None, :],
            other=0.0,
        )
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        top = new_top

    at = row * HEADS + head
    if parts == 1:
        if sinks is not None:
            total += tl.exp2(tl.load(sinks + head, mask=in_group, other=0.0).to(tl.float32) * _LOG2E - top)
        # Padding has no weights at all.
        acc = acc / tl.where(length > 0, total, 1.0)[:, None]
        tl.store(
            output + at[:, None] * VALUE_DIM + value_i[None, :],
            acc.to(output.dtype.element_ty),
            mask=in_group[:, None] & (value_i < VALUE_DIM)[None, :],
        )
    else:
        at = at * parts + part
        rest = tl.num_programs(0) * HEADS * parts
        tl.store(stats + at, top, mask=in_group)
        tl.store(stats + rest + at, total, mask=in_group)
        tl.store(
            partial + at[:, None] * VALUE_DIM + value_i[None, :],
            acc,
            mask=in_group[:, None] & (value_i < VALUE_DIM)[None, :],
        )


@triton.jit
def _combine(
    partial,
    stats,
    sinks,
    output,
    HEADS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
):
    """Weigh the parts of one head by their share of the softmax; an empty part has the largest score -inf."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    part = tl.arange(0, PARTS_BLOCK)
    i = tl.arange(0, VALUE_BLOCK)
    at = (row * HEADS + head) * PARTS + part
    rest = tl.num_programs(0) * HEADS * PARTS
    tops = tl.load(stats + at, mask=part < PARTS, other=float("-inf"))
    top = tl.max(tops, 0)
    weight = tl.where(tops == float("-inf"), 0.0, tl.exp2(tops - tl.maximum(top, -1e38)))
    total = tl.sum(weight * tl.load(stats + rest + at, mask=part < PARTS, other=0.0), 0)
    if sinks is not None:
        total += tl.exp2(tl.load(sinks + head).to(tl.float32) * _LOG2E - top)
    acc = tl.load(
        partial + at[:, None] * VALUE_DIM + i[None, :],
        mask=(weight > 0)[:, None] & (i < VALUE_DIM)[None, :],
        other=0.0,
    )
    # Padding has no weights at all.
    acc = tl.sum(acc * weight[:, None], 0) / tl.where(top == float("-inf"), 1.0, total)
    tl.store(output + (row * HEADS + head) * VALUE_DIM + i, acc.to(output.dtype.element_ty), mask=i < VALUE_DIM)
