"""Prompt lookup: what followed the last tokens when they stood in the text before.

Source: prompt lookup decoding (A. Saxena, 2023), as in transformers' `prompt_lookup_num_tokens` and vLLM's `ngram`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from drawlot.speculators.interface import Drafts, Speculator, StepRequest

_FIRST_CAPACITY = 256


class Ngram(Speculator):
    """Looks up the longest suffix of min_tokens .. max_tokens tokens that occurs earlier; of several, the latest.

    A continuation that reaches the end of the text goes on with itself, so that a match always gives as many drafts as
    are wanted. The text lies on the device, and only new tokens travel there.
    """

    def __init__(
        self, max_num_reqs: int, num_speculative_tokens: int, min_tokens: int, max_tokens: int, device: torch.device
    ) -> None:
        self._num_drafts = num_speculative_tokens
        self._min_tokens, self._max_tokens = min_tokens, max_tokens
        self._device = device
        self._tokens = torch.zeros((max_num_reqs, _FIRST_CAPACITY), dtype=torch.int64, device=device)
        self._known = [0] * max_num_reqs

    def add_request(self, row: int, num_cached: int) -> None:
        """Forget what the row held."""
        self._known[row] = 0

    def propose(self, requests: Sequence[StepRequest]) -> Drafts:
        """Draft for the requests that want it; a request without a match gets none."""
        wanted = torch.tensor([request.num_drafts for request in requests], device=self._device)
        if not any(request.num_drafts for request in requests):
            return Drafts(wanted.new_full((len(requests), self._num_drafts), -1), wanted)
        lengths = [len(request.token_ids) if request.num_drafts else 0 for request in requests]
        self._write([request for request in requests if request.num_drafts], max(lengths))
        rows = torch.tensor([request.row for request in requests], device=self._device)
        return lookup(
            self._tokens[rows, : max(lengths)],
            torch.tensor(lengths, device=self._device),
            wanted,
            self._num_drafts,
            self._min_tokens,
            self._max_tokens,
        )

    def _write(self, requests: Sequence[StepRequest], longest: int) -> None:
        """Bring the tokens that are not there yet to the device."""
        capacity = self._tokens.shape[1]
        if longest > capacity:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, max(capacity, longest - capacity)))
        rows: list[int] = []
        columns: list[int] = []
        tokens: list[int] = []
        for request in requests:
            known, length = self._known[request.row], len(request.token_ids)
            rows += [request.row] * (length - known)
            columns += range(known, length)
            tokens += request.token_ids[known:]
            self._known[request.row] = length
        where = torch.tensor([rows, columns, tokens], device=self._device)
        self._tokens[where[0], where[1]] = where[2]


def lookup(
    tokens: Tensor, lengths: Tensor, wanted: Tensor, num_drafts: int, min_tokens: int, max_tokens: int
) -> Drafts:
    """Drafts by prompt lookup.

    Args:
        tokens: int64 [R, L], texts.
        lengths: int64 [R], of the texts; 0: nothing is looked up.
        wanted: int64 [R], drafts of each text, at most num_drafts.
        num_drafts: K, the width of the result.
        min_tokens: Of the suffix that is looked up.
        max_tokens: Of the suffix that is looked up.
    """
    length = tokens.shape[1]
    ends = torch.arange(1, length + 1, device=tokens.device)
    # Nothing is -1 before a text begins, nor -2 in the place of what a suffix lacks.
    windows = torch.nn.functional.pad(tokens, (max_tokens - 1, 0), value=-1).unfold(1, max_tokens, 1)
    places = lengths.unsqueeze(1) - torch.arange(max_tokens, 0, -1, device=tokens.device)
    suffix = torch.where(places < 0, -2, tokens.gather(1, places.clamp(min=0)))
    alike = (windows == suffix.unsqueeze(1)).flip(2).to(torch.uint8)
    # matched[r, j]: how many tokens before column j + 1 are those before the end of text r.
    matched = alike.cumprod(2, dtype=torch.uint8).sum(2) * (ends < lengths.unsqueeze(1))
    # The longest, then the latest.
    score = torch.where(matched >= min_tokens, matched * (length + 1) + ends, 0)
    best, column = score.max(1)
    start, found = column + 1, best > 0
    steps = torch.arange(num_drafts, device=tokens.device)
    period = (lengths - start).clamp(min=1).unsqueeze(1)
    at = start.unsqueeze(1) + steps % period
    num = torch.where(found, wanted, 0)
    drafts = tokens.gather(1, at.clamp(max=length - 1))
    return Drafts(torch.where(steps < num.unsqueeze(1), drafts, -1), num)
