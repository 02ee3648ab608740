"""The head as drafting runs it: the network that `eagle_head` defines, alone and on the target's blocks."""

import pytest
import torch
import torch.nn.functional as F

from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.engine.speculative_config import SpeculativeConfig
from drawlot.speculators.eagle_head import EagleHead, EagleHeadConfig, causal
from drawlot.speculators.eagle_steps import EagleSteps


def random_head(seed):
    torch.manual_seed(seed)
    head = EagleHead(EagleHeadConfig(48, 40, 6, 2, 8, 64, 10000.0, 1e-6))
    for weight in head.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.4)
    return head.eval().requires_grad_(False)


def head_by_head(query, key, value):
    """As on a GPU: what a head attends to lies together."""
    return causal(query, key, value).transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("length", [1, 2, 13])
def test_it_is_the_head(length):
    head = random_head(length)
    hidden, embeddings = torch.randn(2, length, 48)
    positions = torch.arange(5, 5 + length)
    wanted = head(hidden.unsqueeze(0), embeddings.unsqueeze(0), positions.unsqueeze(0))[0]
    for attend in (causal, head_by_head):
        torch.testing.assert_close(EagleSteps(head)(hidden, embeddings, positions, attend), wanted)
    half = EagleSteps(head.bfloat16())(hidden.bfloat16(), embeddings.bfloat16(), positions, causal)
    assert half.dtype == torch.bfloat16
    assert F.cosine_similarity(half.float(), wanted, dim=-1).min() > 0.98


@pytest.fixture(scope="module")
def paged():
    config = SpeculativeConfig(method="eagle", num_speculative_tokens=4)
    engine = Engine(EngineArgs(model="tiny", device="cpu", dtype="float32", max_num_seqs=3, speculative_config=config))
    return engine._cache, engine.drafting.speculator._head


@pytest.mark.parametrize("counts", [(3, 3, 3), (2, 4, 2), (1, 2, 5)])
@torch.inference_mode()
def test_tokens_that_follow_are_tokens_like_others(paged, counts):
    cache, head = paged
    torch.manual_seed(sum(counts))
    rows, starts, more = [2, 0, 1], [14, 1, 3], 3
    cache.tables[:3, :2] = torch.randperm(12)[:6].add(1).view(3, 2).numpy()
    before = torch.randn(sum(counts), 256)
    ids = [[7 * row + i for i in range(count)] for row, count in zip(rows, counts)]
    ends = torch.tensor(counts).cumsum(0) - 1
    given = [head.states(rows, starts, ids, before, more)]
    last, followed = given[0][ends], []
    for i in range(more):
        followed.append(last)
        last = head.follow([50 + 3 * i + row for row in rows], last)
        given.append(last)
    # Each row alone, one token after another.
    at = 0
    for place, (row, start, own) in enumerate(zip(rows, starts, ids)):
        own_before = [*before[at : at + len(own)], *(each[place] for each in followed)]
        wanted = [*given[0][at : at + len(own)], *(each[place] for each in given[1:])]
        at += len(own)
        tokens = [*own, *(50 + 3 * i + row for i in range(more))]
        for i, (token, state, expected) in enumerate(zip(tokens, own_before, wanted)):
            alone = head.states([row], [start + i], [[token]], state.unsqueeze(0))[0]
            torch.testing.assert_close(expected, alone, rtol=1e-4, atol=1e-4)
