"""A case with its tensors: logits in several buffers, parameters, and a history for the penalties."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.cases import Case
from drawlot.entrypoints.sampler_benchmark.distributions import DISTRIBUTIONS
from drawlot.entrypoints.sampler_benchmark.mixes import ALLOWED_SHARE, row_params
from drawlot.outputs import LogitsRows
from drawlot.params import SamplingParams
from drawlot.sampling import Sampler

PROMPT, OUTPUT = 256, 256
"""Tokens before each row"""
TIMES_CACHE = 4
"""All buffers together are so many times as large as the last cache, so that each call reads memory."""


@dataclass
class Workload:
    """What providers are given; V is the case's vocabulary, N its rows."""

    case: Case
    buffers: list[Tensor]
    """Each [N, V] of the case's dtype, contiguous"""
    history: Tensor
    """int64 [N, PROMPT + OUTPUT], on the CPU"""

    @cached_property
    def params(self) -> list[SamplingParams]:
        """Of each row."""
        return row_params(self.case.mix, self.case.rows, self.case.vocab_size)

    @property
    def device(self) -> torch.device:
        """Where everything is drawn."""
        return self.buffers[0].device

    @property
    def bytes(self) -> int:
        """One read of the rows."""
        return self.buffers[0].nbytes

    @cached_property
    def rows(self) -> LogitsRows:
        """One row a request, all at the same position."""
        n = self.case.rows
        index = torch.arange(n, device=self.device)
        none = torch.zeros_like(index)
        cu_num_logits = torch.arange(n + 1, dtype=torch.int32, device=self.device)
        return LogitsRows(index, index, none, torch.full_like(index, PROMPT + OUTPUT), none, cu_num_logits, range(n))

    @cached_property
    def allowed(self) -> Tensor | None:
        """bool [N, V]: what a grammar lets each row draw, ids at random and the first one; None: there is none."""
        share = ALLOWED_SHARE.get(self.case.mix)
        if share is None:
            return None
        generator = torch.Generator().manual_seed(2)
        allowed = torch.rand(self.case.rows, self.case.vocab_size, generator=generator) < share
        allowed[:, 0] = True
        return allowed.to(self.device)

    @cached_property
    def bitmask(self) -> Tensor | None:
        """The same as int32 [N, ceil(V / 32)], which a sampler is given."""
        if self.allowed is None:
            return None
        bits = np.pad(self.allowed.cpu().numpy(), ((0, 0), (0, -self.case.vocab_size % 32)))
        return torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32)).to(self.device)

    def sampler(self, backend: str) -> Sampler:
        """A sampler that holds the requests."""
        sampler = Sampler(self.case.rows, self.case.vocab_size, device=self.device, backend=backend)
        history = self.history.tolist()
        for i, params in enumerate(self.params):
            sampler.add_request(i, params, history[i][:PROMPT], history[i][PROMPT:])
        return sampler

    def column(self, name: str, dtype: torch.dtype) -> Tensor:
        """[N]: one parameter of each row."""
        return torch.tensor([getattr(params, name) for params in self.params], dtype=dtype, device=self.device)

    def some(self, name: str, off: float) -> bool:
        """Whether a row has the parameter on."""
        return any(getattr(params, name) != off for params in self.params)


def make(case: Case, device: torch.device, recorded: Tensor | None = None) -> Workload:
    """The same tensors in every run on the same kind of device.

    Args:
        case: What to make.
        device: Where.
        recorded: [M, V], the rows of a file for the distribution `recorded`; they are taken in turn.
    """
    generator = torch.Generator(device).manual_seed(0)
    dtype = getattr(torch, case.dtype)
    size = case.rows * case.vocab_size * dtype.itemsize
    buffers = []
    for number in range(max(2, -(-TIMES_CACHE * last_cache_bytes(device) // size))):
        if recorded is None:
            logits = DISTRIBUTIONS[case.distribution](case.rows, case.vocab_size, generator)
        else:
            logits = recorded[torch.arange(number * case.rows, (number + 1) * case.rows) % len(recorded)]
        buffers.append(logits.to(device, dtype).contiguous())
    history = torch.randint(case.vocab_size, (case.rows, PROMPT + OUTPUT), generator=torch.Generator().manual_seed(1))
    return Workload(case, buffers, history)


def last_cache_bytes(device: torch.device) -> int:
    """Of a GPU; 0 on a CPU, where two buffers take turns and small ones stay in the cache."""
    return torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else 0
