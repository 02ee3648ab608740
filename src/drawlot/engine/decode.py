"""Decode steps, in which every choice has one new token: fixed shapes in memory that never moves.

B: rows of a batch, those of choices and padding up to a size of the ladder.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.engine import paged_attention
from drawlot.engine.attention import KVPool
from drawlot.engine.config import EngineConfig
from drawlot.engine.cuda_graphs import CudaGraphs, GraphsByKey, batch_sizes
from drawlot.engine.drawing import DrawnCopy, draw, one_row_each
from drawlot.engine.request import Choice
from drawlot.outputs import LogitsRows, SamplerOutput
from drawlot.sampling import Sampler

logger = logging.getLogger("drawlot")
# Programs a multiprocessor runs side by side; and how long a part of a context is, at least and at most.
_PROGRAMS, _SHORTEST_PART, _LONGEST_PART = 4, 64, 2**15


@dataclass(frozen=True, slots=True)
class DecodeBatch:
    """What the attention of every layer needs to know of a decode step; see `paged_attention`."""

    pools: Sequence[KVPool]
    tables: Tensor
    table_width: Tensor
    lengths: Tensor
    max_length: int

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
        """As `PagedBatch.attend`."""
        context = *self.pools[layer], self.tables, self.table_width, self.lengths
        num_parts = self._num_parts(key.shape[1], self.max_length if window is None else min(window, self.max_length))
        # Triton launches on the present device.
        with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
            paged_attention.store(key, value, *context)
            return paged_attention.attend(
                query, *context, num_parts=num_parts, scale=scale, window=window, softcap=softcap, sinks=sinks
            )

    def _num_parts(self, kv_heads: int, longest: int) -> int:
        """Enough programs to fill the device, and no part too long for one of them."""
        on_gpu = self.lengths.is_cuda
        units = torch.cuda.get_device_properties(self.lengths.device).multi_processor_count if on_gpu else 1
        parts = max(_PROGRAMS * units // (len(self.lengths) * kv_heads), -(-longest // _LONGEST_PART))
        return max(1, min(parts, -(-longest // _SHORTEST_PART)))


class DecodeInputs:
    """What a decode step reads: an array that the host fills by one copy, behind the tokens that were drawn last.

    Padding has length 0 and state row -1: attention and sampler skip it.
    """

    def __init__(self, max_rows: int, max_blocks: int, device: torch.device) -> None:
        self._max_rows = max_rows
        fields, tables = 6 * max_rows, max_rows * max_blocks
        self._array = torch.zeros(fields + 1 + tables, dtype=torch.int64, device=device)
        on_gpu = device.type == "cuda"
        # Two, for the copy of one step may be under way while the next is staged.
        self._staging = cycle([torch.zeros(len(self._array), dtype=torch.int64, pin_memory=on_gpu) for _ in range(2)])
        columns = self._array[:fields].view(6, max_rows)
        self.drawn, _, self._sources, self.positions, self.lengths, self.state_rows = columns
        self.table_width, self.tables = self._array[fields:].split_with_sizes([1, tables])
        self.input_ids = torch.zeros_like(self.drawn)
        self.state_rows.fill_(-1)

    def take_input_ids(self, size: int) -> Tensor:
        """int64 [size]: the tokens that the host has sent, or those drawn last, which it may not know yet."""
        return torch.index_select(self._array, 0, self._sources[:size], out=self.input_ids[:size])

    def fill(
        self, size: int, choices: Sequence[Choice], sources: Sequence[int | None], tables: NDArray[np.int64]
    ) -> None:
        """Stage a step and copy it to the device.

        Args:
            size: Rows of the batch, padding included.
            choices: In the order of the batch; each has blocks for its new token.
            sources: Where a choice's last token lies in `drawn`, if the host does not know it yet.
            tables: Block tables by state row.
        """
        count, most = len(choices), self._max_rows
        staged = next(self._staging)
        array = staged.numpy()
        ids, source, positions, lengths, rows = array[most : 6 * most].reshape(5, most)[:, :size]
        ids[:count] = [choice.token_ids[-1] for choice in choices]
        source[:] = np.arange(most, most + size)
        source[:count] = [most + i if place is None else place for i, place in enumerate(sources)]
        positions[:count] = [choice.num_computed for choice in choices]
        lengths[:count] = positions[:count] + 1
        rows[:count] = [choice.row for choice in choices]
        ids[count:], positions[count:], lengths[count:], rows[count:] = 0, 0, 0, -1
        width = max(len(choice.blocks) for choice in choices)
        array[6 * most] = width
        end = 6 * most + 1 + count * width
        array[6 * most + 1 : end] = tables[rows[:count], :width].ravel()
        self._array[most:end].copy_(staged[most:end], non_blocking=True)


class Decoder:
    """Runs decode steps, by CUDA graph if `capture` is set."""

    def __init__(
        self, model: Any, config: EngineConfig, pools: Sequence[KVPool], sampler: Sampler, *, capture: bool
    ) -> None:
        self._model = model
        self._config = config
        self._pools = pools
        self._sampler = sampler
        self._sizes = batch_sizes(config.max_num_seqs)
        self._inputs = DecodeInputs(config.max_num_seqs, -(-config.max_model_len // config.block_size), config.device)
        # The position of a token that is drawn is the number of those before it.
        rows = self._inputs.state_rows, self._inputs.lengths, self._inputs.input_ids
        self._rows = {size: one_row_each(*(column[:size] for column in rows)) for size in self._sizes}
        self._places: dict[Choice, int] = {}
        forward: Callable[[int], tuple[Tensor, LogitsRows]] = self.forward
        if capture:
            forward = CudaGraphs(self.forward, self._sizes, config.device)
        self._forward = forward
        # A graph of its own: its kernels depend on what live requests ask for.
        draw_again: Callable[[int], SamplerOutput] = self._draw_last
        if capture and sampler.capture_key is not None:
            logger.info("compiling the sampler's kernels; it takes a minute where it was never done before")
            sampler.warm_up(forward(1)[0])
            draw_again = GraphsByKey(self._draw_last, lambda: sampler.capture_key, config.device)
        self._draw_by_graph = draw_again
        self._logits: dict[int, tuple[Tensor, LogitsRows]] = {}

    def launch(self, choices: Sequence[Choice], tables: NDArray[np.int64]) -> DrawnCopy:
        """Draw the next token of each choice; the last one may still be on its way from the step before."""
        size = next(size for size in self._sizes if size >= len(choices))
        sources = [self._places[choice] if choice.awaits_token else None for choice in choices]
        self._places = {choice: place for place, choice in enumerate(choices)}
        self._inputs.fill(size, choices, sources, tables)
        self._sampler.apply_staged_writes()
        # With a graph they lie where they have always been.
        self._logits[size] = self._forward(size)
        return DrawnCopy(choices, self._draw_by_graph(size))

    def step(self, size: int) -> SamplerOutput:
        """A whole step on what the inputs hold."""
        return self._draw(*self.forward(size))

    def _draw_last(self, size: int) -> SamplerOutput:
        return self._draw(*self._logits[size])

    def forward(self, size: int) -> tuple[Tensor, LogitsRows]:
        """Logits [size, V] and whose they are."""
        inputs = self._inputs
        lengths = inputs.lengths[:size]
        batch = DecodeBatch(self._pools, inputs.tables, inputs.table_width, lengths, self._config.max_model_len)
        logits = self._model(
            input_ids=inputs.take_input_ids(size).unsqueeze(0),
            position_ids=inputs.positions[:size].unsqueeze(0),
            use_cache=False,
            paged=batch,
        ).logits[0]
        return logits, self._rows[size]

    def _draw(self, logits: Tensor, rows: LogitsRows) -> SamplerOutput:
        out = draw(self._sampler, logits, rows)
        # A bad row has no token, and whatever follows it is thrown away.
        self._inputs.drawn[: len(logits)].copy_(out.token_ids.clamp(min=0))
        return out
