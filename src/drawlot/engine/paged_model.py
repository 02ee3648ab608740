"""A model on a paged KV cache: one forward over a flat batch, logits only where they are wanted."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drawlot.engine.attention import KVPool, allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.engine.config import EngineConfig, ModelLimits
from drawlot.engine.kv_cache import KVCache


class PagedModel:
    """Owns the model's side of the cache: its pools, addressed by the block tables of `cache`."""

    def __init__(self, model: Any, limits: ModelLimits, config: EngineConfig, cache: KVCache) -> None:
        self.model = model
        self.config = config
        self.pools: list[KVPool] = allocate_pools(
            limits.layers, config.num_kv_blocks + 1, config.block_size, config.dtype, config.device
        )
        self.hidden_states: Tensor | None = None
        """[T, D] of the last batch, as `lm_head` reads them; only after `keep_hidden_states`"""
        self._cache = cache
        self._windows = limits.windows

    def keep_hidden_states(self) -> None:
        """Keep the hidden states of each forward until the next."""

        def keep(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            self.hidden_states = output.last_hidden_state[0]

        self.model.base_model.register_forward_hook(keep)

    def batch(self, spans: Sequence[Span]) -> BatchBuilder:
        """The flat batch of some spans."""
        return BatchBuilder(spans, self._cache.tables, self.config.block_size, self._windows)

    def forward(self, batch: BatchBuilder, staged: Sequence[Tensor], logits_rows: Tensor) -> Tensor:
        """Compute a batch.

        Args:
            batch: From `batch`.
            staged: What its staging moved to the device.
            logits_rows: int64 [N], tokens of the flat batch.

        Returns:
            [N, V], the logits after those tokens.
        """
        input_ids, positions, paged = batch.build(staged, self.pools, self.config.dtype)
        logits: Tensor = self.model(
            input_ids=input_ids, position_ids=positions, use_cache=False, logits_to_keep=logits_rows, paged=paged
        ).logits[0]
        return logits

    def last_logits(
        self, rows: Sequence[int], starts: Sequence[int], token_ids: Sequence[Sequence[int]], num_logits: int
    ) -> Tensor:
        """As `speculators.draft_model.PagedForward.last_logits`."""
        batch = self.batch([Span(*span) for span in zip(rows, starts, token_ids)])
        ends, end = {}, 0
        for span in batch.spans:
            end += len(span.token_ids)
            ends[span.row] = end
        last = batch.staging.add([ends[row] - 1 for row in rows[:num_logits]])
        staged = batch.staging.move(self.config.device)
        return self.forward(batch, staged, staged[last])

    def clear(self, blocks: Tensor) -> None:
        """Zero blocks int64 [N]."""
        for pool in self.pools:
            pool.keys.index_fill_(0, blocks, 0)
            pool.values.index_fill_(0, blocks, 0)
