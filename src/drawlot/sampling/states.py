"""The numbers that the draw needs of each request, in permanent rows."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import BatchFacts, RowParams
from drawlot.params import SamplingParams


def fresh_seed() -> int:
    """64 random bits, signed, from torch's global generator."""
    return int(torch.empty((), dtype=torch.int64).random_(-(2**63), None))


def row_numbers(params: SamplingParams, vocab_size: int) -> tuple[float, int, float, float]:
    """temperature, top_k, top_p and min_p as `RowParams` wants them; a top_k that keeps everything is off."""
    top_k = params.top_k if 0 < params.top_k < vocab_size else 0
    return params.temperature, top_k, params.top_p, params.min_p


def batch_facts(floats: NDArray[np.float64], top_k: NDArray[np.int64], seeded: NDArray[np.bool_]) -> BatchFacts:
    """The facts of N rows: floats [3, N] are temperature, top_p and min_p."""
    temperature, top_p, min_p = floats
    return BatchFacts(
        greedy=bool((temperature == 0).any()),
        seeded=bool(seeded.any()),
        filtered=bool((top_k > 0).any() or (top_p < 1).any()),
        min_p=bool((min_p > 0).any()),
        tempered=bool((temperature != 1).any()),
    )


class SamplingStates:
    """One column a request, in permanent places. The host stages writes; the device holds the truth."""

    def __init__(self, max_num_reqs: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        # Few tables, so that a step gathers twice: temperature, top_p, min_p; and top_k, seed, choice.
        self._host = np.zeros((3, max_num_reqs)), np.zeros((3, max_num_reqs), np.int64)
        # On a CPU the device's tables are the host's memory, and a staged write is a write.
        self._floats, self._ints = (torch.from_numpy(table).to(device) for table in self._host)
        self._seeded = np.zeros(max_num_reqs, np.bool_)
        self._staged: set[int] = set()

    def add_request(self, req_idx: int, params: SamplingParams, choice_index: int) -> None:
        """Stage the numbers of one request."""
        temperature, top_k, top_p, min_p = row_numbers(params, self.vocab_size)
        seed = fresh_seed() if params.seed is None else params.seed
        floats, ints = self._host
        floats[:, req_idx] = temperature, top_p, min_p
        ints[:, req_idx] = top_k, seed, choice_index
        self._seeded[req_idx] = params.seed is not None
        self._staged.add(req_idx)

    def apply_staged_writes(self) -> None:
        """Bring what was staged to the device."""
        if self._staged and self.device.type != "cpu":
            staged = np.array(sorted(self._staged))
            index = torch.from_numpy(staged).to(self.device, non_blocking=True)
            for table, host in zip((self._floats, self._ints), self._host):
                table[:, index] = torch.from_numpy(host[:, staged]).to(self.device, non_blocking=True)
        self._staged.clear()

    def remove_request(self, req_idx: int) -> None:
        """Forget a request; its place may be given to another."""
        self._staged.discard(req_idx)

    def gather(self, expanded_idx_mapping: Tensor, positions: Tensor) -> RowParams:
        """The parameters of each row of logits [N]; rows mapped to -1 read place 0 and are skipped later."""
        index = expanded_idx_mapping.clamp(min=0)
        temperature, top_p, min_p = self._floats.index_select(1, index).unbind()
        top_k, seed, choice = self._ints.index_select(1, index).unbind()
        return RowParams(temperature, top_k, top_p, min_p, seed, positions, choice, torch.zeros_like(positions))

    def facts(self, state_rows: Sequence[int]) -> BatchFacts:
        """What the host knows of a batch; -1 is a row to skip."""
        index = np.array([row for row in state_rows if row >= 0], np.int64)
        floats, ints = self._host
        return batch_facts(floats[:, index], ints[0, index], self._seeded[index])
