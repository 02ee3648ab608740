"""From a step's logits to tokens on the host."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot.engine.request import Choice
from drawlot.outputs import LogitsRows, LogprobsTensors, SamplerOutput, VerifierOutput
from drawlot.sampling import Sampler


class DrawnTokens(NamedTuple):
    """What a step has drawn for one choice."""

    choice: Choice
    token_ids: Sequence[int]
    status: int
    """Of the row that should have given one more token, and did not"""
    first_row: int
    """Of the logprobs"""
    num_drafts: int = 0
    num_accepted: int = 0


class Drawn(NamedTuple):
    """What a step has drawn, on the host."""

    choices: Sequence[DrawnTokens] = ()
    logprobs: LogprobsTensors | None = None


def one_row_each(state_rows: Tensor, positions: Tensor, input_ids: Tensor) -> LogitsRows:
    """One row of logits for each state row; all int64 [N]."""
    return LogitsRows(
        idx_mapping=state_rows,
        expanded_idx_mapping=state_rows,
        local_positions=torch.zeros_like(state_rows),
        positions=positions,
        input_ids=input_ids,
        cu_num_logits=torch.arange(len(state_rows) + 1, dtype=torch.int32, device=state_rows.device),
    )


def draw(sampler: Sampler, logits: Tensor, rows: LogitsRows) -> SamplerOutput:
    """Draw a token for each row [N, V] and let the sampler know that it was emitted."""
    out = sampler(logits, rows)
    sampler.commit(rows.idx_mapping, out.token_ids.unsqueeze(1), (out.token_ids >= 0).to(torch.int32))
    return out


class DrawnCopy:
    """What was drawn for some choices, on its way to the host; rows after theirs are padding."""

    def __init__(self, choices: Sequence[Choice], out: SamplerOutput) -> None:
        self._choices = choices
        logprobs = () if out.logprobs is None else out.logprobs[:3]
        self._copy = HostCopy(*(tensor[: len(choices)] for tensor in (out.token_ids, out.status, *logprobs)))

    def wait(self) -> Drawn:
        """The copy, once it is there."""
        token_ids, status, *columns = self._copy.wait()
        rows = enumerate(zip(self._choices, token_ids.tolist(), status.tolist()))
        drawn = [DrawnTokens(choice, () if flags else (token,), flags, row) for row, (choice, token, flags) in rows]
        return Drawn(drawn, LogprobsTensors(*columns) if columns else None)


def verified(choices: Sequence[Choice], num_drafts: Sequence[int], out: VerifierOutput) -> Drawn:
    """What a verifier has emitted for some choices; each has num_drafts + 1 rows of logprobs and status."""
    logprobs = () if out.logprobs is None else out.logprobs[:3]
    copy = HostCopy(out.sampled_token_ids, out.num_sampled, out.num_accepted, out.status, *logprobs)
    token_ids, sampled, accepted, status, *columns = copy.wait()
    flags, drawn, first = status.tolist(), [], 0
    for choice, drafts, ids, emitted, kept in zip(
        choices, num_drafts, token_ids.tolist(), sampled.tolist(), accepted.tolist()
    ):
        # Without a token of its own after the accepted ones, the row that should have given it was bad.
        bad = flags[first + kept] if emitted == kept else 0
        drawn.append(DrawnTokens(choice, ids[:emitted], bad, first, drafts, kept))
        first += drafts + 1
    return Drawn(drawn, LogprobsTensors(*columns) if columns else None)


class HostCopy:
    """Copies of tensors, on their way to the host."""

    def __init__(self, *tensors: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._hosts = list(tensors)
        if tensors[0].is_cuda:
            self._hosts = [torch.empty_like(tensor, device="cpu", pin_memory=True) for tensor in tensors]
            for host, tensor in zip(self._hosts, tensors):
                host.copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.current_stream(tensors[0].device).record_event()

    def wait(self) -> list[Tensor]:
        """The tensors on the host, after a single wait."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._hosts
