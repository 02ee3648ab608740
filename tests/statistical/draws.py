"""Draws by `drawlot.sample` on the torch backend, and the laws they must follow, worked out the slow way."""

import numpy as np
import torch

from drawlot import SamplingParams, sample

EMPTY = float("-inf")
# Rows of a call: millions would need gigabytes.
PART = 1 << 18


def tokens_of(logits, n, *, start=0, positions=None, choice=0, fp64=False, **params):
    """n tokens of one row of logits at positions start .. start + n - 1."""
    row = torch.as_tensor(logits)
    row = row.float() if row.dtype == torch.float64 else row
    params = SamplingParams(**{"seed": 2024, **params})
    positions = torch.arange(start, start + n) if positions is None else positions
    options = {"choice_index": choice, "use_fp64_gumbel": fp64, "backend": "torch"}
    parts = [
        sample(row.expand(len(part), -1), params, positions=part, **options).token_ids for part in positions.split(PART)
    ]
    return torch.cat(parts).numpy()


def counts_of(tokens, law):
    return np.bincount(tokens, minlength=len(law))


def pair_table(first, second, bins=16):
    return np.bincount(first * bins + second, minlength=bins * bins).reshape(bins, bins)


def law_of(logits, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The processed distribution, float64: section 1 of docs/semantics.md as its sentences stand there."""
    x = torch.as_tensor(logits).double().numpy()
    p = np.exp((x - x.max()) / temperature)
    order = np.lexsort((np.arange(len(x)), -x))
    keep = len(x)
    if min_p > 0:
        keep = min(keep, int((p >= min_p).sum()))
    if top_k > 0:
        keep = min(keep, top_k)
    if top_p < 1:
        mass = p[order].cumsum()
        keep = min(keep, int((mass < top_p * mass[keep - 1]).sum()) + 1)
    p[order[keep:]] = 0
    return p / p.sum()
