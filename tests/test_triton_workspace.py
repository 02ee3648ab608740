"""Scratch memory has room for what is drawn in it, to the last bit."""

import pytest
import torch

from drawlot.kernels.inputs import Edits

pytest.importorskip("triton")

from drawlot.kernels.triton import sample
from drawlot.kernels.triton.step_sampler import StepSampler
from tests.test_triton_whole_rows import interpreted, params, workspaces_made

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


@pytest.mark.parametrize(("wide", "dtype"), [(False, torch.float32), (True, torch.float64)])
def test_noise_is_kept_as_wide_as_it_is_drawn(wide: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    works = workspaces_made(monkeypatch)
    sample.sample_rows(torch.zeros(2, 300), params(2), Edits(), None, wide=wide)
    StepSampler(2, 300, torch.device("cpu"), "raw_logprobs", wide=wide)
    assert [work.whole.noises.dtype for work in works] == [dtype, dtype]
