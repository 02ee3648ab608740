"""Drafts without noise: the best token of a row, the first of equals, none of a bad row, and no law written down."""

import pytest
import torch

from drawlot import Sampler
from drawlot.params import SamplingParams
from drawlot.verification import DraftSampler


def logits():
    rows = torch.zeros(6, 300)
    rows[0, [299, 7, 128]] = 1
    rows[1, 5] = torch.nan
    rows[2] = -torch.inf
    rows[3, 9] = torch.inf
    rows[4, 11] = 2
    rows[5, 3] = 1
    return rows


@pytest.mark.parametrize(("temperature", "greedy"), [(0.0, False), (0.9, True), (0.0, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_best_tokens(temperature, greedy, dtype):
    sampler = Sampler(6, 290)
    for row in range(6):
        sampler.add_request(row, SamplingParams(temperature=temperature, seed=row), [1])
    drafts = DraftSampler(sampler, num_speculative_tokens=2, greedy=greedy)
    rows = torch.tensor([0, 1, 2, 3, -1, 5])
    drawn = drafts.draw(logits().to(dtype), rows, torch.ones(6, dtype=torch.int64), 1)
    assert drawn.tolist() == [7, -1, -1, -1, -1, 3]
    if greedy:
        assert drafts.draft_logits is None
    else:
        assert not drafts.draft_logits.any()


def test_a_greedy_request_beside_others():
    sampler = Sampler(2, 300)
    sampler.add_request(0, SamplingParams(temperature=0), [1])
    sampler.add_request(1, SamplingParams(temperature=0.5, seed=1), [1])
    drafts = DraftSampler(sampler, num_speculative_tokens=1)
    drawn = drafts.draw(logits()[[0, 4]], torch.tensor([0, 1]), torch.tensor([1, 1]), 0)
    assert drawn[0] == 7
    torch.testing.assert_close(drafts.draft_logits[1, 0].softmax(0), (logits()[4] / 0.5).softmax(0))
