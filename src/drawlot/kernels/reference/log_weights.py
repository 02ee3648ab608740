"""What a draw with given parameters draws from, written out: for drafters, whose laws a verification has to know."""

import numpy as np
import torch
from torch import Tensor

from drawlot.kernels.inputs import Edits, RowParams
from drawlot.kernels.reference.sample import on_cpu, processed


def log_weights(logits: Tensor, params: RowParams) -> Tensor:
    """float32 [N, V]: z of the kept tokens of each row, -inf elsewhere; a bad row keeps nothing."""
    rows, params, edits = on_cpu(logits, params, Edits())
    weights = np.full(rows.shape, -np.inf, np.float32)
    for i, row in enumerate(rows):
        _, kept = processed(row.float().numpy(), i, params, edits)
        if kept is not None:
            with np.errstate(over="ignore"):
                weights[i, kept.ids] = kept.z
    return torch.from_numpy(weights).to(logits.device)
