"""Drafts that the Triton backend draws, in Triton's interpreter, and what verification is told of them."""

import pytest
import torch

from drawlot import RejectionSampler, Sampler, SamplingParams, verify
from drawlot.verification import DraftSampler

pytest.importorskip("triton")
from tests.test_triton_verification import K, interpreted, rows_of

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def test_drafts_are_drawn_as_by_the_torch_backend() -> None:
    # A step of the drafter and its verification, with filters in drafting, greedy and skipped rows.
    torch.manual_seed(4)
    v, params = 300, [SamplingParams(temperature=0), SamplingParams(seed=1), SamplingParams(seed=2, top_k=9, min_p=0.2)]
    outputs = []
    logits, target = torch.randn(K, 4, v) * 3, torch.randn(3 * (K + 1), v) * 3
    for backend in ("triton", "torch"):
        sampler = Sampler(4, v, backend=backend)
        draws = DraftSampler(sampler, num_speculative_tokens=K, filters=True)
        verifier = RejectionSampler(sampler, num_speculative_tokens=K)
        for r, each in enumerate(params):
            sampler.add_request(3 - r, each, [1], choice_index=r)
        states, anchors = torch.tensor([3, 2, 1, -1]), torch.tensor([5, 6, 7, 8])
        drafts = torch.stack([draws.draw(logits[j], states, anchors, j) for j in range(K)], 1)
        assert (drafts[3] == -1).all()
        rows = rows_of(drafts[:3], [K] * 3, 5)._replace(idx_mapping=states[:3])
        rows = rows._replace(expanded_idx_mapping=states[:3].repeat_interleave(K + 1))
        verified = verifier(target, rows, drafts[:3], draws.draft_logits, draws.draft_lse)
        outputs.append((drafts, verified.sampled_token_ids.clone(), draws.draft_logits[1:], draws.draft_lse[1:]))
    for ours, theirs in zip(*outputs):
        assert torch.equal(ours, theirs)


def test_draft_params_say_what_drafts_were_drawn_with() -> None:
    torch.manual_seed(5)
    target, q, drafts = torch.randn(2, K + 1, 40), torch.randn(2, K, 40), torch.randint(0, 5, (2, K))
    given = {"params": SamplingParams(seed=3), "positions": torch.tensor([0, 9]), "backend": "triton"}
    drawn_with = SamplingParams(temperature=0.5, top_k=9)
    raw = verify(target, drafts, q, draft_params=drawn_with, **given)
    kept = q >= q.topk(9).values[..., -1:]
    same = verify(target, drafts, torch.where(kept, q / 0.5, -torch.inf), **given)
    assert torch.equal(raw.sampled_token_ids, same.sampled_token_ids)
