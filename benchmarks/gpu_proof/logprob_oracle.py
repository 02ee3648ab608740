"""Logprobs, top tokens and ranks of given tokens by the shortest road: sorted rows, float64, any device."""

import torch
from torch import Tensor

from benchmarks.gpu_proof.oracle import chunks, kept_tokens, values_of
from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, Edits, LogprobsWanted, RowParams

_FLOAT32_MAX = torch.finfo(torch.float32).max


def logprobs(
    logits: Tensor, params: RowParams, edits: Edits, token_ids: Tensor, wanted: LogprobsWanted
) -> tuple[Tensor, Tensor, Tensor]:
    """The columns of rows that drew token_ids [N]: ids int64 [N, C], logprobs float64 [N, C], ranks int64 [N]."""
    parts, start = [], 0
    for some_logits, some_params, some_edits in chunks(logits, params, edits):
        rows = slice(start, start + len(some_logits))
        parts.append(_columns(some_logits, some_params, some_edits, token_ids[rows], wanted.pick(rows)))
        start = rows.stop
    ids, values, ranks = (torch.cat(column) for column in zip(*parts))
    return ids, values, ranks


def _columns(
    logits: Tensor, params: RowParams, edits: Edits, tokens: Tensor, wanted: LogprobsWanted
) -> tuple[Tensor, Tensor, Tensor]:
    order, results = _results(logits, params, edits, wanted.mode)
    # Ids that have no probability stand at the end of the order, with -inf.
    by_id = torch.empty_like(results).scatter_(1, order, results)
    place = torch.arange(order.shape[1], device=order.device)
    use = wanted.wanted & (tokens >= 0)

    ids = torch.full((len(logits), wanted.columns), -1, device=logits.device)
    ids[:, 0] = tokens
    top = min(wanted.max_top, order.shape[1])
    listed = (place < wanted.num_top.unsqueeze(1)) & (results > -torch.inf)
    ids[:, 1 : 1 + top] = torch.where(listed, order, -1)[:, :top]
    if wanted.token_ids.shape[1]:
        custom = wanted.token_ids
        ids[:, 1 : 1 + custom.shape[1]] = torch.where(custom[:, :1] >= 0, custom, ids[:, 1 : 1 + custom.shape[1]])
    ids[~use] = -1
    values = torch.where(ids >= 0, by_id.gather(1, ids.clamp(min=0)), -torch.inf)

    own = order == tokens.unsqueeze(1)
    listed_before = torch.where(own & (results > -torch.inf), place, order.shape[1]).amin(1)
    # A drawn token without a probability in this mode comes after all that have one.
    ranks = 1 + torch.minimum(listed_before, (results > -torch.inf).sum(1))
    return ids, values, torch.where(use, ranks, 0)


def _results(logits: Tensor, params: RowParams, edits: Edits, mode: str) -> tuple[Tensor, Tensor]:
    """The order of a mode, ids [N, V], and what it reports of each id, float64 [N, V] in that order."""
    raw, values, _ = values_of(logits, edits)
    as_is = params._replace(
        temperature=torch.ones_like(params.temperature),
        top_k=torch.zeros_like(params.top_k),
        top_p=torch.ones_like(params.top_p),
        min_p=torch.zeros_like(params.min_p),
    )
    if mode.startswith("raw"):
        bad = (raw.isnan() | (raw == torch.inf)).any(1) | (raw == -torch.inf).all(1)
        values, params = (raw + 0.0).masked_fill(bad.unsqueeze(1), 0.0), as_is
    else:
        greedy = params.temperature == 0
        params = type(params)(*(torch.where(greedy, off, own) for own, off in zip(params, as_is)))
    ids, z, _ = kept_tokens(values, params)
    if mode.endswith("logprobs"):
        return ids, z - z.logsumexp(1, keepdim=True)
    x = values.double().gather(1, ids) / params.temperature.clamp(min=SMALLEST_TEMPERATURE).unsqueeze(1)
    x = x if mode == "raw_logits" else x.clamp(-_FLOAT32_MAX, _FLOAT32_MAX)
    return ids, torch.where(z > -torch.inf, x, -torch.inf)
