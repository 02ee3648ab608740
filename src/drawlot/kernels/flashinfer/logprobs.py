"""Logprobs, which drawlot's own backend computes from the same logits."""

from torch import Tensor

from drawlot.kernels.flashinfer.edits import edited
from drawlot.kernels.inputs import Edits, LogprobsWanted
from drawlot.kernels.registry import own_backend


def logprobs_of(logits: Tensor, token_ids: Tensor, wanted: LogprobsWanted) -> tuple[Tensor, Tensor, Tensor]:
    """Raw logprobs of given tokens [N] of logits [N, V], nothing drawn: ids [N, C], logprobs [N, C], ranks [N]."""
    return own_backend(logits.device).logprobs_of(logits, token_ids, wanted)


def drawn_logprobs(
    logits: Tensor, bitmask: Tensor | None, token_ids: Tensor, wanted: LogprobsWanted
) -> tuple[Tensor, Tensor, Tensor]:
    """Raw logprobs of drawn tokens [N], -1 for a bad row, whose cells stay unused."""
    good = token_ids >= 0
    masked = edited(logits, Edits(bitmask))
    return logprobs_of(masked, token_ids.clamp(min=0), wanted._replace(wanted=wanted.wanted & good))
