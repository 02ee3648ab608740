"""The stateful sampler: edits, history, drafts, rows that come and go."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from drawlot import BackendError, InputError, LogitsRows, ParameterError, RowStatus, Sampler, SamplingParams, sample

V = 300
BACKENDS = ["reference", "torch"]


def rows_of(requests: Sequence[int], positions: Sequence[int]) -> LogitsRows:
    """One row a request, no drafts."""
    index = torch.tensor(requests)
    zeros = torch.zeros_like(index)
    cu = torch.arange(len(requests) + 1, dtype=torch.int32)
    return LogitsRows(index, index, zeros, torch.tensor(positions), zeros, cu)


def expected_values(
    logits: np.ndarray, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]
) -> np.ndarray:
    """Stage 2 as semantics.md words it, token by token, in float32."""
    values = logits.astype(np.float32).copy()
    f32 = np.float32
    for token in range(len(values)):
        x = values[token] + f32((params.logit_bias or {}).get(token, 0))
        count = list(output).count(token)
        if token in prompt or count:
            r = f32(params.repetition_penalty)
            x = x / r if x > 0 else x * r
        x = x - f32(params.frequency_penalty) * f32(count)
        x = x - f32(params.presence_penalty if count else 0)
        values[token] = x
    return values


@pytest.mark.parametrize("backend", BACKENDS)
def test_bias_and_penalties_follow_the_formula(backend: str) -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, V).astype(np.float32)
    prompt, output = [1, 2, 2, 250], [2, 3, 3, 3, 299]
    params = SamplingParams(
        temperature=0,
        logit_bias={2: 1.5, 7: -3.0},
        repetition_penalty=1.3,
        frequency_penalty=0.7,
        presence_penalty=-0.4,
        logprobs=-1,
    )
    out = sample(
        torch.from_numpy(logits)[None],
        params,
        prompt_token_ids=[prompt],
        output_token_ids=[output],
        logprobs_mode="processed_logits",
        backend=backend,
    )
    assert out.logprobs is not None
    got = np.empty(V, np.float32)
    got[out.logprobs.logprob_token_ids[0, 1:].numpy()] = out.logprobs.logprobs[0, 1:].numpy()
    np.testing.assert_array_equal(got, expected_values(logits, params, prompt, output))


@pytest.mark.parametrize("backend", BACKENDS)
def test_commit_equals_starting_over_with_the_output(backend: str) -> None:
    torch.manual_seed(1)
    params = [
        SamplingParams(seed=1, repetition_penalty=1.5, logprobs=0),
        SamplingParams(seed=2, frequency_penalty=1.0, presence_penalty=0.5, logprobs=0),
        SamplingParams(seed=3, logprobs=0),
    ]
    prompts = [[5, 6, 7], [8] * 300, []]
    running = Sampler(8, V, logprobs_mode="processed_logprobs", backend=backend)
    where = [6, 0, 3]
    for row, p, prompt in zip(where, params, prompts):
        running.add_request(row, p, prompt)
    outputs: list[list[int]] = [[], [], []]
    for step in range(12):
        logits = torch.randn(3, V)
        order = [2, 0, 1] if step % 2 else [0, 1, 2]
        positions = [len(prompts[i]) + step for i in order]
        out = running(logits[order], rows_of([where[i] for i in order], positions))
        fresh = sample(
            logits[order],
            [params[i] for i in order],
            prompt_token_ids=[prompts[i] for i in order],
            output_token_ids=[outputs[i] for i in order],
            logprobs_mode="processed_logprobs",
            backend=backend,
        )
        assert torch.equal(out.token_ids, fresh.token_ids)
        assert out.logprobs is not None
        assert fresh.logprobs is not None
        assert torch.equal(out.logprobs.logprobs, fresh.logprobs.logprobs)
        tokens = out.token_ids.unsqueeze(1)
        running.commit(torch.tensor([where[i] for i in order]), tokens, torch.ones(3, dtype=torch.int32))
        for i, token in zip(order, out.token_ids.tolist()):
            outputs[i].append(token)


@pytest.mark.parametrize("backend", BACKENDS)
def test_drafts_before_a_row_count_as_output(backend: str) -> None:
    torch.manual_seed(2)
    prompt, output, drafts = [1, 2], [3], [40, 40, 41]
    params = SamplingParams(seed=9, frequency_penalty=2.0, repetition_penalty=1.2, logprobs=-1)
    sampler = Sampler(4, V, logprobs_mode="processed_logprobs", backend=backend)
    sampler.add_request(2, params, prompt, output, bad_words_token_ids=[[40, 41, 9]])
    logits = torch.randn(4, V)
    logits[3, 9] = 50
    request = torch.tensor([2])
    rows = LogitsRows(
        request,
        request.expand(4),
        torch.arange(4),
        torch.arange(3, 7),
        torch.tensor([output[-1], *drafts]),
        torch.tensor([0, 4], dtype=torch.int32),
    )
    out = sampler(logits, rows)
    assert out.logprobs is not None
    assert out.token_ids[3] != 9, "the drafts complete a bad word"
    for j in range(3):
        alone = sample(
            logits[j : j + 1],
            params,
            prompt_token_ids=[prompt],
            output_token_ids=[output + drafts[:j]],
            logprobs_mode="processed_logprobs",
            backend=backend,
        )
        assert alone.logprobs is not None
        assert out.token_ids[j] == alone.token_ids[0]
        assert torch.equal(out.logprobs.logprobs[j], alone.logprobs.logprobs[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_words_look_at_the_output_alone(backend: str) -> None:
    sampler = Sampler(4, V, backend=backend)
    params = SamplingParams(temperature=0)
    bad = [[7], [10, 11], [20, 21, 22]]
    cases = [([10], [], 11, True), ([1], [10], 11, False), ([1], [20, 21], 22, False), ([20], [21], 22, True)]
    for i, (prompt, output, _, _) in enumerate(cases):
        sampler.add_request(i, params, prompt, output, bad_words_token_ids=bad)
    logits = torch.zeros(4, V)
    for i, (_, _, token, _) in enumerate(cases):
        logits[i, token], logits[i, 7], logits[i, 100] = 5, 9, 1
    positions = [len(prompt) + len(output) for prompt, output, _, _ in cases]
    tokens = sampler(logits, rows_of(range(4), positions)).token_ids.tolist()
    assert tokens == [token if allowed else 100 for _, _, token, allowed in cases]


@pytest.mark.parametrize("backend", BACKENDS)
def test_masks_intersect_and_an_empty_support_is_flagged(backend: str) -> None:
    sampler = Sampler(4, V, backend=backend)
    sampler.add_request(0, SamplingParams(temperature=0, allowed_token_ids=[3, 4]), [1])
    sampler.add_request(1, SamplingParams(temperature=0, min_tokens=2, max_tokens=5, stop_token_ids=[3, 4]), [1])
    sampler.add_request(2, SamplingParams(temperature=0, allowed_token_ids=[5]), [1])
    bitmask = torch.zeros(4, -(-V // 32), dtype=torch.int32)
    bitmask[:, 0] = (1 << 3) | (1 << 4) | (1 << 9)
    bitmask[3] = -1
    logits = torch.zeros(4, V)
    logits[:, 3] = 1
    sampler.add_request(3, SamplingParams(temperature=0), [1])
    out = sampler(logits, rows_of(range(4), [1, 1, 1, 1]), bitmask)
    assert out.token_ids.tolist() == [3, 9, -1, 3]
    assert out.status.tolist() == [0, 0, int(RowStatus.EMPTY_SUPPORT), 0]
    later = sampler(logits, rows_of(range(4), [3, 3, 3, 3]), bitmask)
    assert later.token_ids.tolist() == [3, 3, -1, 3], "min_tokens is reached"


@pytest.mark.parametrize("backend", BACKENDS)
def test_skipped_rows_have_no_output_and_no_effect(backend: str) -> None:
    sampler = Sampler(2, V, backend=backend)
    sampler.add_request(1, SamplingParams(seed=1, frequency_penalty=1.0, logprobs=1), [1])
    logits = torch.randn(3, V)
    logits[0], logits[2] = torch.nan, torch.inf
    out = sampler(logits, rows_of([-1, 1, -1], [5, 1, 5]))
    assert out.token_ids[[0, 2]].tolist() == [-1, -1]
    assert out.token_ids[1] >= 0
    skipped = int(RowStatus.SKIPPED)
    assert out.status.tolist() == [skipped, 0, skipped]
    sampler.commit(torch.tensor([-1, 1]), torch.tensor([[3], [4]]), torch.tensor([1, 1]))
    again = sampler(logits[1:2], rows_of([1], [2]))
    fresh = sample(
        logits[1:2],
        SamplingParams(seed=1, frequency_penalty=1.0, logprobs=1),
        prompt_token_ids=[[1]],
        output_token_ids=[[4]],
        backend=backend,
    )
    assert torch.equal(again.token_ids, fresh.token_ids)


def test_a_freed_row_forgets_its_request() -> None:
    sampler = Sampler(1, V)
    for _ in range(20):  # more than the history's first slots
        sampler.add_request(0, SamplingParams(temperature=0, repetition_penalty=9.0, allowed_token_ids=[1]), [2])
        sampler.remove_request(0)
    sampler.add_request(0, SamplingParams(temperature=0), [2])
    logits = torch.zeros(1, V)
    logits[0, 2] = 1
    assert sampler(logits, rows_of([0], [1])).token_ids.tolist() == [2]


def test_history_grows_with_the_longest_request() -> None:
    sampler = Sampler(2, V)
    params = SamplingParams(temperature=0, presence_penalty=2.0, max_tokens=2000)
    sampler.add_request(0, params, [])
    sampler.add_request(1, params, list(range(200)))
    for step in range(700):
        token = torch.tensor([[step % 3], [step % 5]])
        sampler.commit(torch.tensor([0, 1]), token, torch.tensor([1, 1]))
    logits = torch.zeros(2, V)
    logits[:, :5] = 1  # seen tokens sink below the others
    out = sampler(logits, rows_of([0, 1], [700, 900]))
    assert out.token_ids.tolist() == [3, 5]


def test_choices_of_one_seed_differ_and_are_reproducible() -> None:
    sampler = Sampler(8, V)
    for choice in range(8):
        sampler.add_request(choice, SamplingParams(seed=4, n=8), [1], choice_index=choice)
    logits = torch.zeros(8, V)
    tokens = sampler(logits, rows_of(range(8), [1] * 8)).token_ids
    assert len(set(tokens.tolist())) >= 6
    alone = sample(logits[:1], SamplingParams(seed=4), positions=torch.tensor([1]), choice_index=5)
    assert alone.token_ids[0] == tokens[5]


def test_unseeded_rows_draw_independently_and_follow_manual_seed() -> None:
    logits = torch.zeros(200, V)
    torch.manual_seed(7)
    first = sample(logits, SamplingParams()).token_ids
    torch.manual_seed(7)
    assert torch.equal(sample(logits, SamplingParams()).token_ids, first)
    assert len(set(first.tolist())) > 100


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.add_request(9, SamplingParams(), []), "req_idx: must be a free row in [0, 2); got 9"),
        (lambda s: s.add_request(0, SamplingParams(), []), "req_idx: must be a free row in [0, 2); got 0"),
        (lambda s: s.remove_request(1), "req_idx: no request owns row 1"),
        (
            lambda s: s.add_request(1, SamplingParams(stop_token_ids=[V]), []),
            "stop_token_ids: token ids must be in [0, 300); got 300",
        ),
        (lambda s: s.add_request(1, SamplingParams(), [V]), "prompt_token_ids: token ids must be in [0, 300); got 300"),
        (
            lambda s: s.add_request(1, SamplingParams(), [], [-1]),
            "output_token_ids: token ids must be in [0, 300); got -1",
        ),
        (lambda s: s.add_request(1, SamplingParams(bad_words=["x"]), []), "bad_words: are texts"),
        (lambda s: s.add_request(1, SamplingParams(), [], bad_words_token_ids=[[]]), "must hold non-empty lists"),
        (
            lambda s: s.add_request(1, SamplingParams(), [], bad_words_token_ids=[[V]]),
            "bad_words_token_ids: token ids must be",
        ),
        (
            lambda s: s.add_request(1, SamplingParams(), [], choice_index=128),
            "choice_index: must be in [0, 128); got 128",
        ),
        (lambda s: s(torch.zeros(1, V - 1), rows_of([0], [0])), "logits: must be [N, >= 300]; got [1, 299]"),
        (
            lambda s: s(torch.zeros(1, V, dtype=torch.float64), rows_of([0], [0])),
            "logits: must be float32, bfloat16 or float16",
        ),
        (
            lambda s: s(torch.zeros(1, V), rows_of([0], [0]), torch.zeros(1, 3, dtype=torch.int32)),
            "allowed_bitmask: must be int32 [1, 10]",
        ),
    ],
)
def test_misuse_is_named(call: object, message: str) -> None:
    sampler = Sampler(2, V)
    sampler.add_request(0, SamplingParams(), [])
    with pytest.raises((InputError, ParameterError)) as error:
        call(sampler)  # type: ignore[operator]
    assert message in str(error.value)
    # A refused request leaves nothing behind.
    assert sampler(torch.zeros(1, V), rows_of([0], [0])).status.tolist() == [0]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"params": SamplingParams(seed=1)}, "positions: needed with a seed"),
        ({"params": [SamplingParams()]}, "params: must be one, or one for each of the 2 rows; got 1"),
        ({"params": SamplingParams(presence_penalty=1.0)}, "output_token_ids: needed with penalties"),
        ({"params": SamplingParams(), "positions": torch.zeros(3, dtype=torch.int64)}, "positions: must be int64 [2]"),
        ({"params": SamplingParams(), "prompt_token_ids": [[1]]}, "prompt_token_ids: must hold one list for each"),
        ({"params": SamplingParams(logprob_token_ids=[V])}, "logprob_token_ids: token ids must be in [0, 300)"),
        ({"params": SamplingParams(), "choice_index": 128}, "choice_index: must be in [0, 128); got 128"),
        ({"params": SamplingParams(), "logprobs_mode": "raw"}, "logprobs_mode: must be one of raw_logprobs"),
    ],
)
def test_misuse_of_sample_is_named(kwargs: dict[str, object], message: str) -> None:
    with pytest.raises((InputError, ParameterError)) as error:
        sample(torch.zeros(2, V), **kwargs)  # type: ignore[arg-type]
    assert message in str(error.value)


@pytest.mark.parametrize("backend", ["triton", "flashinfer", "cuda"])
def test_a_backend_that_cannot_run_is_refused_with_the_reason(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(BackendError, match=f"backend '{backend}': "):
        Sampler(1, V, backend=backend)
