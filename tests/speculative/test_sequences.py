"""Whole sequences of a model of 8 tokens, written by the real engine, follow the model's exact law.

2^17 sequences of 6 tokens with every method and speculator, fewer with other ways to draft, of which `make sequences`
writes 2^17 each too, and 2^13 with the embedded model. A correct engine fails one of the 16 chi-squares of a test in
1.6e-8 of the cases; each mutant must fail the one of whole sequences.
"""

from functools import cache

import pytest
import torch

from drawlot.assets import resolve
from drawlot.engine import drafting
from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.verification import draft_sampler
from tests.speculative.models import SPECULATORS, VOCAB, reference_of
from tests.speculative.sequences import fits_of, law_of, written

PROMPT = [1, 5, 2, 1, 5]
LENGTH, NUM_DRAFTS = 6, 3
METHODS = ("standard", "block", "coupled")
# All choices begin at once: the prompt is shorter than a block.
ROOM = {"max_num_seqs": 2048, "num_kv_blocks": 4096, "max_num_batched_tokens": 2**14, "block_size": 8}
# Choices share the prompt's first block.
SHARED = ROOM | {"max_num_seqs": 1024, "block_size": 4}


@pytest.fixture(scope="module")
def law(folder):
    """law(top_k)"""
    target = reference_of(folder, "target")
    return cache(lambda top_k: law_of(target, PROMPT, LENGTH, top_k))


def check(engine, law, num_sequences):
    """What the engine writes follows the law, and drafts were rejected and accepted at every place."""
    fits = fits_of(written(engine, law, num_sequences), law)
    assert all(fit.ok for fit in fits.values()), fits
    metrics = engine.speculative_metrics
    assert len(metrics.accepted) == NUM_DRAFTS
    for accepted, reached in zip(metrics.accepted, metrics.reached):
        assert 10 < accepted < reached


def config_of(method, verification, **config):
    """A configuration that finds drafts in short texts."""
    lookup = {"prompt_lookup_min": 1} if method == "ngram" else {}
    base = {"method": method, "num_speculative_tokens": NUM_DRAFTS, "rejection_sample_method": verification}
    return base | lookup | config


@pytest.mark.slow
@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("speculator", SPECULATORS)
def test_law(engine_of, law, speculator, verification):
    check(engine_of(config_of(speculator, verification), **ROOM), law(VOCAB), 2**17)


# Drafts that are no draws, and drafts drawn with the request's filters; under which top_k.
OTHER_DRAFTS = {"greedy": ({"draft_sample_method": "greedy"}, VOCAB), "filtered": ({"draft_filters": True}, 5)}


@pytest.mark.slow
@pytest.mark.parametrize(("speculator", "drafts"), [("draft_model", "greedy"), ("eagle", "filtered")])
def test_law_of_other_drafts(engine_of, law, speculator, drafts):
    config, top_k = OTHER_DRAFTS[drafts]
    check(engine_of(config_of(speculator, "standard", **config), **SHARED), law(top_k), 2**14)


@pytest.mark.minutes
@pytest.mark.parametrize("drafts", OTHER_DRAFTS)
@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("speculator", ["draft_model", "eagle"])
def test_law_of_all_other_drafts(engine_of, law, speculator, verification, drafts):
    config, top_k = OTHER_DRAFTS[drafts]
    check(engine_of(config_of(speculator, verification, **config), **ROOM), law(top_k), 2**17)


@pytest.fixture(scope="module")
def embedded_law():
    """The embedded model's sequences of the 4 best tokens."""
    import transformers

    folder = resolve("tiny")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = transformers.AutoTokenizer.from_pretrained(folder)("for i in range(10):\n    for i in range(")["input_ids"]
    return law_of(model, prompt, LENGTH, 4)


@pytest.mark.minutes
@pytest.mark.parametrize("verification", METHODS)
@pytest.mark.parametrize("speculator", SPECULATORS)
def test_law_of_the_embedded_model(embedded_law, speculator, verification):
    config = config_of(speculator, verification)
    check(Engine(EngineArgs(model="tiny", speculative_config=config, max_num_seqs=256)), embedded_law, 2**13)


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
def test_mutants_are_caught(engine_of, law, monkeypatch, mutate):
    mutate(monkeypatch)
    known = law(VOCAB)
    engine = engine_of(config_of("draft_model", "standard"), **SHARED)
    fit = fits_of(written(engine, known, 2**13), known)["all"]
    assert fit.statistic > fit.high, fit


def test_the_law_is_a_law(law):
    sequences, probabilities = law(VOCAB).sequences, law(VOCAB).probabilities
    assert sequences.shape == (VOCAB**LENGTH, LENGTH)
    assert probabilities.sum() == pytest.approx(1, abs=1e-12)
    assert len(torch.unique(torch.from_numpy(sequences), dim=0)) == len(sequences)
