"""The numbers that the draw needs of each request, in permanent rows."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import RowParams
from drawlot.params import SamplingParams

_DTYPES = {
    "temperature": np.float64,
    "top_k": np.int64,
    "top_p": np.float64,
    "min_p": np.float64,
    "seed": np.int64,
    "choice": np.int64,
}


def fresh_seed() -> int:
    """64 random bits, signed, from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def row_numbers(params: SamplingParams, vocab_size: int) -> tuple[float, int, float, float]:
    """temperature, top_k, top_p and min_p as `RowParams` wants them; a top_k that keeps everything is off."""
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    return params.temperature, top_k, params.top_p, params.min_p


class SamplingStates:
    """One column a parameter, one permanent row a request. The host stages writes; the device holds the truth."""

    def __init__(self, max_num_reqs: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self._host: dict[str, NDArray[np.generic]] = {
            name: np.zeros(max_num_reqs, dtype) for name, dtype in _DTYPES.items()
        }
        # On a CPU the device's columns are the host's memory, and a staged write is a write.
        self._columns = [torch.from_numpy(column).to(device) for column in self._host.values()]
        self._staged: set[int] = set()

    def add_request(self, req_idx: int, params: SamplingParams, choice_index: int) -> None:
        """Stage the numbers of one request."""
        seed = fresh_seed() if params.seed is None else params.seed
        numbers = *row_numbers(params, self.vocab_size), seed, choice_index
        for column, number in zip(self._host.values(), numbers):
            column[req_idx] = number
        self._staged.add(req_idx)

    def apply_staged_writes(self) -> None:
        """Bring what was staged to the device."""
        if self._staged and self.device.type != "cpu":
            rows = np.array(sorted(self._staged))
            index = torch.from_numpy(rows).to(self.device, non_blocking=True)
            for column, host in zip(self._columns, self._host.values()):
                column[index] = torch.from_numpy(host[rows]).to(self.device, non_blocking=True)
        self._staged.clear()

    def remove_request(self, req_idx: int) -> None:
        """Forget a request; its row may be given to another."""
        self._staged.discard(req_idx)

    def gather(self, expanded_idx_mapping: Tensor, positions: Tensor) -> RowParams:
        """The parameters of each row of logits [N]; rows mapped to -1 read row 0 and are skipped later."""
        index = expanded_idx_mapping.clamp(min=0)
        temperature, top_k, top_p, min_p, seed, choice = (column[index] for column in self._columns)
        return RowParams(temperature, top_k, top_p, min_p, seed, positions, choice, torch.zeros_like(positions))
