"""Attention over a paged KV cache for a flat batch of many requests, in plain torch.

T: tokens of the step, B: requests of a group, Q: new tokens of each of them, L: context, H and G: query and KV heads.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class LayerLayout(NamedTuple):
    """What one attention layer keeps for a token."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


class KVPool(NamedTuple):
    """The cache of one layer; block 0 is never written, so that padding of block tables reads zeros."""

    keys: Tensor
    """[num_blocks, block_size, G, key_dim]"""
    values: Tensor
    """[num_blocks, block_size, G, value_dim]"""


class Context(NamedTuple):
    """The part of the cache that a group attends to, under one sliding window."""

    blocks: Tensor
    """int64 [B * blocks a request]"""
    mask: Tensor | None
    """[B, 1, Q, L] in the model's dtype: 0 where the key is visible, else -inf. None: the group has no other context
    than its own Q tokens, and a token sees those up to itself"""


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with equally many new tokens, computed in one call a layer."""

    rows: slice
    """Their tokens in the flat batch, request by request"""
    num_requests: int
    contexts: dict[int | None, Context]
    """By sliding window; None is full attention"""


@dataclass(frozen=True, slots=True)
class PagedBatch:
    """What the attention of every layer needs to know of a step; travels as a keyword through the model."""

    pools: Sequence[KVPool]
    slots: Tensor
    """int64 [T]: where the new keys and values go, block * block_size + offset"""
    groups: Sequence[Group]

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Write the new keys and values, then attend to everything before and at each token.

        Args:
            layer: Which pool.
            query: [1, H, T, key_dim]; key: [1, G, T, key_dim]; value: [1, G, T, value_dim].
            scale: Of the scores; None is key_dim ** -0.5.
            window: A token sees this many tokens, itself included.
            softcap: Bound of the scores by tanh.
            sinks: [H], a score for each head that takes part in the softmax and has no value.

        Returns:
            [1, T, H, value_dim]
        """
        pool = self.pools[layer]
        pool.keys.flatten(0, 1).index_copy_(0, self.slots, key[0].transpose(0, 1))
        pool.values.flatten(0, 1).index_copy_(0, self.slots, value[0].transpose(0, 1))
        outputs = []
        for group in self.groups:
            context = group.contexts[window]
            count = group.num_requests
            # [B, H, Q, D] and [B, G, L, D]
            q = query[0, :, group.rows].view(query.shape[1], count, -1, query.shape[3]).transpose(0, 1)
            k = pool.keys.index_select(0, context.blocks).view(count, -1, *pool.keys.shape[2:]).transpose(1, 2)
            v = pool.values.index_select(0, context.blocks).view(count, -1, *pool.values.shape[2:]).transpose(1, 2)
            if context.mask is None:
                k, v = k[:, :, : q.shape[2]], v[:, :, : q.shape[2]]
            if softcap is None and sinks is None:
                out = _attend(q, k, v, context.mask, scale)
            else:
                out = _attend_in_steps(q, k, v, context.mask, scale, softcap, sinks)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return (outputs[0] if len(outputs) == 1 else torch.cat(outputs)).unsqueeze(0)


def causal_mask(
    starts: Tensor, firsts: Tensor, q_len: int, k_len: int, window: int | None, dtype: torch.dtype, first_key: int = 0
) -> Tensor:
    """The mask of a group whose new tokens begin at `starts` [B] and whose gathered keys at `firsts` [B].

    Keys before position `first_key` are hidden.

    Returns:
        [B, 1, q_len, k_len] of 0 and -inf.
    """
    q_pos = starts.view(-1, 1, 1, 1) + torch.arange(q_len, device=starts.device).view(-1, 1)
    k_pos = firsts.view(-1, 1, 1, 1) + torch.arange(k_len, device=starts.device)
    hidden = k_pos > q_pos
    if window is not None:
        hidden |= k_pos <= q_pos - window
    if first_key:
        hidden |= k_pos < first_key
    return torch.zeros(hidden.shape, dtype=dtype, device=starts.device).masked_fill_(hidden, -torch.inf)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Tensor:
    heads, q_len = q.shape[1], q.shape[2]
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=heads != k.shape[1])
    if q_len == 1 and heads != k.shape[1]:
        # The query heads of a KV head become rows of it: no key is repeated or read twice.
        folded = q.reshape(len(q), k.shape[1], -1, q.shape[3])
        return F.scaled_dot_product_attention(folded, k, v, attn_mask=mask, scale=scale).reshape(len(q), heads, 1, -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=heads != k.shape[1])


def _attend_in_steps(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """What the fused function cannot do: capped scores and sinks."""
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is None:
        mask = scores.new_full(scores.shape[2:], -torch.inf).triu_(1)
    scores = (scores + mask).float()
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, column], 3).softmax(3)[..., :-1].to(v.dtype) @ v
    return scores.softmax(3).to(v.dtype) @ v


def allocate_pools(
    layers: Sequence[LayerLayout], num_blocks: int, block_size: int, dtype: torch.dtype, device: torch.device
) -> list[KVPool]:
    """Zeroed pools, block 0 included in `num_blocks`: hidden keys are multiplied by zero, so they must be finite."""
    return [
        KVPool(
            torch.zeros(num_blocks, block_size, layer.num_kv_heads, layer.key_dim, dtype=dtype, device=device),
            torch.zeros(num_blocks, block_size, layer.num_kv_heads, layer.value_dim, dtype=dtype, device=device),
        )
        for layer in layers
    ]
