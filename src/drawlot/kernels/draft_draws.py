"""What drafts are drawn from, and the draws: of any backend, out of its functions."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.rng import TARGET, Stream


class DrawnDrafts(NamedTuple):
    """A draft for each of N rows, and the law that it was drawn from."""

    token_ids: Tensor
    """int64 [N], -1 for a bad row"""
    log_weights: Tensor
    """float32 [N, V], as a backend's `log_weights` gives them"""
    lse: Tensor
    """float32 [N], the log of the sum of their exp"""


class SampleRowsOnStreams(Protocol):
    """`sample_rows` of a backend that also draws for other purposes than ordinary ones."""

    def __call__(
        self,
        logits: Tensor,
        params: RowParams,
        edits: Edits,
        wanted: LogprobsWanted | None,
        *,
        wide: bool = False,
        streams: tuple[Stream, Stream] = TARGET,
    ) -> SampledRows: ...


class DrawDrafts(Protocol):
    """Draws a draft for each row of logits [N, V] by the parameters of the rows."""

    def __call__(
        self, logits: Tensor, params: RowParams, *, wide: bool, streams: tuple[Stream, Stream]
    ) -> DrawnDrafts: ...


def drawn_apart(sample_rows: SampleRowsOnStreams, log_weights: Callable[[Tensor, RowParams], Tensor]) -> DrawDrafts:
    """The definition: log-weights first, then an ordinary draw from just these."""

    def draw_drafts(logits: Tensor, params: RowParams, *, wide: bool, streams: tuple[Stream, Stream]) -> DrawnDrafts:
        weights = log_weights(logits, params)
        as_they_are = without_filters(params)._replace(temperature=torch.ones_like(params.temperature))
        drawn = sample_rows(weights, as_they_are, Edits(), None, wide=wide, streams=streams)
        return DrawnDrafts(drawn.token_ids, weights, weights.logsumexp(1))

    return draw_drafts


def without_filters(params: RowParams) -> RowParams:
    """The same, but every token may be drawn."""
    return params._replace(
        top_k=torch.zeros_like(params.top_k),
        top_p=torch.ones_like(params.top_p),
        min_p=torch.zeros_like(params.min_p),
    )
