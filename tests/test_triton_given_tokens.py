"""Logprobs of given tokens, nothing drawn: compiled where there is a GPU, else interpreted."""

import os

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from drawlot.sampling.logprobs import gather_logprobs, token_logprobs
from tests.sampler_pair import DEVICE

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

N, V = 5, 300


def logits_of(dtype: torch.dtype) -> torch.Tensor:
    """Few values, so that tokens tie, some of them impossible."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.integers(-20, 20, (N, V)) / 4).to(dtype)
    logits[1, :250] = -torch.inf
    return logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logits"])
@pytest.mark.parametrize("num_logprobs", [0, 5, -1])
def test_given_and_top_tokens_are_the_cpus(dtype: torch.dtype, mode: str, num_logprobs: int) -> None:
    logits, ids = logits_of(dtype), torch.tensor([0, 299, 17, 0, 255])
    got = gather_logprobs(logits.to(DEVICE), ids.to(DEVICE), num_logprobs, mode, backend="triton")
    expected = gather_logprobs(logits, ids, num_logprobs, mode, backend="reference")
    assert torch.equal(got.logprob_token_ids.cpu(), expected.logprob_token_ids)
    assert torch.equal(got.selected_token_ranks.cpu(), expected.selected_token_ranks)
    torch.testing.assert_close(got.logprobs.cpu(), expected.logprobs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_scores_are_the_cpus(dtype: torch.dtype) -> None:
    logits, ids = logits_of(dtype), torch.tensor([0, 9, 285]) + 3 * torch.arange(N).unsqueeze(1)
    got = token_logprobs(logits.to(DEVICE), ids.to(DEVICE), backend="triton").cpu()
    torch.testing.assert_close(got, token_logprobs(logits, ids, backend="reference"), rtol=1e-6, atol=1e-6)
