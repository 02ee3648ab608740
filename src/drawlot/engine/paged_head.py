"""An EAGLE-style head on the target's blocks.

The entry at a token's slot is made of the token and of the state before it, so it depends on no later token, and blocks
of the prefix cache hold the same entries for whoever shares them. Slot 0 stays empty and is never looked at.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot.engine.attention import Context, Group, LayerLayout, PagedBatch, allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.paged_model import PagedModel
from drawlot.speculators.eagle_head import EagleHead, EagleHeadConfig
from drawlot.speculators.eagle_steps import EagleSteps


def layout(config: EagleHeadConfig) -> LayerLayout:
    """What the head keeps for a token."""
    return LayerLayout(config.num_key_value_heads, config.head_dim, config.head_dim)


class PagedHead:
    """Owns the head's pools, and the target's states at the ends of blocks, from which a shared prefix goes on."""

    def __init__(self, head: EagleHead, target: PagedModel, cache: KVCache) -> None:
        config = target.config
        num_blocks = config.num_kv_blocks + 1
        self._head = EagleSteps(head.to(config.device, config.dtype))
        self._embed = target.model.get_input_embeddings()
        self._lm_head = target.model.get_output_embeddings()
        self._config = config
        self._cache = cache
        self._pools = allocate_pools([layout(head.config)], num_blocks, config.block_size, config.dtype, config.device)
        self._following: list[_Part] = []
        self._block_ends = torch.zeros(num_blocks, head.config.hidden_size, dtype=config.dtype, device=config.device)

    def states(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        before: Tensor,
        num_following: int = 0,
    ) -> Tensor:
        """As `speculators.eagle.PagedHead.states`."""
        # Where the tokens that follow will lie and what they will see is known, though they are not.
        spans = [Span(row, start, [*ids, *[0] * num_following]) for row, start, ids in zip(rows, starts, token_ids)]
        batch = BatchBuilder(spans, self._cache.tables, self._config.block_size, [None], first_key=1)
        add = batch.staging.add
        ids = add([token for each in token_ids for token in each])
        orders: list[int] = []
        if batch.spans != spans:
            # The flat batch has spans of one length side by side.
            places = {row: place for place, row in enumerate(rows)}
            order = [places[span.row] for span in batch.spans]
            firsts = list(itertools.accumulate((len(each) for each in token_ids), initial=0))
            orders = [add([at for place in order for at in range(firsts[place], firsts[place + 1])]), add(order)]
        staged = batch.staging.move(self._config.device)
        _, positions, paged = batch.build(staged, self._pools, self._config.dtype)
        flat = _Part(positions[0], paged, None)
        self._following = []
        if num_following:
            last = [slice(place - num_following, place - num_following + 1 or None) for place in range(num_following)]
            self._following = [flat.columns(each, staged[orders[1]] if orders else None) for each in last]
            flat = flat.columns(slice(-num_following), None)
        return self._compute(staged[ids], before, flat._replace(order=staged[orders[0]] if orders else None))

    def follow(self, token_ids: Sequence[int], before: Tensor) -> Tensor:
        """As `speculators.eagle.PagedHead.follow`."""
        return self._compute(torch.tensor(token_ids, device=self._config.device), before, self._following.pop(0))

    def logits(self, states: Tensor) -> Tensor:
        """As `speculators.eagle.PagedHead.logits`."""
        logits: Tensor = self._lm_head(states)
        return logits

    def keep_block_ends(self, row: int, start: int, states: Tensor) -> None:
        """As `speculators.eagle.PagedHead.keep_block_ends`."""
        size = self._config.block_size
        first = size - 1 - start % size
        blocks = self._cache.tables[row, start // size : (start + len(states)) // size]
        if len(blocks):
            index = torch.from_numpy(blocks.copy()).to(self._config.device)
            self._block_ends.index_copy_(0, index, states[first::size])

    def block_end(self, row: int, position: int) -> Tensor:
        """As `speculators.eagle.PagedHead.block_end`."""
        return self._block_ends[int(self._cache.tables[row, position // self._config.block_size])].clone()

    def clear(self, blocks: Tensor) -> None:
        """As `speculators.eagle.PagedHead.clear`."""
        for tensor in (*self._pools[0], self._block_ends):
            tensor.index_fill_(0, blocks, 0)

    def _compute(self, token_ids: Tensor, before: Tensor, part: "_Part") -> Tensor:
        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return part.paged.attend(0, query, key, value, scale=None, window=None, softcap=None, sinks=None)

        if part.order is not None:
            token_ids, before = token_ids[part.order], before[part.order]
        expected = self._head(before, self._embed(token_ids), part.positions - 1, attend)
        return expected if part.order is None else torch.empty_like(expected).index_copy_(0, part.order, expected)


class _Part(NamedTuple):
    """Tokens of a flat batch, as many of each request of a group."""

    positions: Tensor
    """int64 [T]"""
    paged: PagedBatch
    order: Tensor | None
    """int64 [T]: which of the tokens, as they are given, each of them is; None: they come in this order"""

    def columns(self, which: slice, order: Tensor | None) -> "_Part":
        """Some of the tokens of each request."""
        positions: list[Tensor] = []
        slots: list[Tensor] = []
        groups: list[Group] = []
        row = 0
        for group in self.paged.groups:
            for all_of, some in ((self.positions, positions), (self.paged.slots, slots)):
                some.append(all_of[group.rows].view(group.num_requests, -1)[:, which].flatten())
            contexts = {
                window: Context(blocks, None if mask is None else mask[:, :, which])
                for window, (blocks, mask) in group.contexts.items()
            }
            groups.append(Group(slice(row, row := row + len(slots[-1])), group.num_requests, contexts))
        return _Part(torch.cat(positions), PagedBatch(self.paged.pools, torch.cat(slots), groups), order)
