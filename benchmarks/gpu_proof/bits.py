"""Outputs compared bit for bit."""

import torch
from torch import Tensor

from drawlot import RowStatus, SamplerOutput
from drawlot.kernels.inputs import SampledRows


def outputs(rows: SampledRows) -> dict[str, Tensor]:
    """What a draw returned, by name; margins apart."""
    named = {"tokens": rows.token_ids, "status": rows.status}
    if rows.logprobs is not None:
        named |= dict(zip(("ids", "logprobs", "ranks"), rows.logprobs))
    return named


def picked(rows: SampledRows, index: Tensor | slice) -> SampledRows:
    """Some rows of what was drawn."""
    logprobs = rows.logprobs and tuple(column[index] for column in rows.logprobs)
    return SampledRows(rows.token_ids[index], rows.status[index], logprobs)


def drawn_rows(out: SamplerOutput) -> SampledRows:
    """A copy of what a sampler drew, without rows of no request: their logprobs are nobody's, their tokens are -1.

    A copy, since a sampler may write its next outputs to the same memory.
    """
    skipped = out.status == int(RowStatus.SKIPPED)
    assert bool((out.token_ids[skipped] == -1).all())
    columns = None if out.logprobs is None else out.logprobs[:3]
    return picked(SampledRows(out.token_ids, out.status, columns), ~skipped)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Shape, dtype and every bit; NaN equals NaN."""
    same = a.shape == b.shape and a.dtype == b.dtype
    return same and torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def differing_but_for_rounding(a: SampledRows, b: SampledRows) -> list[str]:
    """As `differing`; but where rows lie elsewhere in memory, sums of floats may be made in another order."""
    found = set(differing(a, b))
    if "logprobs" in found and a.logprobs is not None and b.logprobs is not None:
        mine, other = a.logprobs[1], b.logprobs[1]
        close = (mine == other) | ((mine - other).abs() <= 1e-6 * other.abs().clamp(min=1))
        if bool(close.all()):
            found.remove("logprobs")
    return sorted(found)


def differing(a: SampledRows, b: SampledRows) -> list[str]:
    """The outputs that are not the same."""
    mine, other = outputs(a), outputs(b)
    if mine.keys() != other.keys():
        return ["which outputs there are"]
    return [name for name in mine if not same_bits(mine[name], other[name])]
