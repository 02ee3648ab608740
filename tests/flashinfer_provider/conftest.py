"""A machine with FlashInfer, and without."""

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from drawlot.kernels import registry
from drawlot.kernels import torch as torch_backend
from drawlot.kernels.flashinfer import availability
from tests.flashinfer_provider.stand_in import FlashInfer, V


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> FlashInfer:
    """A machine on which FlashInfer runs."""
    stand_in = FlashInfer()
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in)
    monkeypatch.setattr(availability, "compute_capability", lambda on: (9, 0))
    return stand_in


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows each call of drawlot's own backend was given."""
    seen: list[int] = []
    sample_rows = torch_backend.sample_rows

    def spy(logits, *args, **kwargs):
        seen.append(len(logits))
        return sample_rows(logits, *args, **kwargs)

    monkeypatch.setattr(torch_backend, "sample_rows", spy)
    registry._load.cache_clear()
    yield seen
    registry._load.cache_clear()


@pytest.fixture
def logits() -> Tensor:
    return torch.randn((4, V), generator=torch.Generator().manual_seed(5)) * 3
