"""Logprobs of drawn tokens, of prompts and of labels against a plain forward."""

import pytest
import torch
from running import greedy, preempt, prompts, run

from drawlot.params import SamplingParams


@pytest.fixture(scope="module")
def prompt():
    return prompts(26)[0]


@pytest.fixture(scope="module")
def plain(reference):
    """log_softmax of the model's own logits, [len(token_ids), V]."""

    def logprobs(token_ids):
        with torch.inference_mode():
            return reference("llama")(torch.tensor([token_ids])).logits[0].log_softmax(-1)

    return logprobs


@pytest.mark.parametrize("max_num_batched_tokens", [1, 7, 64])
@pytest.mark.parametrize("max_prompt_logits", [1, 3, 1000])
def test_prompt_logprobs(make_engine, prompt, plain, monkeypatch, max_num_batched_tokens, max_prompt_logits):
    monkeypatch.setattr("drawlot.engine.config._PROMPT_LOGITS", max_prompt_logits * 96)
    engine = make_engine(max_num_batched_tokens=max_num_batched_tokens)
    params = SamplingParams(max_tokens=2, prompt_logprobs=3, seed=1)
    others = [(p, greedy(5)) for p in prompts(11, 3, seed=2)]
    # Twice: the second time the prefix is cached, which must not hide any row.
    for _ in range(2):
        output = run(engine, [*others, (prompt, params)])[-1]
        assert len(output.prompt_logprobs) == len(prompt)
        assert output.prompt_logprobs[0] is None
        expected = plain(prompt)
        for position, entry in enumerate(output.prompt_logprobs[1:], 1):
            row = expected[position - 1]
            assert next(iter(entry)) == prompt[position]
            for token_id, logprob in entry.items():
                assert logprob.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
                assert logprob.rank == 1 + int((row > row[token_id]).sum())
            assert set(entry) == {prompt[position], *row.topk(3).indices.tolist()}


@pytest.mark.parametrize("at", range(5))
def test_prompt_logprobs_survive_preemption(make_engine, prompt, plain, at):
    engine = make_engine(max_num_batched_tokens=7)
    engine.add_request("a", prompt, SamplingParams(max_tokens=2, prompt_logprobs=0, seed=1))
    for _ in range(at):
        engine.step()
    preempt(engine)
    while engine.has_unfinished_requests():
        outputs = engine.step()
    got = [entry[token].logprob for token, entry in zip(prompt[1:], outputs[0].prompt_logprobs[1:], strict=True)]
    wanted = plain(prompt)[range(len(prompt) - 1), prompt[1:]].tolist()
    assert got == pytest.approx(wanted, abs=1e-4)


def test_prompt_alone(make_engine, prompt):
    (output,) = run(make_engine(), [(prompt, SamplingParams(max_tokens=0, prompt_logprobs=1))])
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([], "length")
    assert len(output.prompt_logprobs) == len(prompt)
    (output,) = run(make_engine(), [(prompt[:1], SamplingParams(max_tokens=0, prompt_logprobs=1))])
    assert output.prompt_logprobs == [None]


def test_logprobs_of_drawn_tokens(make_engine, prompt, plain):
    (output,) = run(make_engine(), [(prompt, SamplingParams(max_tokens=8, logprobs=4, seed=3))])
    choice = output.outputs[0]
    expected = plain(prompt + choice.token_ids)[len(prompt) - 1 :]
    for row, token_id, entry in zip(expected, choice.token_ids, choice.logprobs):
        assert next(iter(entry)) == token_id
        best = row.topk(4).indices.tolist()
        assert [t for t in entry if entry[t].rank <= 4] == ([token_id] if token_id in best else []) + [
            t for t in best if t != token_id
        ]
        for t, logprob in entry.items():
            assert logprob.logprob == pytest.approx(float(row[t]), abs=1e-4)
            assert logprob.rank == 1 + int((row > row[t]).sum())
    drawn = sum(entry[t].logprob for t, entry in zip(choice.token_ids, choice.logprobs))
    assert choice.cumulative_logprob == pytest.approx(drawn)


def test_listed_tokens_in_the_order_given(make_engine, prompt, plain):
    ids = [17, 3, 90]
    requests = [
        (prompt, SamplingParams(max_tokens=4, logprob_token_ids=ids, seed=3)),
        (prompt, SamplingParams(max_tokens=4, seed=3)),
        (prompt, SamplingParams(max_tokens=4, logprobs=0, seed=3)),
    ]
    listed, none, drawn_only = (output.outputs[0] for output in run(make_engine(), requests))
    assert listed.token_ids == none.token_ids == drawn_only.token_ids
    expected = plain(prompt + listed.token_ids)[len(prompt) - 1 :]
    for row, token_id, entry in zip(expected, listed.token_ids, listed.logprobs):
        assert list(entry) == [token_id, *(i for i in ids if i != token_id)]
        for i in ids:
            assert entry[i].logprob == pytest.approx(float(row[i]), abs=1e-4)
            assert (entry[i].rank is None) == (i != token_id)
    assert none.logprobs is None
    assert none.cumulative_logprob is None
    assert [list(entry) for entry in drawn_only.logprobs] == [[t] for t in drawn_only.token_ids]


@pytest.mark.parametrize("max_num_batched_tokens", [6, 64])
def test_scoring(make_engine, prompt, plain, max_num_batched_tokens):
    engine = make_engine(max_num_batched_tokens=max_num_batched_tokens)
    labels = [4, 80, 11]
    engine.add_scoring_request("score", prompt, labels)
    engine.add_request("draw", prompts(8, seed=9)[0], greedy(6))
    outputs = {}
    while engine.has_unfinished_requests():
        outputs.update({output.request_id: output for output in engine.step()})
    assert outputs["score"].finished
    assert outputs["score"].label_logprobs == pytest.approx(plain(prompt)[-1, labels].tolist(), abs=1e-4)
    assert outputs["score"].outputs[0].token_ids == []
    assert len(outputs["draw"].outputs[0].token_ids) == 6
