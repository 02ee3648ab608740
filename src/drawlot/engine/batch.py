"""The flat batch of a step: tokens of many requests side by side, and what attention must know of them."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.engine.attention import Context, Group, KVPool, PagedBatch, causal_mask

_SHORT_CONTEXT_BITS = 9


class Span(NamedTuple):
    """New tokens of one request, at the positions from `start` on."""

    row: int
    """Of the block tables"""
    start: int
    token_ids: Sequence[int]

    @property
    def end(self) -> int:
        """The position after the last new token."""
        return self.start + len(self.token_ids)


class Staging:
    """Integer arrays of the host that travel to the device in one copy."""

    def __init__(self) -> None:
        self._arrays: list[NDArray[np.int64]] = []

    def add(self, values: NDArray[np.int64] | Sequence[int]) -> int:
        """Keep an array and return its place in what `move` returns."""
        self._arrays.append(np.asarray(values, dtype=np.int64))
        return len(self._arrays) - 1

    def move(self, device: torch.device) -> list[Tensor]:
        """The arrays as int64 tensors on the device."""
        flat = torch.from_numpy(np.concatenate([array.ravel() for array in self._arrays]))
        if device.type == "cuda":
            flat = flat.pin_memory().to(device, non_blocking=True)
        parts = flat.split_with_sizes([array.size for array in self._arrays])
        return [part.view(array.shape) for part, array in zip(parts, self._arrays)]


class _StagedContext(NamedTuple):
    """Places of a context's tensors in the staging."""

    blocks: int
    starts: int
    firsts: int
    q_len: int
    k_len: int
    masked: bool


class BatchBuilder:
    """Stages the spans of a step; after `Staging.move` it gives out the tensors.

    Spans with equally many new tokens and contexts of similar length form a group; the flat batch follows `spans`.
    No key before position `first_key` is seen, nor may any token lie there.
    """

    def __init__(
        self,
        spans: Iterable[Span],
        tables: NDArray[np.int64],
        block_size: int,
        windows: Collection[int | None],
        first_key: int = 0,
    ) -> None:
        self._block_size = block_size
        self._first_key = first_key
        self._groups = _grouped(spans)
        self.spans = [span for group in self._groups for span in group]
        """In the order of the flat batch"""
        self.staging = Staging()
        positions, slots = [], []
        self._contexts: list[dict[int | None, _StagedContext]] = []
        for group in self._groups:
            rows = np.array([span.row for span in group])
            starts = np.array([span.start for span in group])
            q_len = len(group[0].token_ids)
            at = starts[:, None] + np.arange(q_len)
            positions.append(at.ravel())
            slots.append((tables[rows[:, None], at // block_size] * block_size + at % block_size).ravel())
            self._contexts.append({w: self._stage_context(tables, rows, starts, q_len, w) for w in windows})
        self._input_ids = self.staging.add([token for span in self.spans for token in span.token_ids])
        self._positions = self.staging.add(np.concatenate(positions))
        self._slots = self.staging.add(np.concatenate(slots))

    def build(
        self, staged: Sequence[Tensor], pools: Sequence[KVPool], dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, PagedBatch]:
        """Input ids [1, T], positions [1, T] and the handle for attention, from what `staging.move` returned."""
        groups, row = [], 0
        for group, staged_contexts in zip(self._groups, self._contexts):
            num_rows = len(group) * len(group[0].token_ids)
            contexts = {
                window: Context(staged[context.blocks], _mask(context, staged, window, dtype, self._first_key))
                for window, context in staged_contexts.items()
            }
            groups.append(Group(slice(row, row + num_rows), len(group), contexts))
            row += num_rows
        paged = PagedBatch(pools, staged[self._slots], groups)
        return staged[self._input_ids].unsqueeze(0), staged[self._positions].unsqueeze(0), paged

    def _stage_context(
        self,
        tables: NDArray[np.int64],
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        q_len: int,
        window: int | None,
    ) -> _StagedContext:
        """Blocks from the first that the first new token sees to the last that the last one does."""
        first = np.zeros_like(starts) if window is None else np.maximum(starts - window + 1, 0) // self._block_size
        last = (starts + q_len - 1) // self._block_size
        count = int((last - first).max()) + 1
        # Where a request has fewer blocks than its neighbours any block will do: the mask hides it.
        columns = np.minimum(first[:, None] + np.arange(count), tables.shape[1] - 1)
        return _StagedContext(
            blocks=self.staging.add(tables[rows[:, None], columns].ravel()),
            starts=self.staging.add(starts),
            firsts=self.staging.add(first * self._block_size),
            q_len=q_len,
            k_len=count * self._block_size,
            masked=q_len == 1 or bool(starts.any()) or (window is not None and q_len > window),
        )


def _mask(
    context: _StagedContext, staged: Sequence[Tensor], window: int | None, dtype: torch.dtype, first_key: int
) -> Tensor | None:
    if not context.masked:
        return None
    starts, firsts = staged[context.starts], staged[context.firsts]
    return causal_mask(starts, firsts, context.q_len, context.k_len, window, dtype, first_key)


def _grouped(spans: Iterable[Span]) -> list[list[Span]]:
    groups: dict[tuple[int, int], list[Span]] = {}
    for span in spans:
        # At most half of a gathered context is padding, except where all of it is short.
        context_bits = max(_SHORT_CONTEXT_BITS, (span.end - 1).bit_length())
        groups.setdefault((len(span.token_ids), context_bits), []).append(span)
    return list(groups.values())
