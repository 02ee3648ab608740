"""What is right: the reference's tokens, kept sets and logprobs of some rows of a workload."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.providers import Drawn
from drawlot.entrypoints.sampler_benchmark.workload import Workload
from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, RowParams, SampledRows
from drawlot.kernels.reference.edits import grammar_masked, row_values
from drawlot.kernels.reference.filters import in_order, kept_set

ROUNDING = 1e-4
"""Other providers sum in float32: p and min_p may be off by this share of themselves, and so may a logprob"""
CHECKED_ROWS = 64
"""Of every provider, in as many buffers as that takes"""
REFERENCE_ROWS = 32
"""Of them those that the slow reference looks at for providers with noise of their own"""


class KeptRow(NamedTuple):
    """What others may draw from a row; all by token id."""

    values: NDArray[np.float32]
    """After masks and penalties"""
    kept: NDArray[np.int64]
    """The ids of the kept set, by filters wider by ROUNDING"""
    logprobs: NDArray[np.float64]
    """Raw"""


@dataclass
class Oracle:
    """Computed on demand, once for all providers of a workload."""

    work: Workload

    @property
    def buffers(self) -> list[Tensor]:
        """The logits whose tokens are checked."""
        return self.work.buffers[: -(-CHECKED_ROWS // self.work.case.rows)]

    def first_rows(self, number: int) -> list[tuple[int, int]]:
        """(buffer, row) of some checked rows: neighbours, so that every kind of a mix is among them."""
        return [(b, i) for b in range(len(self.buffers)) for i in range(self.work.case.rows)][:number]

    @cached_property
    def expected(self) -> list[Drawn]:
        """What drawlot's torch backend draws from each buffer."""
        sampler = self.work.sampler("torch")
        outputs = [sampler(logits, self.work.rows, self.work.bitmask) for logits in self.buffers]
        return [Drawn(out.token_ids, out.logprobs) for out in outputs]

    def reference(self, buffer: int, row: int) -> SampledRows:
        """The reference's draw of one row, with its margin."""
        params, edits = self._handed_over
        one = slice(row, row + 1)
        return reference.sample_rows(self.buffers[buffer][one], params.pick(one), edits.rows(row, row + 1), None)

    @cached_property
    def kept_rows(self) -> dict[tuple[int, int], KeptRow]:
        """By buffer and row."""
        params, edits = self._handed_over
        rows = {}
        for b, i in self.first_rows(REFERENCE_ROWS):
            logits, own = self.buffers[b][i].float().cpu().numpy(), edits.rows(i, i + 1)
            values, raw = row_values(logits, 0, own), grammar_masked(logits, 0, own).astype(np.float64)
            temperature, top_k, top_p, min_p = (float(column[i]) for column in params[:4])
            if temperature == 0:
                kept = in_order(values)[:1]
            else:
                wider_p, wider_min_p = min(1.0, top_p * (1 + ROUNDING)), min_p * (1 - ROUNDING)
                kept = kept_set(values, temperature, int(top_k), wider_p, wider_min_p).ids
            shifted = raw - raw.max()
            rows[b, i] = KeptRow(values, kept, shifted - np.log(np.exp(shifted).sum()))
        return rows

    @cached_property
    def _handed_over(self) -> tuple[RowParams, Edits]:
        """What a sampler hands to its backend, on the CPU; the same for all buffers."""
        sampler = self.work.sampler("reference")
        seen: list[tuple[RowParams, Edits]] = []
        nothing = torch.zeros(self.work.case.rows, dtype=torch.int64, device=self.work.device)

        def watch(logits: Tensor, params: RowParams, edits: Edits, wanted: Any, *, wide: bool = False) -> SampledRows:
            seen.append((params, edits))
            return SampledRows(nothing, nothing.to(torch.uint8), None)

        sampler.backend = sampler.backend._replace(sample_rows=watch)
        sampler(self.work.buffers[0], self.work.rows, self.work.bitmask)
        params, edits = seen[0]
        return RowParams(*(column.cpu() for column in params)), Edits(*map(_on_cpu, edits))


def _on_cpu(edit: Any) -> Any:
    """A tensor, a (named) tuple of tensors, or None."""
    if isinstance(edit, Tensor):
        return edit.cpu()
    if isinstance(edit, tuple):
        parts = [part.cpu() for part in edit]
        return type(edit)(*parts) if hasattr(edit, "_fields") else tuple(parts)
    return edit
