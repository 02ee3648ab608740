"""Stages 1 and 2 on whole rows, and the tempered rows that FlashInfer reads."""

import torch
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, BatchFacts, Edits, RowParams


def edited(logits: Tensor, edits: Edits) -> Tensor:
    """The values [N, V] of stage 2: the logits themselves where nothing edits them, else a float32 copy."""
    if edits.bitmask is None and not edits.beyond_bitmask:
        return logits
    values = torch.empty(logits.shape, dtype=torch.float32, device=logits.device).copy_(logits)
    if edits.bitmask is not None:
        _mask(values, edits.bitmask)
    if edits.allowed is not None:
        rows, ids = edits.allowed
        kept = values[rows, ids]
        restricted = torch.zeros(len(values), dtype=torch.bool, device=values.device).index_fill_(0, rows, True)
        values.masked_fill_(restricted.unsqueeze(1), -torch.inf)
        values[rows, ids] = kept
    if edits.masked is not None:
        values[edits.masked] = -torch.inf
    if edits.bias is not None:
        values[edits.bias.rows, edits.bias.ids] += edits.bias.values
    if edits.penalties is not None:
        where, repetition = (edits.penalties.rows, edits.penalties.ids), edits.penalties.repetition
        x = values[where]
        x = torch.where(x > 0, x / repetition, x * repetition)
        values[where] = x - edits.penalties.subtract - edits.penalties.subtract_once
    return values


def _mask(values: Tensor, bitmask: Tensor) -> None:
    # Bytes, not words: a quarter of the memory. Byte j of a word holds its ids 8 j .. 8 j + 7.
    bits = torch.arange(8, dtype=torch.uint8, device=values.device)
    allowed = (bitmask.contiguous().view(torch.uint8).unsqueeze(2) >> bits).bitwise_and_(1).flatten(1)
    values.masked_fill_(allowed[:, : values.shape[1]] == 0, -torch.inf)


def tempered(values: Tensor, row_max: Tensor, params: RowParams, facts: BatchFacts, *, own: bool) -> Tensor:
    """Float32 rows, contiguous, whose softmax is the law before top_k and top_p.

    Args:
        values: [N, V], returned as they are if they will do.
        row_max: float32 [N], theirs.
        params: Of the rows.
        facts: Of the batch.
        own: The values may be overwritten; otherwise the result has memory of its own, the only copy that is made.
    """
    as_they_are = values.dtype == torch.float32 and values.is_contiguous()
    if as_they_are and not facts.tempered and not facts.min_p:
        return values
    # The maximum first: dividing first would tie distinct values.
    z = torch.sub(values, row_max.unsqueeze(1), out=values if own else None)
    if facts.tempered:
        scale = (1 / params.temperature).clamp(SMALLEST_TEMPERATURE, 1 / SMALLEST_TEMPERATURE).to(torch.float32)
        z.mul_(scale.unsqueeze(1))
    if facts.min_p:
        z.masked_fill_(z < params.min_p.log().to(torch.float32).unsqueeze(1), -torch.inf)
    return z
