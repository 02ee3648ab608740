"""`verify`, the stateless call, and what both calls answer to bad arguments."""

from collections.abc import Callable

import pytest
import torch

import drawlot
from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, SparseDraftLogits, verify
from drawlot.errors import DrawlotError, InputError, ParameterError
from drawlot.verification import DraftSampler
from tests.verification.world import BACKENDS

R, K, V = 6, 3, 40
SEEDED = [SamplingParams(seed=r, temperature=0.8, logprobs=1, top_k=10 * (r % 2)) for r in range(R)]


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 2


TARGET = logits(R, K + 1, V)
DRAFTER = TARGET[:, :K] + logits(R, K, V, seed=1) / 4
DRAFTS = DRAFTER.argmax(2)
POSITIONS = torch.arange(R)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_stateless_call_is_the_stateful_one(backend: str) -> None:
    method = ["standard", "block", "coupled"] * 2
    counts = [3, 0, 2, 1, 3, 3]
    drafts = torch.where(torch.arange(K) < torch.tensor(counts).unsqueeze(1), DRAFTS, -1)
    sampler = Sampler(R, V, backend=backend)
    verifier = RejectionSampler(sampler, num_speculative_tokens=K)
    for r in range(R):
        sampler.add_request(r, SEEDED[r], (1, 2, 3), range(r))
        verifier.set_method(r, method[r])
    index, columns = torch.arange(R), torch.arange(K + 1)
    rows = LogitsRows(
        index,
        index.repeat_interleave(K + 1),
        columns.repeat(R),
        (3 + POSITIONS.unsqueeze(1) + columns).flatten(),
        torch.nn.functional.pad(DRAFTS, (1, 0)).flatten(),
        torch.arange(R + 1, dtype=torch.int32) * (K + 1),
    )
    expected = verifier(TARGET.flatten(0, 1), rows, drafts, DRAFTER)
    prompts, outputs = [(1, 2, 3)] * R, [list(range(r)) for r in range(R)]
    out = verify(
        TARGET,
        DRAFTS,
        DRAFTER,
        params=SEEDED,
        num_drafts=counts,
        prompt_token_ids=prompts,
        output_token_ids=outputs,
        method=method,
        backend=backend,
    )
    for ours, theirs in zip(out[:3], expected[:3]):
        assert torch.equal(ours, theirs)
    assert out.num_accepted.sum() > R / 2
    assert out.logprobs is not None
    assert expected.logprobs is not None
    emits = torch.arange(K + 1) < out.num_sampled.unsqueeze(1)
    for ours, theirs in zip(out.logprobs[:3], expected.logprobs[:3]):
        assert torch.equal(ours[emits.flatten()], theirs[emits.flatten()])


@pytest.mark.parametrize("backend", BACKENDS)
def test_draft_params_say_what_drafts_were_drawn_with(backend: str) -> None:
    given = SamplingParams(temperature=0.5, top_k=3)
    weights = torch.where(DRAFTER.topk(3).values[..., -1:] <= DRAFTER, DRAFTER / 0.5, -torch.inf)
    raw = verify(TARGET, DRAFTS, DRAFTER, params=SEEDED, positions=POSITIONS, draft_params=given, backend=backend)
    drawn_from = verify(TARGET, DRAFTS, weights, params=SEEDED, positions=POSITIONS, backend=backend)
    plain = verify(TARGET, DRAFTS, DRAFTER, params=SEEDED, positions=POSITIONS, backend=backend)
    assert torch.equal(raw.sampled_token_ids, drawn_from.sampled_token_ids)
    assert not torch.equal(raw.sampled_token_ids, plain.sampled_token_ids)


def test_a_refused_draft_is_never_accepted_and_its_token_never_drawn() -> None:
    refused = -2 - DRAFTS
    out = verify(TARGET, refused, DRAFTER, params=SEEDED, positions=POSITIONS)
    assert (out.num_accepted == 0).all()
    assert (out.sampled_token_ids[:, 0] != DRAFTS[:, 0]).all()


def test_both_backends_name_themselves() -> None:
    assert drawlot.verify is verify
    with pytest.raises(drawlot.errors.BackendError, match="flashinfer"):
        verify(TARGET, DRAFTS, params=SamplingParams(), backend="flashinfer")


def call(*args: object, **kwargs: object) -> Callable[[], object]:
    return lambda: verify(*args, **{"params": SamplingParams()} | kwargs)


def stateful(**kwargs: object) -> Callable[[], object]:
    def run() -> object:
        sampler = Sampler(R, V, backend="torch")
        return RejectionSampler(sampler, **{"num_speculative_tokens": K} | kwargs)

    return run


def verified(*args: object) -> Callable[[], object]:
    def run() -> object:
        index = torch.arange(R)
        rows = LogitsRows(index, index, index, index, index, torch.arange(R + 1, dtype=torch.int32))
        return stateful()()(TARGET[:, 0], rows, *args)

    return run


def drafting(**kwargs: object) -> Callable[[], object]:
    return lambda: DraftSampler(Sampler(R, V, backend="torch"), **{"num_speculative_tokens": K} | kwargs)


def drawn(step: int, rows: torch.Tensor = TARGET[:, 0]) -> Callable[[], object]:
    index = torch.arange(R)
    return lambda: drafting()().draw(rows, index, index, step)


OTHER = DRAFTS.clone()
OTHER[2, 1] = V
SPARSE = SparseDraftLogits(torch.zeros((R, K, 2), dtype=torch.int64), torch.zeros((R, K, 3)))
LSE = torch.zeros((R, K))
BAD = [
    (call(TARGET[0], DRAFTS), InputError, r"target_logits: must be \[R, K \+ 1, V\] with K >= 1; got \[4, 40\]"),
    (call(TARGET[:, :1], DRAFTS[:, :0]), InputError, r"target_logits: must be .*; got \[6, 1, 40\]"),
    (call(TARGET.double(), DRAFTS), InputError, "logits: .*float64"),
    (call(TARGET, DRAFTS[:, :2]), InputError, r"draft_token_ids: must be int64 \[6, 3\]; got torch.int64 \[6, 2\]"),
    (call(TARGET, DRAFTS.int()), InputError, r"draft_token_ids: must be int64 \[6, 3\]; got torch.int32"),
    (call(TARGET, OTHER), InputError, r"draft_token_ids: must be in \[0, 40\), -1, or -2 - id; got 40"),
    (call(TARGET, -2 - OTHER), InputError, r"draft_token_ids: must be in \[0, 40\), -1, or -2 - id; got -42"),
    (call(TARGET, DRAFTS, DRAFTER[..., :9]), InputError, r"draft_logits: must be \[6, 3, >= 40\]; got \[6, 3, 9\]"),
    (call(TARGET, DRAFTS, DRAFTER.double()), InputError, "draft_logits: must be float32, bfloat16 or float16; got"),
    (call(TARGET, DRAFTS, SPARSE), InputError, r"draft_logits: token ids must be int64 \[6, 3, M\], logits as many"),
    (call(TARGET, DRAFTS, num_drafts=[1]), InputError, r"num_drafts: must hold 6 numbers in \[0, 3\]; got \[1\]"),
    (call(TARGET, DRAFTS, num_drafts=[4] * R), InputError, r"num_drafts: must hold 6 numbers in \[0, 3\]; got \[4"),
    (call(TARGET, DRAFTS, params=SEEDED[:2]), InputError, "params: must be one, or one for each of the 6 req.*; got 2"),
    (call(TARGET, DRAFTS, params=SEEDED), InputError, "positions: needed with a seed"),
    (call(TARGET, DRAFTS, positions=POSITIONS[:2]), InputError, r"positions: must be int64 \[6\]; got torch.int64"),
    (
        call(TARGET, DRAFTS, prompt_token_ids=[[1]]),
        InputError,
        "prompt_token_ids: must hold one list for each of the 6",
    ),
    (call(TARGET, DRAFTS, params=SamplingParams(frequency_penalty=1)), InputError, "output_token_ids: needed with"),
    (call(TARGET, DRAFTS, method="typical"), ParameterError, "method: .*standard, block, coupled, synthetic.*typical"),
    (call(TARGET, DRAFTS, method=["block"]), InputError, "method: must be one, or one for each of the 6 req.*; got 1"),
    (call(TARGET, DRAFTS, method="synthetic"), ParameterError, "synthetic_rates: are needed with the method synthetic"),
    (call(TARGET, DRAFTS, draft_params=SamplingParams()), InputError, "draft_params: belong to dense draft_logits"),
    (
        call(TARGET, DRAFTS, DRAFTER, draft_params=SamplingParams(logit_bias={1: 1.0})),
        ParameterError,
        "draft_params: only temperature, top_k, top_p and min_p count for drafts",
    ),
    (
        call(TARGET, DRAFTS, allowed_bitmask=torch.zeros((R, 2), dtype=torch.int32)),
        InputError,
        r"allowed_bitmask: must be int32 \[6, 4, 2\]; got torch.int32 \[6, 2\]",
    ),
    (call(TARGET, DRAFTS, logprobs_mode="all"), ParameterError, "logprobs_mode: .*all"),
    (stateful(num_speculative_tokens=0), ParameterError, "num_speculative_tokens: must be >= 1.*0"),
    (stateful(method="greedy"), ParameterError, "method: must be one of .*greedy"),
    (stateful(method="synthetic"), ParameterError, "synthetic_rates: are needed"),
    (stateful(synthetic_rates=[0.5]), ParameterError, r"synthetic_rates: must hold 3 rates, one a draft.*\[0.5\]"),
    (
        stateful(synthetic_rates=[0.5, 0.6, 0.1]),
        ParameterError,
        r"synthetic_rates: must lie in \[0, 1\] and never rise",
    ),
    (lambda: stateful()().set_method(0, "block"), InputError, "req_idx: no request owns row 0"),
    (verified(DRAFTS[:, :1]), InputError, r"draft_token_ids: must be int64 \[6, 3\]; got torch.int64 \[6, 1\]"),
    (verified(DRAFTS, DRAFTER[:2]), InputError, r"draft_logits: must be \[6, 3, >= 40\]; got \[2, 3, 40\]"),
    (verified(DRAFTS, None, LSE), InputError, "draft_lse: belongs to draft_logits, which are missing"),
    (
        verified(DRAFTS, DRAFTER, LSE[:2]),
        InputError,
        r"draft_lse: must be float32 \[6, 3\]; got torch.float32 \[2, 3\]",
    ),
    (drafting(num_speculative_tokens=0), ParameterError, "num_speculative_tokens: must be >= 1.*0"),
    (drawn(K), InputError, r"step: must be in \[0, 3\); got 3"),
    (drawn(0, TARGET[:, 0, :9]), InputError, "logits: .*40.*9"),
]


@pytest.mark.parametrize(("run", "error", "line"), BAD)
def test_bad_arguments_get_one_clear_line(run: Callable[[], object], error: type[DrawlotError], line: str) -> None:
    with pytest.raises(error, match=line) as raised:
        run()
    assert "\n" not in str(raised.value)
