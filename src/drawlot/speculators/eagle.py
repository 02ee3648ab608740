"""An EAGLE-style head drafts from the target's hidden states; see `eagle_head`."""

import itertools
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from drawlot.speculators.chain import Last, draft_chains
from drawlot.speculators.interface import Drafts, Speculator, StepRequest
from drawlot.verification import DraftSampler


class PagedHead(Protocol):
    """The head on a paged cache. A token's entry, made of the state before it, lies in the token's slot."""

    def states(
        self,
        rows: Sequence[int],
        starts: Sequence[int],
        token_ids: Sequence[Sequence[int]],
        before: Tensor,
        num_following: int = 0,
    ) -> Tensor:
        """Compute the tokens of some rows from position `starts` >= 1 on.

        Args:
            rows: Of the block tables.
            starts: One for each row.
            token_ids: T in all.
            before: [T, D], the state at the position before each token: the target's, or the head's own.
            num_following: How many calls of `follow` may come for these rows.

        Returns:
            [T, D], the states expected at the tokens.
        """

    def follow(self, token_ids: Sequence[int], before: Tensor) -> Tensor:
        """Compute one token more of each row of the last call of `states`.

        Args:
            token_ids: One for each row.
            before: [R, D], the head's own state at the position before each.

        Returns:
            [R, D], the states expected at the tokens.
        """

    def logits(self, states: Tensor) -> Tensor:
        """[N, V], what the target's `lm_head` makes of states [N, D]."""

    def keep_block_ends(self, row: int, start: int, states: Tensor) -> None:
        """Keep, of the target's states [T, D] at positions `start` and after, those at the ends of blocks."""

    def block_end(self, row: int, position: int) -> Tensor:
        """[D], the target's state at a position that ends a block of the row."""

    def clear(self, blocks: Tensor) -> None:
        """Zero blocks int64 [N] of the cache."""


class Eagle(Speculator):
    """Feeds the head with the target's states as far as they are known, then drafts with the head's own.

    `_filled[row]` tokens have their entry, made of the target's states; `_states[row]` [.., D] are the target's states
    from the last of these tokens on.
    """

    reads_hidden_states = True

    def __init__(self, head: PagedHead, sampler: DraftSampler) -> None:
        self._head = head
        self._sampler = sampler
        self._filled: dict[int, int] = {}
        self._states: dict[int, Tensor] = {}

    def add_request(self, row: int, num_cached: int) -> None:
        """Begin after what the prefix cache holds; the first token of a text has no state before it, and no entry."""
        self._filled[row] = max(1, num_cached)
        self._states.pop(row, None)
        if num_cached:
            self._states[row] = self._head.block_end(row, num_cached - 1).unsqueeze(0)

    def propose(self, requests: Sequence[StepRequest]) -> Drafts:
        """Fill up to the last token, then draft."""
        drafting = [request for request in requests if request.num_drafts]
        ends = [len(request.token_ids) for request in drafting]
        self._announce(drafting, 0)
        self._last = self._fill(drafting, ends, self._announced)
        logits = None if self._last is None else self._head.logits(self._last)
        return draft_chains(requests, logits, self._follow, self._sampler)

    def observe(self, requests: Sequence[StepRequest], hidden_states: Tensor) -> None:
        """Take the new states, and fill what the target has computed."""
        offset = 0
        for request in requests:
            row, start = request.row, request.start
            count = request.end - start + request.num_drafts
            new = hidden_states[offset : offset + count]
            offset += count
            self._head.keep_block_ends(row, start, new)
            # States of rejected drafts give way to those at the same positions.
            known = max(0, start - self._filled[row] + 1)
            self._states[row] = torch.cat([self._states[row][:known], new]) if known else new
        self._fill(requests, [request.end for request in requests])

    def clear(self, blocks: Tensor) -> None:
        """Zero blocks of the cache."""
        self._head.clear(blocks)

    def _fill(self, requests: Sequence[StepRequest], ends: Sequence[int], num_following: int = 0) -> Tensor | None:
        """Make the missing entries before `ends`; [those that missed some, D], what the head expects at the last."""
        rows: list[int] = []
        starts: list[int] = []
        token_ids: list[Sequence[int]] = []
        before: list[Tensor] = []
        for request, end in zip(requests, ends):
            row, start = request.row, self._filled[request.row]
            if end > start:
                rows.append(row)
                starts.append(start)
                token_ids.append(request.token_ids[start:end])
                before.append(self._states[row][: end - start])
                self._states[row] = self._states[row][end - start :]
                self._filled[row] = end
        if not rows:
            return None
        states = self._head.states(rows, starts, token_ids, torch.cat(before), num_following)
        last = [end - 1 for end in itertools.accumulate(map(len, token_ids))]
        return states[torch.tensor(last, device=states.device)]

    def _follow(self, last: Sequence[Last]) -> Tensor:
        assert self._last is not None
        ids = [each.token_id for each in last]
        if len(last) == len(self._last) and self._announced:
            self._announced -= 1
            self._last = self._head.follow(ids, self._last)
        else:
            lines = torch.tensor([each.line for each in last], device=self._last.device)
            drafted = last[0].position + 1 - len(last[0].request.token_ids)
            self._announce([each.request for each in last], drafted)
            self._last = self._head.states(
                [each.request.row for each in last],
                [each.position for each in last],
                [[token_id] for token_id in ids],
                self._last[lines],
                self._announced,
            )
        return self._head.logits(self._last)

    def _announce(self, requests: Sequence[StepRequest], drafted: int) -> None:
        """Find how many tokens all of the requests are sure to let follow the one that is next."""
        self._announced = max(0, min((request.num_drafts for request in requests), default=0) - drafted - 1)
