"""Logprobs of a row in the four modes, its top tokens, the ids asked for, and the rank of the drawn token."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, LogprobsWanted, RowParams
from drawlot.kernels.reference.filters import in_order, kept_set
from drawlot.kernels.reference.race import log_sum_exp

Line = tuple[NDArray[np.int64], NDArray[np.float32], int]


def logprobs_of(logits: Tensor, token_ids: Tensor, wanted: LogprobsWanted) -> tuple[Tensor, Tensor, Tensor]:
    """Raw logprobs of given tokens, nothing drawn: ids [N, C], logprobs [N, C], ranks [N]."""
    rows = logits.detach().float().cpu().numpy()
    lines = [
        _line(_raw(row, wanted.mode), in_order(row), i, int(token), wanted)
        for i, (row, token) in enumerate(zip(rows, token_ids.tolist()))
    ]
    ids, values, ranks = zip(*lines)
    device = logits.device
    stacked = torch.from_numpy(np.stack(ids)).to(device), torch.from_numpy(np.stack(values)).to(device)
    return *stacked, torch.tensor(ranks, device=device)


def row_logprobs(
    raw: NDArray[np.float32],
    values: NDArray[np.float32],
    i: int,
    token: int,
    params: RowParams,
    wanted: LogprobsWanted,
) -> Line:
    """Row i's line: the drawn token, then its top tokens or the ids it asked for.

    Args:
        raw: [V], the logits with the grammar bitmask alone.
        values: [V], the values of stage 2.
        i: Index of the row.
        token: The drawn token, -1 for a bad row.
        params: Of all rows.
        wanted: Of all rows.
    """
    if token < 0 or not wanted.wanted[i]:
        return np.full(wanted.columns, -1, np.int64), np.full(wanted.columns, -np.inf, np.float32), 0
    if wanted.mode.startswith("raw"):
        return _line(_raw(raw, wanted.mode), in_order(raw), i, token, wanted)
    temperature, top_k, top_p, min_p = (field[i].item() for field in params[:4])
    if temperature == 0:
        return _line(_raw(values, wanted.mode), in_order(values), i, token, wanted)
    kept = kept_set(values, temperature, int(top_k), top_p, min_p)
    result = np.full(len(values), -np.inf)
    if wanted.mode == "processed_logprobs":
        result[kept.ids] = kept.z - log_sum_exp(kept.z)
    else:
        largest = float(np.finfo(np.float32).max)
        scaled = values[kept.ids].astype(np.float64) / max(temperature, SMALLEST_TEMPERATURE)
        result[kept.ids] = np.clip(scaled, -largest, largest)
    return _line(result, kept.ids, i, token, wanted)


def _raw(row: NDArray[np.float32], mode: str) -> NDArray[np.float64]:
    """The row's log-softmax, or the row itself in the logits modes."""
    x = row.astype(np.float64)
    return x if mode.endswith("logits") else (x - x.max()) - np.log(np.exp(x - x.max()).sum())


def _line(result: NDArray[np.float64], order: NDArray[np.int64], i: int, token: int, wanted: LogprobsWanted) -> Line:
    """Picks the columns of one row out of `result` [V]; `order` lists the ids that have a probability, best first."""
    custom = wanted.token_ids[i].numpy()
    custom = custom[custom >= 0]
    chosen = custom if len(custom) else order[: int(wanted.num_top[i])]
    ids, values = np.full(wanted.columns, -1, np.int64), np.full(wanted.columns, -np.inf, np.float32)
    ids[0], ids[1 : 1 + len(chosen)] = token, chosen
    with np.errstate(over="ignore"):
        values[: 1 + len(chosen)] = result[ids[: 1 + len(chosen)]]
    before = np.flatnonzero(order == token)
    return ids, values, int(before[0]) + 1 if len(before) else len(order) + 1
