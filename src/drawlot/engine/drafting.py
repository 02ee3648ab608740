"""Drafts of a step: what a speculator proposes, and what a verifier makes of it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot.engine.drawing import Drawn, verified
from drawlot.engine.scheduler import Chunk
from drawlot.engine.wanted_rows import DraftedChunk, WantedRows
from drawlot.outputs import LogitsRows, VerifierOutput
from drawlot.speculators.interface import Drafts, Speculator, StepRequest
from drawlot.verification import RejectionSampler


class Verification(NamedTuple):
    """What a verifier was given and made of it, for whoever measures; shapes as in `RejectionSampler`."""

    logits: Tensor
    rows: LogitsRows
    draft_token_ids: Tensor
    drafts: Drafts
    output: VerifierOutput


class Drafting:
    """A speculator and the verifier of its drafts."""

    def __init__(self, speculator: Speculator, verifier: RejectionSampler) -> None:
        self.speculator = speculator
        self.verifier = verifier
        self.on_verified: Callable[[Verification], None] | None = None
        """Is shown every verification"""
        self._drafts: Drafts | None = None

    def propose(self, chunks: Sequence[Chunk]) -> list[DraftedChunk]:
        """Drafts for the chunks of a step, before its forward."""
        self._drafts = self.speculator.propose([_request(chunk, chunk.num_drafts) for chunk in chunks])
        ids = self._drafts.token_ids.tolist()
        counts = self._drafts.num_drafts.tolist()
        return [DraftedChunk(chunk, row[:count]) for chunk, row, count in zip(chunks, ids, counts)]

    def observe(self, drafted: Sequence[DraftedChunk], hidden_states: Tensor) -> None:
        """Show the speculator the target's states [T, D] of a forward; `drafted` in the order of the flat batch."""
        self.speculator.observe([_request(each.chunk, len(each.draft_ids)) for each in drafted], hidden_states)

    def verify(self, logits: Tensor, wanted: WantedRows, staged: Sequence[Tensor]) -> Drawn:
        """Emit tokens for the choices that draw, with and without drafts; logits [N, V]."""
        assert self._drafts is not None
        drafts = [list(each.draft_ids) for each in wanted.drawing]
        width = self.verifier.num_speculative_tokens
        padded = [ids + [-1] * (width - len(ids)) for ids in drafts]
        rows = LogitsRows(
            idx_mapping=staged[wanted.state_rows],
            expanded_idx_mapping=staged[wanted.expanded_state_rows],
            local_positions=staged[wanted.local_positions],
            positions=staged[wanted.positions],
            input_ids=staged[wanted.input_ids],
            cu_num_logits=staged[wanted.first_rows].to(torch.int32),
        )
        draft_token_ids = torch.tensor(padded, device=logits.device)
        out = self.verifier(logits, rows, draft_token_ids, self._drafts.logits, self._drafts.lse)
        if self.on_verified is not None:
            self.on_verified(Verification(logits, rows, draft_token_ids, self._drafts, out))
        self.verifier.sampler.commit(rows.idx_mapping, out.sampled_token_ids, out.num_sampled)
        choices = [each.chunk.choice for each in wanted.drawing]
        return verified(choices, [len(ids) for ids in drafts], out)


def _request(chunk: Chunk, num_drafts: int) -> StepRequest:
    choice = chunk.choice
    return StepRequest(choice.row, choice.token_ids, choice.num_computed, chunk.end, num_drafts)
