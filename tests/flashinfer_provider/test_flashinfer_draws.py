"""FlashInfer as a provider: what it is given, and what becomes of its draws."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drawlot import RowStatus, SamplingParams, sample
from drawlot.kernels.flashinfer import sample as provider
from drawlot.testing import chi_square
from tests.flashinfer_provider.stand_in import BATCHES, FlashInfer, V, rows_of, sampler_of
from tests.statistical.draws import EMPTY, law_of

LADDER = -0.7 * torch.arange(16.0)
LAWS = {
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.95},
    "top-k before top-p": {"temperature": 3.0, "top_k": 5, "top_p": 0.7},
    "min-p before top-p": {"temperature": 3.0, "top_p": 0.75, "min_p": 0.3},
    "cold": {"temperature": 0.4, "top_k": 9},
}
N = 1 << 18


def counts_of(logits: Tensor, **params: float) -> Tensor:
    torch.manual_seed(11)
    out = sample(logits.expand(N, -1), SamplingParams(**params), backend="flashinfer")
    return torch.bincount(out.token_ids, minlength=len(logits))


@pytest.mark.parametrize("params", LAWS.values(), ids=LAWS)
def test_draws_follow_the_law(params, flashinfer):
    law = law_of(LADDER, **params)
    result = chi_square(counts_of(LADDER, **params), law)
    assert result.ok, result
    assert len(flashinfer.seen) == 1
    counts = counts_of(LADDER, **params) * 99 // 100
    counts[law.nonzero()[0][-1]] += N - counts.sum()
    assert not chi_square(counts, law).ok


def in_joint_order(flashinfer: FlashInfer, patch: pytest.MonkeyPatch) -> None:
    draw = flashinfer.draw
    joint = lambda *args, filter_apply_order: draw(*args, filter_apply_order="joint")  # noqa: E731
    patch.setattr(flashinfer.sampling, "top_k_top_p_sampling_from_logits", joint)


def without(fact: str) -> Callable[[FlashInfer, pytest.MonkeyPatch], None]:
    def plant(flashinfer: FlashInfer, patch: pytest.MonkeyPatch) -> None:
        tempered = provider.tempered
        blind = lambda *args, own: tempered(*args[:3], args[3]._replace(**{fact: False}), own=own)  # noqa: E731
        patch.setattr(provider, "tempered", blind)

    return plant


@pytest.mark.parametrize(
    ("bug", "law"),
    [
        (in_joint_order, "top-k before top-p"),
        (without("min_p"), "min-p before top-p"),
        (without("tempered"), "cold"),
    ],
)
def test_a_planted_bug_fails_a_law(bug, law, flashinfer, monkeypatch):
    bug(flashinfer, monkeypatch)
    assert not chi_square(counts_of(LADDER, **LAWS[law]), law_of(LADDER, **LAWS[law])).ok


EDITS = {
    "bias and penalties": {
        "logit_bias": {3: 2.0, 7: -1.5},
        "repetition_penalty": 1.7,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
    },
    "allowed ids": {"allowed_token_ids": [2, 130, 131, 299]},
    "min tokens": {"min_tokens": 3, "stop_token_ids": [0, 1, 2]},
}


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("edits", EDITS.values(), ids=EDITS)
def test_flashinfer_reads_the_edited_and_tempered_values(edits, masked, flashinfer, logits):
    """They differ from the processed_logits of drawlot's own backend by a constant a row."""
    bitmask = torch.tensor([[-1] * 8 + [0] + [-1]] * 4, dtype=torch.int32) if masked else None
    history = {"prompt_token_ids": [[1, 2, 2, 250]] * 4, "output_token_ids": [[2, 3], [], [0], [5, 5]]}
    sample(
        logits,
        SamplingParams(top_k=3, temperature=0.7, **edits),
        **history,
        allowed_bitmask=bitmask,
        backend="flashinfer",
    )
    own = sample(
        logits,
        SamplingParams(temperature=0.7, logprobs=-1, **edits),
        **history,
        allowed_bitmask=bitmask,
        logprobs_mode="processed_logits",
        backend="torch",
    ).logprobs
    expected = torch.full((4, V), EMPTY)
    used = own.logprob_token_ids >= 0
    rows = torch.arange(4).unsqueeze(1).expand_as(used)
    expected[rows[used], own.logprob_token_ids[used]] = own.logprobs[used]
    torch.testing.assert_close(flashinfer.seen[0], expected - expected.amax(1, keepdim=True), rtol=1e-5, atol=1e-5)


class Copies(TorchDispatchMode):
    """Bytes of every new tensor that is as large as the logits, until FlashInfer is called."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.most = logits.numel()
        self.kept = [logits]
        self.bytes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.untyped_storage().nbytes() >= self.most:
            own = out.untyped_storage().data_ptr()
            if all(own != tensor.untyped_storage().data_ptr() for tensor in self.kept):
                self.kept.append(out)
                self.bytes.append(out.untyped_storage().nbytes())
        return out


COPIES = {
    "nothing to do": ({}, torch.float32, []),
    "temperature": ({"temperature": 0.7}, torch.float32, [4]),
    "bfloat16": ({}, torch.bfloat16, [4]),
    "bfloat16 and temperature": ({"temperature": 0.7}, torch.bfloat16, [4]),
    "edits and temperature": ({"temperature": 0.7, "logit_bias": {1: 1.0}}, torch.float32, [4]),
    "min_p and its mask": ({"min_p": 0.1}, torch.float32, [4, 1]),
}


@pytest.mark.parametrize(("params", "dtype", "expected"), COPIES.values(), ids=COPIES)
def test_the_logits_are_copied_once_or_not_at_all(params, dtype, expected, flashinfer, monkeypatch):
    given: list[Tensor] = []

    def draw(rows, top_k, top_p, filter_apply_order):
        given.append(rows)
        return top_k

    monkeypatch.setattr(flashinfer.sampling, "top_k_top_p_sampling_from_logits", draw)
    # Narrow enough that a tensor of a few numbers a row is no copy, wide enough that padding would be one.
    logits = torch.randn(64, 1001).to(dtype)
    before = logits.clone()
    with Copies(logits) as copies:
        sample(
            logits,
            SamplingParams(top_k=5, **params),
            prompt_token_ids=[[]] * 64,
            output_token_ids=[[]] * 64,
            backend="flashinfer",
        )
    assert copies.bytes == [size * logits.numel() for size in expected]
    assert (given[0].data_ptr() == logits.data_ptr()) == (not expected)
    assert torch.equal(logits, before)


def test_conditions_and_draw_never_wait_for_the_device(flashinfer, logits, monkeypatch):
    def waits(*args):
        raise AssertionError("this waits for the device")

    monkeypatch.setattr(flashinfer.sampling, "top_k_top_p_sampling_from_logits", lambda rows, top_k, *_, **__: top_k)
    samplers = [sampler_of(BATCHES[name]) for name in ("top_k", "both", "with min_p, temperature and edits")]
    known, unknown = rows_of(), rows_of(host=False)
    edits = samplers[2]._edits.build(known, None)  # on the host, whatever the backend
    monkeypatch.setattr(samplers[2]._edits, "build", lambda *_: edits)
    for name in ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(Tensor, name, waits)
    for sampler in samplers:
        sampler(logits, known)
    with pytest.raises(AssertionError, match="this waits"):
        samplers[0](logits, unknown)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_bad_rows_are_flagged_and_leave_the_others_unchanged(temperature, flashinfer, logits):
    bad = torch.cat((logits, logits))
    bad[1, 7], bad[2, 8], bad[4], bad[6, 299] = torch.nan, torch.inf, EMPTY, torch.nan
    params = SamplingParams(top_k=1, temperature=temperature, logprobs=2)
    out = sample(bad, params, backend="flashinfer")
    good = [0, 3, 5, 7]
    assert out.status[[1, 2, 4, 6]].tolist() == [1, 1, int(RowStatus.EMPTY_SUPPORT), 1]
    assert out.token_ids[[1, 2, 4, 6]].tolist() == [-1] * 4
    assert out.logprobs.logprob_token_ids[[1, 2, 4, 6]].eq(-1).all()
    assert out.logprobs.logprobs[[1, 2, 4, 6]].eq(EMPTY).all()
    expected = sample(torch.cat((logits, logits))[good], params, backend="flashinfer")
    assert out.status[good].tolist() == [0] * 4
    assert torch.equal(out.token_ids[good], bad[good].argmax(1))
    assert torch.equal(out.token_ids[good], expected.token_ids)
    for column, alone in zip(out.logprobs[:3], expected.logprobs[:3]):
        assert torch.equal(column[good], alone)


def test_a_nan_that_an_edit_masks_is_still_a_bad_row(flashinfer, logits):
    logits[0, 5] = torch.nan
    out = sample(logits, SamplingParams(top_k=3, allowed_token_ids=[1, 2]), backend="flashinfer")
    assert out.status.tolist() == [int(RowStatus.NONFINITE), 0, 0, 0]


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
@pytest.mark.parametrize("masked", [False, True])
def test_logprobs_are_of_the_logits_with_the_grammar_bitmask_alone(mode, masked, flashinfer, logits):
    bitmask = torch.tensor([[-1] * 8 + [0] + [-1]] * 4, dtype=torch.int32) if masked else None
    params = SamplingParams(top_k=9, temperature=2.0, logit_bias={4: 9.0}, logprobs=3)
    out = sample(logits, params, allowed_bitmask=bitmask, logprobs_mode=mode, backend="flashinfer")
    raw = logits.double()
    if masked:
        raw[:, 256:288] = EMPTY
    order = raw.sort(dim=1, descending=True, stable=True).indices
    ids = torch.cat((out.token_ids.unsqueeze(1), order[:, :3]), 1)
    assert torch.equal(out.logprobs.logprob_token_ids, ids)
    expected = raw.log_softmax(1) if mode == "raw_logprobs" else raw
    torch.testing.assert_close(out.logprobs.logprobs.double(), expected.gather(1, ids), rtol=1e-6, atol=1e-6)
    rank = (order == out.token_ids.unsqueeze(1)).int().argmax(1) + 1
    assert torch.equal(out.logprobs.selected_token_ranks, rank)


def test_numbers_at_the_ends_of_their_ranges(flashinfer, logits):
    """A top_p that is 0 in float32 keeps the first token; temperatures at both ends do not overflow."""
    params = [
        SamplingParams(top_p=1e-300),
        SamplingParams(top_k=V + 1, top_p=0.5, temperature=1e-300),
        SamplingParams(top_k=3, temperature=1e300),
        SamplingParams(top_k=1, min_p=1.0),
    ]
    out = sample(logits, params, backend="flashinfer")
    assert len(flashinfer.seen) == 1
    assert out.status.tolist() == [0] * 4
    best = logits.sort(dim=1, descending=True).indices
    assert out.token_ids[[0, 1, 3]].tolist() == best[[0, 1, 3], 0].tolist()
    assert out.token_ids[2] in best[2, :3]
