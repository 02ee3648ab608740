"""FlashInfer as a provider: what it is given and when, with a stand-in that draws the same law in plain torch."""

import logging
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from drawlot import BackendError, LogitsRows, RowStatus, Sampler, SamplingParams, sample
from drawlot.kernels import registry
from drawlot.kernels import torch as torch_backend
from drawlot.kernels.flashinfer import availability
from drawlot.kernels.flashinfer import sample as provider
from drawlot.testing import chi_square
from tests.statistical.draws import EMPTY, law_of

V = 300


class FlashInfer(ModuleType):
    """The stand-in. `seen` holds the rows of logits of every call."""

    def __init__(self, version: str = "0.6.14") -> None:
        super().__init__("flashinfer")
        self.__version__ = version
        self.sampling = SimpleNamespace(top_k_top_p_sampling_from_logits=self.draw)
        self.seen: list[Tensor] = []

    def draw(self, logits: Tensor, top_k: Tensor, top_p: Tensor, filter_apply_order: str) -> Tensor:
        assert logits.dtype == torch.float32
        assert logits.is_contiguous()
        assert top_k.dtype == torch.int32
        assert 1 <= top_k.min() <= top_k.max() <= logits.shape[1]
        assert top_p.dtype == torch.float32
        assert 0 < top_p.min() <= top_p.max() <= 1
        self.seen.append(logits)
        best, ids = logits.sort(dim=1, descending=True, stable=True)
        rank = torch.arange(logits.shape[1])
        masked = best.masked_fill(rank >= top_k.unsqueeze(1), EMPTY)
        law = masked.softmax(1)
        counted = law if filter_apply_order == "top_k_first" else best.softmax(1)
        law = law.masked_fill(counted.cumsum(1) - counted >= top_p.unsqueeze(1), 0)
        # The real one draws token 0 from a row of NaN.
        law[:, 0] = torch.where(law.isnan().any(1), 1, law[:, 0])
        drawn = law.nan_to_num(0).multinomial(1)
        return ids.gather(1, drawn).squeeze(1).to(torch.int32)


@pytest.fixture
def flashinfer(monkeypatch: pytest.MonkeyPatch) -> FlashInfer:
    """A machine on which FlashInfer runs."""
    stand_in = FlashInfer()
    monkeypatch.setitem(sys.modules, "flashinfer", stand_in)
    monkeypatch.setattr(availability, "compute_capability", lambda on: (9, 0))
    return stand_in


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows each call of drawlot's own backend was given."""
    seen: list[int] = []
    sample_rows = torch_backend.sample_rows

    def spy(logits, *args, **kwargs):
        seen.append(len(logits))
        return sample_rows(logits, *args, **kwargs)

    monkeypatch.setattr(torch_backend, "sample_rows", spy)
    registry._load.cache_clear()
    yield seen
    registry._load.cache_clear()


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


class Case(NamedTuple):
    """A batch of three requests, in rows 2, 0 and 1 of state; row 3 belongs to one that is greedy and seeded."""

    params: list[SamplingParams]
    reason: str | None = None
    """Why it is not FlashInfer's"""
    fp64: bool = False
    mode: str = "raw_logprobs"


PLAIN, K, P = SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.9)
BATCHES = {
    "top_k": Case([PLAIN, K, PLAIN]),
    "top_p": Case([PLAIN, PLAIN, P]),
    "both": Case([SamplingParams(top_k=5, top_p=0.5), PLAIN, P]),
    "with min_p, temperature and edits": Case(
        [K, SamplingParams(temperature=0.5, min_p=0.1), SamplingParams(logit_bias={3: 1.0}, repetition_penalty=1.2)]
    ),
    "with raw logprobs": Case([K, SamplingParams(logprobs=3), PLAIN]),
    "a mode that no row asks for": Case([K, P, PLAIN], mode="processed_logprobs"),
    "no filter": Case([PLAIN, PLAIN, PLAIN], "no row has top_k or top_p"),
    "only min_p": Case([PLAIN, SamplingParams(min_p=0.1), PLAIN], "no row has top_k or top_p"),
    "top_k of the whole vocabulary": Case([SamplingParams(top_k=V), PLAIN, PLAIN], "no row has top_k or top_p"),
    "greedy": Case([K, SamplingParams(temperature=0), P], "a row is greedy"),
    "greedy alone": Case([SamplingParams(temperature=0)] * 3, "no row has top_k or top_p"),
    "seeded": Case([K, SamplingParams(seed=0), P], "a row has a seed"),
    "processed logprobs": Case(
        [K, SamplingParams(logprobs=0), P], "processed logprobs are wanted", mode="processed_logprobs"
    ),
    "processed logits": Case(
        [K, P, SamplingParams(logprob_token_ids=[1])], "processed logprobs are wanted", mode="processed_logits"
    ),
    "float64 noise": Case([K, P, PLAIN], "the noise is float64", fp64=True),
}


def sampler_of(case: Case, backend: str = "flashinfer") -> Sampler:
    sampler = Sampler(4, V, backend=backend, logprobs_mode=case.mode, use_fp64_gumbel=case.fp64)
    sampler.add_request(3, SamplingParams(temperature=0, seed=1, min_p=0.5), [1])
    for req_idx, params in zip((2, 0, 1), case.params):
        sampler.add_request(req_idx, params, [1, 2, 3])
    return sampler


def rows_of(*, host: bool = True) -> LogitsRows:
    mapping = torch.tensor([2, -1, 0, 1])
    zeros = torch.zeros_like(mapping)
    cu = torch.arange(5, dtype=torch.int32)
    return LogitsRows(mapping, mapping, zeros, zeros + 3, zeros, cu, [2, -1, 0, 1] if host else None)


@pytest.fixture
def logits() -> Tensor:
    return torch.randn((4, V), generator=torch.Generator().manual_seed(5)) * 3


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


def test_a_captured_graph_is_refused(flashinfer, own, logits, monkeypatch):
    monkeypatch.setattr(provider, "_captures", lambda on: True)
    for params in (K, PLAIN):
        with pytest.raises(BackendError, match="a CUDA graph would replay"):
            sample(logits, params, backend="flashinfer")
    assert (flashinfer.seen, own) == ([], [])


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
