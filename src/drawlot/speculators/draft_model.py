"""A smaller model with the target's tokenizer drafts (Leviathan et al., arXiv 2211.17192, algorithm 1)."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from drawlot.speculators.chain import Last, draft_chains
from drawlot.speculators.interface import Drafts, Speculator, StepRequest
from drawlot.verification import DraftSampler


class PagedForward(Protocol):
    """One forward of the draft model on its paged cache."""

    def last_logits(
        self, rows: Sequence[int], starts: Sequence[int], token_ids: Sequence[Sequence[int]], num_logits: int
    ) -> Tensor:
        """Compute the tokens of some rows from position `starts` on.

        Returns:
            [num_logits, V], the logits after the last token of each of the first `num_logits` rows.
        """

    def clear(self, blocks: Tensor) -> None:
        """Zero blocks int64 [N] of the cache."""


class DraftModel(Speculator):
    """Keeps the draft model's cache in step with the target's blocks and drafts token by token."""

    def __init__(self, model: PagedForward, sampler: DraftSampler, block_size: int) -> None:
        self._model = model
        self._sampler = sampler
        self._block_size = block_size
        self._computed: dict[int, int] = {}

    def add_request(self, row: int, num_cached: int) -> None:
        """Begin with what the prefix cache holds: whoever computed it kept this cache as well."""
        self._computed[row] = num_cached

    def propose(self, requests: Sequence[StepRequest]) -> Drafts:
        """Compute what is missing, of the requests that do not draft in whole blocks only; then draft."""
        drafting = [request for request in requests if request.num_drafts]
        spans = [self._missing(request, len(request.token_ids)) for request in drafting]
        for request in requests:
            if not request.num_drafts:
                spans.append(self._missing(request, request.end // self._block_size * self._block_size))
        logits = self._forward([span for span in spans if span[2]], len(drafting))
        return draft_chains(requests, logits if drafting else None, self._follow, self._sampler)

    def clear(self, blocks: Tensor) -> None:
        """Zero blocks of the cache."""
        self._model.clear(blocks)

    def _missing(self, request: StepRequest, end: int) -> tuple[int, int, Sequence[int]]:
        # What lies after the last token but one are drafts that may have been rejected.
        start = min(self._computed[request.row], len(request.token_ids) - 1)
        return request.row, start, request.token_ids[start:end]

    def _follow(self, last: Sequence[Last]) -> Tensor:
        logits = self._forward([(each.request.row, each.position, [each.token_id]) for each in last], len(last))
        assert logits is not None
        return logits

    def _forward(self, spans: Sequence[tuple[int, int, Sequence[int]]], num_logits: int) -> Tensor | None:
        if not spans:
            return None
        for row, start, token_ids in spans:
            self._computed[row] = start + len(token_ids)
        rows, starts, token_ids = zip(*spans)
        return self._model.last_logits(rows, starts, token_ids, num_logits)
