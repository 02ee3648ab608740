"""What a verification returns: fully written, cell by cell, and with the logprobs of ordinary sampling."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, VerifierOutput, sample
from tests.verification.cases import random_batch
from tests.verification.world import BACKENDS

POISON = 0x7B


def same(a: VerifierOutput, b: VerifierOutput) -> bool:
    columns = [*zip(a[:3], b[:3]), (a.status, b.status), *zip(a.logprobs or (), b.logprobs or ())]
    return all(torch.equal(x, y) for x, y in columns) and (a.logprobs is None) == (b.logprobs is None)


def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fresh memory holds what a call before may have left there."""

    def filled(fresh: Callable[..., object]) -> Callable[..., object]:
        def make(*args: object, **kwargs: object) -> object:
            memory = fresh(*args, **kwargs)
            array = memory.numpy() if isinstance(memory, Tensor) else memory
            if array.size:
                array.fill(np.frombuffer(bytes([POISON]) * 8, array.dtype)[0] if array.dtype != bool else True)
            return memory

        return make

    for module in (np, torch):
        for name in ("empty", "empty_like"):
            monkeypatch.setattr(module, name, filled(getattr(module, name)))
    monkeypatch.setattr(Tensor, "new_empty", filled(Tensor.new_empty))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("vocab_size", [3, 300])
def test_every_cell_is_written(backend: str, vocab_size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng([5, vocab_size])
    for _ in range(12):
        batch = random_batch(random, vocab_size, 16)
        clean = batch.verify(backend)
        with monkeypatch.context() as patches:
            poisoned(patches)
            assert int(np.empty(1, np.int64)[0]) == int.from_bytes(bytes([POISON]) * 8, "little")
            assert same(batch.verify(backend), clean)
        past = torch.arange(clean.sampled_token_ids.shape[1]) >= clean.num_sampled.unsqueeze(1)
        assert (clean.sampled_token_ids[past] == -1).all()
        assert (clean.sampled_token_ids[~past] >= 0).all()


class Mixed:
    """Requests with 0, 1, .. K drafts in one batch, by method in turn."""

    k, v = 3, 200
    methods = ("standard", "block", "coupled")

    def __init__(self, backend: str, params: list[SamplingParams], mode: str = "raw_logprobs") -> None:
        self.params = params
        n = len(params)
        random = torch.Generator().manual_seed(11)
        self.counts = [r % (self.k + 1) for r in range(n)]
        self.prompts = [[r % 7, 3, 3] for r in range(n)]
        self.sampler = Sampler(n, self.v, backend=backend, logprobs_mode=mode)
        self.verifier = RejectionSampler(self.sampler, num_speculative_tokens=self.k)
        for r, own in enumerate(params):
            self.sampler.add_request(r, own, self.prompts[r])
            self.verifier.set_method(r, self.methods[r % 3])
        self.logits = torch.randn((n, self.k + 1, self.v), generator=random) * 3
        self.drafts = self.logits[:, :-1].argmax(2)
        index, rows = torch.arange(n), torch.tensor(self.counts) + 1
        self.cu_rows = torch.nn.functional.pad(rows.cumsum(0), (1, 0))
        self.local = torch.arange(int(self.cu_rows[-1])) - self.cu_rows[:-1].repeat_interleave(rows)
        self.request = index.repeat_interleave(rows)
        self.given = torch.where(torch.arange(self.k) < rows.unsqueeze(1) - 1, self.drafts, -1)

    def verify(self) -> VerifierOutput:
        inputs = torch.nn.functional.pad(self.drafts, (1, 0))[self.request, self.local]
        rows = LogitsRows(
            torch.arange(len(self.params)),
            self.request,
            self.local,
            3 + self.local,
            inputs,
            self.cu_rows.to(torch.int32),
        )
        return self.verifier(self.logits[self.request, self.local], rows, self.given)


PARAMS = [
    SamplingParams(temperature=0, logprobs=3),
    SamplingParams(seed=1, logprobs=5, top_k=4, temperature=0.7),
    SamplingParams(seed=2, logprob_token_ids=[5, 0, 199], frequency_penalty=1.0, repetition_penalty=1.2),
    SamplingParams(seed=3, logprobs=0, min_p=0.05),
    SamplingParams(seed=4),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_logprobs_are_those_of_ordinary_sampling(backend: str, mode: str) -> None:
    mixed = Mixed(backend, [PARAMS[r % len(PARAMS)] for r in range(60)], mode)
    out = mixed.verify()
    assert out.logprobs is not None
    assert set(out.num_accepted.tolist()) == {0, 1, 2, 3}
    compared = coupled = 0
    for r, params in enumerate(mixed.params):
        emitted = out.sampled_token_ids[r, : int(out.num_sampled[r])].tolist()
        assert len(emitted) == int(out.num_accepted[r]) + 1
        for j, token in enumerate(emitted):
            row = int(mixed.cu_rows[r]) + j
            # The same row drawn alone, its output being what was emitted before; other tokens are looked up by id.
            alone = sample(
                mixed.logits[r, j : j + 1],
                params,
                positions=torch.tensor([3 + j]),
                prompt_token_ids=[mixed.prompts[r]],
                output_token_ids=[emitted[:j]],
                logprobs_mode=mode,
                backend=backend,
            )
            drawn_alike = int(alone.token_ids) == token
            if params.temperature == 0 or mixed.methods[r % 3] == "coupled" or mixed.counts[r] == 0:
                assert drawn_alike, (r, j)
                coupled += 1
            if alone.logprobs is None:
                assert (out.logprobs.logprob_token_ids[row] == -1).all()
                continue
            width = alone.logprobs.logprobs.shape[1]
            first = 0 if drawn_alike else 1
            for ours, theirs in zip(out.logprobs[:2], alone.logprobs[:2]):
                torch.testing.assert_close(ours[row, first:width], theirs[0, first:], rtol=1e-6, atol=1e-6)
            if drawn_alike:
                assert int(out.logprobs.selected_token_ranks[row]) == int(alone.logprobs.selected_token_ranks)
            compared += 1
        # Rows of drafts that were not accepted say nothing.
        rejected = slice(int(mixed.cu_rows[r]) + len(emitted), int(mixed.cu_rows[r + 1]))
        assert (out.logprobs.logprob_token_ids[rejected] == -1).all()
        assert (out.logprobs.selected_token_ranks[rejected] == 0).all()
    assert compared > 60
    assert coupled > 60


@pytest.mark.parametrize("backend", BACKENDS)
def test_requests_without_drafts_draw_what_the_sampler_draws(backend: str) -> None:
    mixed = Mixed(backend, [SamplingParams(seed=r, top_p=0.9) for r in range(24)])
    first = mixed.cu_rows[:-1]
    index = torch.arange(24)
    ones = LogitsRows(index, index, index * 0, index * 0 + 3, index * 0, torch.arange(25, dtype=torch.int32))
    alone = mixed.sampler(mixed.logits[:, 0], ones).token_ids
    among_others = mixed.verify()
    without = mixed.local[first] == torch.tensor(mixed.counts)
    assert int(without.sum()) == 6
    assert torch.equal(among_others.sampled_token_ids[without, 0], alone[without])
    # A batch of nothing else, and one whose drafts are all padding.
    nothing = torch.full_like(mixed.given, -1)
    none = mixed.verifier(mixed.logits[:, 0], ones, nothing)
    mixed.given = nothing
    padding = mixed.verify()
    for out in (none, padding):
        assert torch.equal(out.sampled_token_ids[:, 0], alone)
        assert (out.sampled_token_ids[:, 1:] == -1).all()
        assert (out.num_sampled == 1).all()
        assert (out.num_accepted == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_row_stops_its_request_and_no_other(backend: str, broken: float) -> None:
    mixed = Mixed(backend, [PARAMS[r % len(PARAMS)] for r in range(40)])
    clean = mixed.verify()
    long = int(((clean.num_accepted == 3) & (torch.tensor(mixed.counts) == 3)).nonzero()[0])
    for bad in range(4):
        mixed.logits[long, bad] = broken
        out = mixed.verify()
        others = torch.arange(40) != long
        row = int(mixed.cu_rows[long]) + bad
        assert int(out.status[row]) != 0
        assert int(out.num_accepted[long]) == int(out.num_sampled[long]) == bad
        assert out.sampled_token_ids[long].tolist() == mixed.drafts[long, :bad].tolist() + [-1] * (4 - bad)
        for a, b in zip(out[:3], clean[:3]):
            assert torch.equal(a[others], b[others])
        assert out.logprobs is not None
        assert clean.logprobs is not None
        rows = mixed.request != long
        for a, b in zip(out.logprobs[:3], clean.logprobs[:3]):
            assert torch.equal(a[rows], b[rows])
        mixed.logits[long, bad] = clean_row(mixed, long, bad)


def clean_row(mixed: Mixed, r: int, j: int) -> Tensor:
    random = torch.Generator().manual_seed(11)
    return (torch.randn(mixed.logits.shape, generator=random) * 3)[r, j]
