"""What a request gets does not depend on its batch, with and without drafts, whatever else the engine has to do."""

import itertools

import pytest

from drawlot.outputs import RowStatus
from drawlot.params import SamplingParams
from tests.speculative.models import SPECULATORS
from tests.speculative.running import check_idle, drafts_of, preempt, prompts, run, sampled, tokens

TEXTS = prompts(5, 18, 1, 9, 30, 12, 7, 3)
MIXED = list(
    zip(
        TEXTS,
        [
            sampled(0, temperature=0),
            sampled(1),
            sampled(2, top_k=5, max_tokens=30),
            sampled(3, presence_penalty=1.0, frequency_penalty=0.5, repetition_penalty=1.2),
            sampled(4, min_p=0.1, max_tokens=3),
            sampled(5, n=3, logprobs=2, top_p=0.9),
            sampled(6, min_tokens=9, stop_token_ids=[3, 4], logit_bias={1: 2.0}),
            sampled(7, allowed_token_ids=[1, 2, 5, 6], logprob_token_ids=[6, 0], max_tokens=25),
        ],
    )
)


def config_of(method, verification="coupled", **config):
    lookup = {"prompt_lookup_min": 1} if method == "ngram" else {}
    return {"method": method, "rejection_sample_method": verification} | lookup | config


@pytest.fixture(scope="module")
def plain(engine_of):
    """Without drafts, alone, the prompt in one piece."""
    engine = engine_of(enable_prefix_caching=False)
    return [run(engine, [request])[0] for request in MIXED]


@pytest.fixture(
    scope="module",
    params=itertools.product(SPECULATORS, ["coupled", "standard", "block"]),
    ids=lambda param: "-".join(param),
)
def case(request, engine_of, plain):
    """A configuration, and what each request gets alone: under `coupled`, what it gets without drafts."""
    config = config_of(*request.param)
    if config["rejection_sample_method"] == "coupled":
        return config, tokens(plain)
    engine = engine_of(config, enable_prefix_caching=False)
    alone = tokens(run(engine, [each])[0] for each in MIXED)
    assert alone[0] == tokens(plain)[0]
    assert alone != tokens(plain)
    return config, alone


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"max_num_seqs": 3},
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 5},
        {"num_kv_blocks": 17},
        {"num_kv_blocks": 16, "enable_prefix_caching": False},
    ],
    ids=str,
)
def test_the_batch_does_not_matter(engine_of, case, args):
    config, expected = case
    engine = engine_of(config, **args)
    outputs = run(engine, MIXED)
    assert tokens(outputs) == expected
    assert engine.speculative_metrics.num_accepted_draft_tokens > 20
    assert "num_kv_blocks" not in args or engine.stats.preemptions > 0
    assert sum(drafts_of(output)[1] for output in outputs) == engine.speculative_metrics.num_accepted_draft_tokens


def test_preemption_at_any_step(engine_of, case):
    config, expected = case
    engine = engine_of(config)
    for at in range(1, 12, 2):
        engine.add_request("a", *MIXED[3])
        outputs, step = [], 0
        while engine.has_unfinished_requests():
            if step == at:
                preempt(engine)
            step += 1
            outputs += engine.step()
        assert tokens(outputs[-1:]) == [expected[3]]
        check_idle(engine)


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("speculator", SPECULATORS)
def test_any_number_of_drafts(engine_of, plain, speculator, count):
    engine = engine_of(config_of(speculator, num_speculative_tokens=count))
    assert tokens(run(engine, MIXED)) == tokens(plain)
    assert len(engine.speculative_metrics.drafted) == count


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_requests_with_different_numbers_of_drafts_share_a_batch(engine_of, speculator):
    asked = [(text, sampled(i, max_tokens=4 + i)) for i, text in enumerate(prompts(*[6] * 8))]
    engine = engine_of(config_of(speculator))
    batches = []
    engine.drafting.on_verified = lambda seen: batches.append(set((seen.rows.cu_num_logits.diff() - 1).tolist()))
    finished = {}
    for i, request in enumerate(asked):
        engine.add_request(str(i), *request, use_speculation=i != 7)
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    assert set().union(*batches) == {0, 1, 2, 3, 4}
    assert max(map(len, batches)) >= 4
    assert tokens(finished[str(i)] for i in range(8)) == tokens(run(engine_of(), asked))


@pytest.mark.parametrize("config", [{"draft_sample_method": "greedy"}, {"draft_filters": True}], ids=str)
@pytest.mark.parametrize("speculator", ["draft_model", "eagle"])
def test_any_drafts(engine_of, plain, speculator, config):
    assert tokens(run(engine_of(config_of(speculator, **config)), MIXED)) == tokens(plain)


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_logprobs(engine_of, plain, speculator):
    """Of every token, top or named; also after a step has emitted more tokens than were wanted."""
    outputs = run(engine_of(config_of(speculator)), MIXED)
    for output, expected in zip(outputs, plain):
        for choice, wanted in zip(output.outputs, expected.outputs):
            if wanted.logprobs is None:
                assert choice.logprobs is None
                continue
            assert len(choice.logprobs) == len(choice.token_ids)
            assert choice.cumulative_logprob == pytest.approx(wanted.cumulative_logprob, abs=1e-3)
            for entry, reference in zip(choice.logprobs, wanted.logprobs, strict=True):
                assert list(entry) == list(reference)
                for token_id, logprob in entry.items():
                    assert logprob.logprob == pytest.approx(reference[token_id].logprob, abs=1e-4)
                    assert logprob.rank == reference[token_id].rank
    assert drafts_of(outputs[5])[1] > 0
    assert drafts_of(outputs[7])[1] > 0


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_prompt_logprobs_and_scores_beside_drafts(engine_of, speculator):
    text = SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=2, detokenize=False)

    def outputs(engine):
        for i, request in enumerate(MIXED):
            engine.add_request(f"draw {i}", *request)
        finished = {}
        for step in range(100):
            if step in (2, 5):
                engine.add_request(f"prompt {step}", TEXTS[4], text)
                engine.add_scoring_request(f"score {step}", TEXTS[1], [3, 0, 7])
            finished |= {output.request_id: output for output in engine.step() if output.finished}
        check_idle(engine)
        return finished

    got, expected = outputs(engine_of(config_of(speculator))), outputs(engine_of())
    for step in (2, 5):
        scores, wanted = (each[f"score {step}"].label_logprobs for each in (got, expected))
        assert scores == pytest.approx(wanted, abs=1e-4)
        of_prompt, wanted = (each[f"prompt {step}"].prompt_logprobs for each in (got, expected))
        assert of_prompt[0] is None
        for entry, reference in zip(of_prompt[1:], wanted[1:], strict=True):
            assert list(entry) == list(reference)
            assert [entry[i].logprob for i in entry] == pytest.approx([reference[i].logprob for i in entry], abs=1e-4)
        assert got[f"prompt {step}"].outputs[0].token_ids == expected[f"prompt {step}"].outputs[0].token_ids
    assert all(tokens([got[f"draw {i}"]]) == tokens([expected[f"draw {i}"]]) for i in range(len(MIXED)))


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_opting_out(engine_of, plain, speculator):
    """Beside others that draft, a request draws as if none did, and has no metrics of drafts."""
    engine = engine_of(config_of(speculator, "standard"))
    finished = {}
    for i, request in enumerate(MIXED):
        engine.add_request(str(i), *request, use_speculation=bool(i % 2))
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    for i, expected in enumerate(plain):
        if i % 2:
            assert finished[str(i)].metrics.speculative_decoding is not None
        else:
            assert finished[str(i)].metrics.speculative_decoding is None
            assert tokens([finished[str(i)]]) == tokens([expected])
    check_idle(engine)


@pytest.mark.parametrize("speculator", SPECULATORS)
@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_max_tokens(engine_of, plain, speculator, max_tokens):
    """Drafts are no more than could be emitted; a request for one token drafts nothing."""
    engine = engine_of(config_of(speculator, num_speculative_tokens=7))
    (output,) = run(engine, [(TEXTS[1], sampled(1, max_tokens=max_tokens))])
    (choice,) = output.outputs
    assert choice.token_ids == plain[1].outputs[0].token_ids[:max_tokens]
    assert choice.finish_reason == "length"
    assert (drafts_of(output)[0] > 0) <= (max_tokens > 2)


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_the_context_is_filled(engine_of, speculator):
    """To its last position, by all but the last token."""
    text = (TEXTS[4] * 3)[:58]
    params = sampled(1, max_tokens=40)
    (output,) = run(engine_of(config_of(speculator)), [(text, params)])
    (expected,) = run(engine_of(), [(text, params)])
    assert tokens([output]) == tokens([expected])
    assert len(text) + len(output.outputs[0].token_ids) == 64
    assert output.outputs[0].finish_reason == "length"


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_abort(engine_of, plain, speculator):
    engine = engine_of(config_of(speculator))
    for i, request in enumerate(MIXED):
        engine.add_request(str(i), *request)
    finished = {}
    for step in range(100):
        if step == 3:
            engine.abort("0")
            engine.abort("5")
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    check_idle(engine)
    assert sorted(finished) == ["1", "2", "3", "4", "6", "7"]
    assert all(tokens([output]) == tokens([plain[int(i)]]) for i, output in finished.items())


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_a_bad_row_ends_its_choice_alone(engine_of, plain, speculator):
    """NaN in the target's logits of one request's last row; its blocks are cleared for those after."""
    engine = engine_of(config_of(speculator))
    forward = engine._runner.target.forward
    spoilt = []

    def spoil(batch, staged, rows):
        logits = forward(batch, staged, rows)
        if not spoilt and engine._requests["1"].choices[0].num_output >= 4:
            first = 0
            for span in batch.spans:
                width = min(len(span.token_ids), 5)
                if span.row == engine._requests["1"].choices[0].row:
                    logits[first : first + width] = float("nan")
                    spoilt.append(span)
                first += width
        return logits

    engine._runner.target.forward = spoil
    for i in (1, 2, 3):
        engine.add_request(str(i), *MIXED[i])
    finished = {}
    while engine.has_unfinished_requests():
        finished |= {output.request_id: output for output in engine.step() if output.finished}
    assert spoilt
    (choice,) = finished["1"].outputs
    assert (choice.finish_reason, choice.stop_reason) == ("error", RowStatus.NONFINITE.name.lower())
    assert choice.token_ids == plain[1].outputs[0].token_ids[: len(choice.token_ids)]
    assert [tokens([finished[str(i)]]) for i in (2, 3)] == [tokens([plain[i]]) for i in (2, 3)]
    check_idle(engine)
    assert tokens(run(engine, MIXED[1:4])) == tokens(plain[1:4])
