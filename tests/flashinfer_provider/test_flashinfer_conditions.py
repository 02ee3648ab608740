"""FlashInfer as a provider: when a batch is given to it, and why it is not."""

import logging
import sys

import pytest
import torch

from drawlot import BackendError, RowStatus, Sampler, SamplingParams, sample
from drawlot.kernels.flashinfer import availability
from drawlot.kernels.flashinfer import sample as provider
from tests.flashinfer_provider.stand_in import BATCHES, PLAIN, FlashInfer, K, V, rows_of, sampler_of


def absent(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "flashinfer", None)


def too_old(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "flashinfer", FlashInfer("0.6.13.post1"))


def wrong_capability(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(availability, "compute_capability", lambda on: (7, 0))


def no_gpu(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(availability, "compute_capability", lambda on: None)


UNSUPPORTED = {
    absent: r"flashinfer cannot be imported \(.*\); it comes with the extra drawlot\[flashinfer\]",
    too_old: "needs flashinfer-python 0.6.14 or newer; got 0.6.13.post1",
    wrong_capability: "needs compute capability 7.5 or newer; cpu has 7.0",
    no_gpu: "needs a CUDA GPU; got cpu",
}


@pytest.mark.parametrize("host", [True, False])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_goes_to_its_provider(name, host, flashinfer, own, logits):
    out = sampler_of(BATCHES[name])(logits, rows_of(host=host))
    by_flashinfer = BATCHES[name].reason is None
    assert len(flashinfer.seen) == by_flashinfer
    assert own == ([] if by_flashinfer else [4])
    assert out.status.tolist() == [0, RowStatus.SKIPPED, 0, 0]
    assert out.token_ids[1] == -1
    assert (out.token_ids[[0, 2, 3]] >= 0).all()


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("unsupported", UNSUPPORTED)
def test_forced_but_unsupported_is_refused_with_the_reason(unsupported, name, flashinfer, own, logits, monkeypatch):
    unsupported(monkeypatch)
    with pytest.raises(BackendError, match=f"^backend 'flashinfer': {UNSUPPORTED[unsupported]}$"):
        sampler_of(BATCHES[name])
    sampler_of(BATCHES[name], "auto")(logits, rows_of())
    assert own == [4]
    monkeypatch.setenv("DRAWLOT_SAMPLER_BACKEND", "flashinfer")
    with pytest.raises(BackendError, match=f"^DRAWLOT_SAMPLER_BACKEND=flashinfer: {UNSUPPORTED[unsupported]}$"):
        sampler_of(BATCHES[name], "auto")
    assert flashinfer.seen == []


NOT_ITS_OWN = {
    "a row is greedy": {"temperature": 0},
    "a row has a seed": {"seed": 3},
    "processed logprobs are wanted": {"logprobs": 0},
}


@pytest.mark.parametrize("kind", NOT_ITS_OWN)
@pytest.mark.parametrize("rows", [1, 4])
def test_the_stateless_call_has_the_same_conditions(kind, rows, flashinfer, own, logits):
    def call(**params):
        params = SamplingParams(top_k=5, **params)
        params = params if rows == 1 else [SamplingParams(top_k=5)] * 3 + [params]
        positions = torch.arange(4)
        mode = "processed_logprobs"
        return sample(logits, params, positions=positions, logprobs_mode=mode, backend="flashinfer").token_ids

    call()
    assert (len(flashinfer.seen), own) == (1, [])
    call(**NOT_ITS_OWN[kind])
    assert (len(flashinfer.seen), own) == (1, [4])


def test_an_empty_batch_has_no_row_with_a_filter(flashinfer, own):
    assert sample(torch.zeros(0, V), K, backend="flashinfer").token_ids.tolist() == []
    assert (len(flashinfer.seen), own) == (0, [0])


def test_other_batches_draw_what_drawlot_draws_and_say_why_once(flashinfer, own, logits, caplog, monkeypatch):
    monkeypatch.setattr(provider, "_logged", set())
    params = [SamplingParams(top_k=20, seed=seed) for seed in range(4)]
    expected = sample(logits, params, positions=torch.arange(4), backend="torch").token_ids
    with caplog.at_level(logging.INFO, "drawlot"):
        for _ in range(2):
            drawn = sample(logits, params, positions=torch.arange(4), backend="flashinfer").token_ids
            assert torch.equal(drawn, expected)
        sample(logits, PLAIN, backend="flashinfer")
    assert [record.getMessage() for record in caplog.records] == [
        "backend flashinfer: torch draws a batch because a row has a seed",
        "backend flashinfer: torch draws a batch because no row has top_k or top_p",
    ]


def test_the_environment_says_what_auto_means(flashinfer, own, logits, monkeypatch):
    monkeypatch.setenv("DRAWLOT_SAMPLER_BACKEND", "flashinfer")
    sample(logits, K)
    assert Sampler(1, V).backend.name == "flashinfer"
    assert (len(flashinfer.seen), own) == (1, [])
    assert Sampler(1, V, backend="torch").backend.name == "torch"
    for nothing in ("", "auto"):
        monkeypatch.setenv("DRAWLOT_SAMPLER_BACKEND", nothing)
        assert Sampler(1, V).backend.name == "torch"
    monkeypatch.setenv("DRAWLOT_SAMPLER_BACKEND", "cuda")
    for call in (lambda: sample(logits, K), lambda: Sampler(1, V)):
        with pytest.raises(BackendError, match=r"^DRAWLOT_SAMPLER_BACKEND=cuda: no such backend; there are auto,"):
            call()


def test_a_captured_graph_is_refused(flashinfer, own, logits, monkeypatch):
    monkeypatch.setattr(provider, "_captures", lambda on: True)
    for params in (K, PLAIN):
        with pytest.raises(BackendError, match="a CUDA graph would replay"):
            sample(logits, params, backend="flashinfer")
    assert (flashinfer.seen, own) == ([], [])
