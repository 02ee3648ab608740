"""Drafts drawn in one pass: the very bits of log-weights, then a draw from them."""

import pytest
import torch

from drawlot.kernels import torch as backend
from drawlot.kernels.draft_draws import drawn_apart
from drawlot.kernels.inputs import RowParams
from drawlot.rng import DRAFT, TARGET

N = 40


def logits(v, dtype, seed):
    rows = torch.randn(N, v, generator=torch.Generator().manual_seed(seed)) * 4
    rows[1, ::2] = -torch.inf
    rows[2] = torch.nan
    rows[3, 7] = torch.inf
    rows[4] = -torch.inf
    rows[5] = 0
    rows[6] *= 1000
    rows[7, : v // 2] = -torch.inf
    rows[8] += 5000
    return rows.to(dtype)


def params(temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    seeds, positions = torch.randint(-(2**62), 2**62, (2, N), generator=generator)
    return RowParams(
        temperature,
        torch.zeros(N, dtype=torch.int64),
        torch.ones(N, dtype=torch.float64),
        torch.zeros(N, dtype=torch.float64),
        seeds,
        positions % 1000,
        torch.arange(N) % 3,
        torch.arange(N) % 5,
    )


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("v", [5, 300, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_pass_has_the_bits_of_two(v, wide, dtype):
    temperature = torch.tensor([1, 0.3, 0.01, 7, 1e-300], dtype=torch.float64).repeat(N // 5)
    for seed in range(3):
        rows = logits(max(v, 8), dtype, seed)[:, :v]
        for own in (temperature, torch.ones_like(temperature), temperature.roll(1) * (torch.arange(N) > 1)):
            given = params(own, seed)
            for streams in (DRAFT, TARGET):
                fast = backend.draw_drafts(rows, given, wide=wide, streams=streams)
                apart = drawn_apart(backend.sample_rows, backend.log_weights)
                wanted = apart(rows, given, wide=wide, streams=streams)
                assert torch.equal(fast.token_ids, wanted.token_ids)
                assert torch.equal(fast.log_weights, wanted.log_weights)
                assert fast.lse.dtype == wanted.lse.dtype
                torch.testing.assert_close(fast.lse, wanted.lse, rtol=1e-6, atol=1e-6)


def test_filtered_drafts_keep_their_filters():
    rows, given = logits(300, torch.float32, 1), params(torch.ones(N, dtype=torch.float64), 1)
    given = given._replace(top_k=torch.where(torch.arange(N) % 2 == 0, 3, 0))
    drawn = backend.draw_drafts(rows, given, wide=False, streams=DRAFT)
    kept = drawn.log_weights.isfinite().sum(1)
    good = drawn.token_ids >= 0
    assert good.sum() == N - 3
    assert (kept[good] == 3).tolist() == [row % 2 == 0 for row in range(N) if good[row]]
