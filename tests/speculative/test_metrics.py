"""What became of drafts: counted by hand, and read off a run."""

import pytest

from drawlot.engine.metrics import SpeculativeMetrics, counters
from tests.speculative.models import SPECULATORS, VOCAB
from tests.speculative.running import prompts, run, sampled


def test_by_hand():
    metrics = SpeculativeMetrics()
    # Three drafts, all accepted; then the first only; none of one; two accepted, of which a stop id cut off one.
    for step in ((3, 3, 4), (3, 1, 2), (1, 0, 1), (3, 2, 1)):
        metrics.add_step(*step)
    assert (metrics.drafted, metrics.reached, metrics.accepted) == ([4, 3, 3], [4, 3, 2], [3, 2, 1])
    assert (metrics.num_spec_steps, metrics.num_draft_tokens, metrics.num_accepted_draft_tokens) == (4, 10, 6)
    assert metrics.acceptance_histogram == [1, 1, 1, 1]
    assert metrics.draft_acceptance_rate == 0.6
    assert metrics.mean_acceptance_length == 2
    assert metrics.conditional_acceptance == [3 / 4, 2 / 3, 1 / 2]
    assert metrics.unconditional_acceptance == [3 / 4, 2 / 3, 1 / 3]


def test_nothing_drafted():
    metrics = SpeculativeMetrics()
    assert (metrics.draft_acceptance_rate, metrics.mean_acceptance_length) == (0, 0)
    assert (metrics.conditional_acceptance, metrics.acceptance_histogram) == ([], [0])


def test_counters():
    metrics = SpeculativeMetrics()
    metrics.add_step(2, 1, 2)
    metrics.add_seconds({"draft": 0.5, "verify": 0.25, "other": 0.0})
    exported = {(sample.name.removeprefix("drawlot:spec_decode_"), *sample.labels.values()): sample.value
                for sample in counters(metrics)}  # fmt: skip
    assert exported == {
        ("num_drafts",): 1,
        ("num_draft_tokens",): 2,
        ("num_accepted_tokens",): 1,
        ("num_emitted_tokens",): 2,
        ("num_draft_tokens_per_pos", "0"): 1,
        ("num_draft_tokens_per_pos", "1"): 1,
        ("num_reached_tokens_per_pos", "0"): 1,
        ("num_reached_tokens_per_pos", "1"): 1,
        ("num_accepted_tokens_per_pos", "0"): 1,
        ("num_accepted_tokens_per_pos", "1"): 0,
        ("seconds", "draft"): 0.5,
        ("seconds", "verify"): 0.25,
        ("seconds", "other"): 0.0,
    }


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_of_requests(engine_of, speculator):
    config = {"method": speculator} | ({"prompt_lookup_min": 1} if speculator == "ngram" else {})
    engine = engine_of(config)
    texts = prompts(9, 12, 5)
    outputs = run(engine, [(text, sampled(i, n=2)) for i, text in enumerate(texts)])
    each = [output.metrics.speculative_decoding for output in outputs]
    total = engine.speculative_metrics
    for name in ("num_spec_steps", "num_emitted_tokens", "num_draft_tokens", "num_accepted_draft_tokens"):
        assert sum(getattr(metrics, name) for metrics in each) == getattr(total, name)
    # Tokens beside those of steps with drafts: the first of each choice, and those of steps without.
    emitted = sum(len(choice.token_ids) for output in outputs for choice in output.outputs)
    assert total.num_spec_steps + total.num_accepted_draft_tokens == total.num_emitted_tokens <= emitted - 6
    for metrics in (*each, total):
        mean_accepted = metrics.num_accepted_draft_tokens / metrics.num_spec_steps
        assert metrics.mean_acceptance_length == pytest.approx(1 + mean_accepted)
        assert sum(metrics.acceptance_histogram) == metrics.num_spec_steps
        assert all(seconds > 0 for seconds in metrics.seconds.values())
    assert all(metrics.seconds[part] <= total.seconds[part] for metrics in each for part in total.seconds)


def test_without_drafts(engine_of):
    (output,) = run(engine_of(), [([1, 2], sampled())])
    assert output.metrics.speculative_decoding is None


def test_what_a_stop_cuts_off_is_not_emitted(engine_of):
    engine = engine_of({"method": "draft_model", "rejection_sample_method": "coupled"})
    (whole,) = run(engine, [([1, 2, 3], sampled(5))])
    cut = 0
    for stop in range(VOCAB):
        (output,) = run(engine, [([1, 2, 3], sampled(5, stop_token_ids=[stop]))])
        expected = whole.outputs[0].token_ids
        if stop in expected:
            expected = expected[: expected.index(stop) + 1]
            assert output.outputs[0].stop_reason == stop
        assert output.outputs[0].token_ids == expected
        metrics = output.metrics.speculative_decoding
        assert metrics.num_emitted_tokens <= len(expected) - 1
        cut += metrics.num_spec_steps + metrics.num_accepted_draft_tokens - metrics.num_emitted_tokens
    assert cut > 0
