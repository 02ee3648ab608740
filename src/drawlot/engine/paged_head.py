"""An EAGLE-style head on the target's blocks.

The entry at a token's slot is made of the token and of the state before it, so it depends on no later token, and blocks
of the prefix cache hold the same entries for whoever shares them. Slot 0 stays empty and is never looked at.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drawlot.engine.attention import LayerLayout, allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.paged_model import PagedModel
from drawlot.speculators.eagle_head import EagleHead, EagleHeadConfig


def layout(config: EagleHeadConfig) -> LayerLayout:
    """What the head keeps for a token."""
    return LayerLayout(config.num_key_value_heads, config.head_dim, config.head_dim)


class PagedHead:
    """Owns the head's pools, and the target's states at the ends of blocks, from which a shared prefix goes on."""

    def __init__(self, head: EagleHead, target: PagedModel, cache: KVCache) -> None:
        config = target.config
        num_blocks = config.num_kv_blocks + 1
        self._head = head.to(config.device, config.dtype)
        self._embed = target.model.get_input_embeddings()
        self._lm_head = target.model.get_output_embeddings()
        self._config = config
        self._cache = cache
        self._pools = allocate_pools([layout(head.config)], num_blocks, config.block_size, config.dtype, config.device)
        self._block_ends = torch.zeros(num_blocks, head.config.hidden_size, dtype=config.dtype, device=config.device)

    def states(
        self, rows: Sequence[int], starts: Sequence[int], token_ids: Sequence[Sequence[int]], before: Tensor
    ) -> Tensor:
        """As `speculators.eagle.PagedHead.states`."""
        spans = [Span(*span) for span in zip(rows, starts, token_ids)]
        batch = BatchBuilder(spans, self._cache.tables, self._config.block_size, [None], first_key=1)
        places, place = {}, 0
        for span in spans:
            places[span.row] = range(place, place := place + len(span.token_ids))
        order = [at for span in batch.spans for at in places[span.row]]
        index = batch.staging.add(order)
        staged = batch.staging.move(self._config.device)
        input_ids, slots, paged = batch.build(staged, self._pools, self._config.dtype)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return paged.attend(0, query, key, value, scale=None, window=None, softcap=None, sinks=None)

        expected: Tensor = self._head(before[staged[index]].unsqueeze(0), self._embed(input_ids), slots - 1, attend)
        return torch.empty_like(expected[0]).index_copy_(0, staged[index], expected[0])

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
