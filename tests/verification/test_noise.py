"""Float64 noise reaches every draw of a step, and accepts as often as float32 noise does."""

import numpy as np
import pytest
import torch

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, rng
from drawlot.rng import Stream
from drawlot.verification import DraftSampler
from tests.verification.world import BACKENDS

V, K, R = 300, 2, 60
WIDE = 128


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The streams whose words were asked for."""
    seen: set[int] = set()
    words = rng.words

    def spy(seed: object, position: object, stream: object, *rest: object) -> object:
        seen.update(np.unique(stream).tolist())
        return words(seed, position, stream, *rest)

    monkeypatch.setattr(rng, "words", spy)
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wide", [False, True])
def test_every_draw_has_the_noise_that_was_asked_for(backend: str, wide: bool, streams: set[int]) -> None:
    sampler = Sampler(R, V, backend=backend, use_fp64_gumbel=wide)
    verifier = RejectionSampler(sampler, num_speculative_tokens=K)
    draws = DraftSampler(sampler, num_speculative_tokens=K)
    index, columns = torch.arange(R), torch.arange(K + 1)
    for r in range(R):
        sampler.add_request(r, SamplingParams(seed=r), ())
        verifier.set_method(r, ("standard", "block", "coupled")[r % 3])
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn((R, K + 1, V), generator=generator)
    # Near enough for bonus draws, far enough for residual ones.
    drafting = logits[:, :K] + 0.3 * torch.randn((R, K, V), generator=generator)
    drafts = torch.stack([draws.draw(drafting[:, j], index, torch.zeros_like(index), j) for j in range(K)], 1)
    assert streams == {int(stream) + WIDE * wide for stream in (Stream.DRAFT_TILE, Stream.DRAFT_TOKEN)}
    rows = LogitsRows(
        index,
        index.repeat_interleave(K + 1),
        columns.repeat(R),
        columns.repeat(R),
        torch.nn.functional.pad(drafts, (1, 0)).flatten(),
        torch.arange(R + 1, dtype=torch.int32) * (K + 1),
    )
    out = verifier(logits.flatten(0, 1), rows, drafts, draws.draft_logits, draws.draft_lse)
    assert set(out.num_accepted[index % 3 == 0].tolist()) == {0, 1, 2}
    assert streams == {int(stream) + WIDE * wide for stream in Stream}


@pytest.mark.minutes
@pytest.mark.parametrize("method", ["standard", "block"])
def test_a_million_drafts_are_accepted_as_often_with_either_noise(method: str) -> None:
    num_reqs, calls, k, v = 2**15, 8, 4, 8
    p = torch.tensor([3.0, 2.5, 2.0, 1.0, 0.5, 0.0, -1.0, -2.0])
    q = torch.tensor([2.0, 3.0, 1.5, 1.5, 0.0, 1.0, -2.0, -1.0])
    index, columns = torch.arange(num_reqs), torch.arange(k + 1)
    accepted, drafted = {}, 0
    for wide in (False, True):
        sampler = Sampler(num_reqs, v, use_fp64_gumbel=wide, backend="torch")
        verifier = RejectionSampler(sampler, num_speculative_tokens=k, method=method)
        for r in range(num_reqs):
            sampler.add_request(r, SamplingParams(seed=r), ())
        lines = q.expand(num_reqs, k, v)
        generator = torch.Generator().manual_seed(5)
        counts = []
        for call in range(calls):
            drafts = torch.multinomial(q.softmax(0).expand(num_reqs, v), k, replacement=True, generator=generator)
            rows = LogitsRows(
                index,
                index.repeat_interleave(k + 1),
                columns.repeat(num_reqs),
                columns.repeat(num_reqs) + call * k,
                torch.nn.functional.pad(drafts, (1, 0)).flatten(),
                torch.arange(num_reqs + 1, dtype=torch.int32) * (k + 1),
            )
            counts.append(verifier(p.expand(num_reqs * (k + 1), v), rows, drafts, lines).num_accepted)
        accepted[wide] = torch.cat(counts).double()
        drafted = accepted[wide].numel() * k
    assert drafted >= 10**6
    # The same drafts, other coins: of independent coins the difference has at most the sum of the variances.
    narrow, broad = accepted[False], accepted[True]
    error = float((narrow.var() + broad.var()).div(len(narrow)).sqrt())
    assert abs(float(narrow.mean() - broad.mean())) < 6 * error
    assert not torch.equal(narrow, broad)
    if method == "standard":
        rate = float(torch.minimum(p.softmax(0), q.softmax(0)).sum())
        expected = sum(rate**j for j in range(1, k + 1))
        for counted in (narrow, broad):
            assert abs(float(counted.mean()) - expected) < 6 * float(counted.std()) / len(counted) ** 0.5
