"""Drafting one token after another: what the speculators with a network share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot.speculators.interface import Drafts, StepRequest
from drawlot.verification import DraftSampler


class Last(NamedTuple):
    """A draft that others are to follow."""

    request: StepRequest
    line: int
    """Of the logits that it was drawn from"""
    token_id: int
    position: int
    """Of the draft in prompt + output"""


def draft_chains(
    requests: Sequence[StepRequest],
    logits: Tensor | None,
    follow: Callable[[Sequence[Last]], Tensor],
    sampler: DraftSampler,
) -> Drafts:
    """Draft for the requests that want it.

    Args:
        requests: Of the step, R of them.
        logits: For the first draft, [those that want drafts, V]; None if none does.
        follow: Gives the logits after some drafts, a line for each.
        sampler: Draws, and keeps what the drafts were drawn from.
    """
    num_drafts = sampler.num_speculative_tokens
    device = sampler.sampler.device
    chains: dict[int, list[int]] = {request.row: [] for request in requests}
    drafting = [request for request in requests if request.num_drafts]
    rows = anchors = torch.empty(0)
    for step in range(num_drafts):
        if not drafting or logits is None:
            break
        if len(rows) != len(drafting):
            # Otherwise they are the requests of the draft before.
            where = [(request.row, len(request.token_ids)) for request in drafting]
            rows, anchors = torch.tensor(where, device=device).T.contiguous()
        drawn = sampler.draw(logits, rows, anchors, step).tolist()
        last = []
        for line, (request, token_id) in enumerate(zip(drafting, drawn)):
            # A row of the drafter's that is not finite ends its chain.
            if token_id >= 0:
                chains[request.row].append(token_id)
                if step + 1 < request.num_drafts:
                    last.append(Last(request, line, token_id, len(request.token_ids) + step))
        drafting = [each.request for each in last]
        logits = follow(last) if last else None
    ids = [chains[request.row] for request in requests]
    padded = torch.tensor([chain + [-1] * (num_drafts - len(chain)) for chain in ids], device=device)
    counts = torch.tensor([len(chain) for chain in ids], device=device)
    return Drafts(padded, counts, sampler.draft_logits, sampler.draft_lse)
