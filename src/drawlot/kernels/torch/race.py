"""The draw: a race over tiles of 128 ids, then a race inside the winning tile."""

import torch
from torch import Tensor

from drawlot import rng
from drawlot.kernels.inputs import RowParams
from drawlot.rng import Stream


def race(ids: Tensor, z: Tensor, params: RowParams, stream: Stream) -> Tensor:
    """int64 [N]: the id with the largest z + noise in each row, the lower id among equals.

    Args:
        ids: int64 [N, M], tile or token ids.
        z: float32 or float64 [N, M], the noise takes its dtype; -inf never wins beside a finite entry.
        params: Of these rows.
        stream: The purpose of the draw.
    """
    seed, position, choice, row = (field.unsqueeze(1) for field in params[4:])
    noise = rng.gumbel_noise(ids, seed, position, stream, choice, row, wide=z.dtype == torch.float64)
    return first_largest(ids, z + noise)


def first_largest(ids: Tensor, keys: Tensor) -> Tensor:
    """int64 [N]: the lowest of the ids [N, M] whose key [N, M] is the row's largest."""
    # torch.argmax leaves open which of several largest entries it returns.
    largest = keys == keys.amax(1, keepdim=True)
    return torch.where(largest, ids, torch.iinfo(torch.int64).max).amin(1)
