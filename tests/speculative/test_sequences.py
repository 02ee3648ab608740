"""Whole sequences of a model of 8 tokens, written by the real engine, follow the model's exact law.

2^17 sequences of 6 tokens in all. `FALSE_ALARM_RATE` is 1e-9 for each chi-square; every mutant must fail it.
"""

import pytest
import torch

from drawlot import testing
from drawlot.engine import drafting
from drawlot.verification import draft_sampler
from tests.speculative.models import VOCAB, reference_of
from tests.speculative.sequences import counts_of, law_of, written

PROMPT = [1, 5, 2, 1, 5]
LENGTH, NUM_DRAFTS = 6, 3
NUM_SEQUENCES = 2**14


@pytest.fixture(scope="module")
def law(folder):
    return law_of(reference_of(folder, "target"), PROMPT, LENGTH, VOCAB)


@pytest.fixture
def fit(engine_of, law):
    """The chi-square of what an engine with this configuration writes, and the engine."""

    def measure(speculative_config, num_sequences=NUM_SEQUENCES):
        engine = engine_of(
            speculative_config and {"num_speculative_tokens": NUM_DRAFTS} | speculative_config,
            max_num_seqs=1024,
            num_kv_blocks=4096,
            max_num_batched_tokens=2**14,
        )
        known, probabilities = law
        return testing.chi_square(
            counts_of(written(engine, PROMPT, num_sequences, LENGTH), known), probabilities
        ), engine

    return measure


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"method": "ngram", "prompt_lookup_min": 1},
        {"method": "ngram", "prompt_lookup_min": 1, "rejection_sample_method": "block"},
        {"method": "draft_model"},
        {"method": "draft_model", "rejection_sample_method": "block"},
        {"method": "draft_model", "rejection_sample_method": "coupled"},
        {"method": "draft_model", "draft_sample_method": "greedy"},
        {"method": "eagle"},
        {"method": "eagle", "rejection_sample_method": "block"},
    ],
    ids=lambda config: "-".join(str(value) for value in config.values() if value != 1),
)
def test_law(fit, config):
    result, engine = fit(config)
    assert result.ok, result
    assert engine.counters.num_accepted_tokens > NUM_SEQUENCES / 2
    # Rejections and whole runs: every branch was taken.
    assert engine.counters.accepted[-1] > 100
    assert all(accepted < reached for accepted, reached in zip(engine.counters.accepted, engine.counters.reached))


def drafts_from_a_warmer_law(monkeypatch):
    """The drafter draws from another distribution than the one it tells."""
    draw = draft_sampler.DraftSampler.draw

    def warmer(self, logits, idx_mapping, anchors, step):
        drawn = draw(self, logits / 2, idx_mapping, anchors, step)
        self._logits[idx_mapping, step] = logits
        self._lse[idx_mapping, step] = logits.logsumexp(1)
        return drawn

    monkeypatch.setattr(draft_sampler.DraftSampler, "draw", warmer)


def laws_of_the_wrong_drafts(monkeypatch):
    """Each draft is verified against the distribution that its neighbour was drawn from."""
    propose = drafting.Drafting.propose

    def shifted(self, chunks):
        drafted = propose(self, chunks)
        self._drafts = self._drafts._replace(logits=self._drafts.logits.roll(1, 1), lse=self._drafts.lse.roll(1, 1))
        return drafted

    monkeypatch.setattr(drafting.Drafting, "propose", shifted)


def positions_do_not_advance(monkeypatch):
    """All steps of a request draw with the noise of the first."""
    rows = drafting.LogitsRows

    def standing(**columns):
        positions = columns["local_positions"] + len(PROMPT)
        return rows(**(columns | {"positions": positions}))

    monkeypatch.setattr(drafting, "LogitsRows", standing)


@pytest.mark.slow
@pytest.mark.parametrize("mutate", [drafts_from_a_warmer_law, laws_of_the_wrong_drafts, positions_do_not_advance])
def test_mutants_are_caught(fit, monkeypatch, mutate):
    mutate(monkeypatch)
    result, _ = fit({"method": "draft_model"}, NUM_SEQUENCES // 2)
    assert result.statistic > result.high, result


def test_the_law_is_a_law(law):
    known, probabilities = law
    assert known.shape == (VOCAB**LENGTH, LENGTH)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert len(torch.unique(torch.from_numpy(known), dim=0)) == len(known)
