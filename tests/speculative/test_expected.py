"""Under `standard` the sum of min(p, q) says how many drafts are accepted: 6 standard errors, 2e-9 false alarms.

What was counted so far is a martingale, so the variance is the sum of those of the single coins.
"""

import math

import pytest

from drawlot.entrypoints.spec_benchmark.expected import ExpectedAcceptance
from tests.speculative.models import SPECULATORS
from tests.speculative.running import prompts, run, sampled
from tests.speculative.test_sequences import drafts_from_a_warmer_law

DEVIATIONS = 6


def deviation(engine_of, speculator, **config):
    """How many standard errors the accepted drafts lie above what is expected."""
    lookup = {"prompt_lookup_min": 1} if speculator == "ngram" else {}
    engine = engine_of({"method": speculator} | lookup | config, max_num_seqs=256, num_kv_blocks=4096)
    expected = ExpectedAcceptance(engine.drafting.verifier.sampler)
    engine.drafting.on_verified = expected
    settings = [{"top_k": 6}, {"temperature": 0.7}, {"top_p": 0.9, "temperature": 1.4}, {"temperature": 0}]
    requests = [
        (text, sampled(i, n=1 if setting.get("temperature") == 0 else 48, max_tokens=24, **setting))
        for i, (text, setting) in enumerate(zip(prompts(*[9] * 16), settings * 4))
    ]
    run(engine, requests)
    return (engine.speculative_metrics.num_accepted_draft_tokens - expected.total) / math.sqrt(expected.variance)


@pytest.mark.parametrize("speculator", SPECULATORS)
def test_as_many_as_expected(engine_of, speculator):
    assert abs(deviation(engine_of, speculator)) < DEVIATIONS


def test_block_accepts_more(engine_of):
    assert deviation(engine_of, "draft_model", rejection_sample_method="block") > 0


def test_mutant_is_caught(engine_of, monkeypatch):
    drafts_from_a_warmer_law(monkeypatch)
    assert abs(deviation(engine_of, "draft_model")) > DEVIATIONS
