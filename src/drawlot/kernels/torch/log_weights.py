"""What a draw with given parameters draws from, written out: for drafters, whose laws a verification has to know."""

import numpy as np
import torch
from torch import Tensor

from drawlot.kernels.inputs import Edits, RowParams
from drawlot.kernels.torch.draw import settle
from drawlot.kernels.torch.sample import rows_at_once
from drawlot.kernels.torch.scanned import scan_rows
from drawlot.kernels.torch.tiles import Cut
from drawlot.rng import DRAFT


def log_weights(logits: Tensor, params: RowParams) -> Tensor:
    """float32 [N, V]: z of the kept tokens of each row, -inf elsewhere; a bad row keeps nothing."""
    weights = torch.empty(logits.shape, device=logits.device)
    step = rows_at_once(logits.shape[1])
    for start in range(0, len(logits), step):
        rows = slice(start, min(len(logits), start + step))
        weights[rows] = _of_chunk(logits[rows], params.pick(rows))
    return weights


@np.errstate(over="ignore", divide="ignore")  # as in `sample_rows`
def _of_chunk(logits: Tensor, params: RowParams) -> Tensor:
    device = logits.device
    scanned = scan_rows(logits, params, Edits(), None)
    rows, good = scanned.rows, scanned.status == 0
    cut = Cut.nowhere(len(logits))
    index = np.flatnonzero(good & (scanned.greedy | rows.filters.some_on))
    if len(index):
        # Some cuts are found on the way to a token, which is not used.
        drawn, _ = settle(rows.pick(index), scanned.greedy[index], DRAFT)
        cut.value[index], cut.id[index] = drawn.cut
    row_max, temperature, value, last = (
        torch.from_numpy(column).to(device).unsqueeze(1) for column in (rows.row_max, rows.temperature, *cut)
    )
    x = scanned.raw.flatten(1)[:, : logits.shape[1]]
    kept = (x > value) | ((x == value) & (torch.arange(x.shape[1], device=device) <= last))
    kept &= torch.from_numpy(good).to(device).unsqueeze(1)
    # In float64, as the draw has it, then rounded once.
    z = (x.double() - row_max) / temperature
    return torch.where(kept, z, -torch.inf).to(torch.float32)
