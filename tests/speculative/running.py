"""How the tests here run an engine."""

import random

from drawlot.params import SamplingParams
from tests.engine.running import check_idle, preempt, run, tokens
from tests.speculative.models import VOCAB

__all__ = ["check_idle", "drafts_of", "preempt", "prompts", "run", "sampled", "tokens"]


def prompts(*lengths, seed=0):
    """Random token ids."""
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(length)] for length in lengths]


def sampled(seed=7, **params):
    """Draws with noise, some twenty tokens unless said otherwise."""
    return SamplingParams(**({"seed": seed, "max_tokens": 20, "detokenize": False} | params))


def drafts_of(output):
    """(drafted, accepted) of a request."""
    metrics = output.metrics.speculative_decoding
    return (0, 0) if metrics is None else (metrics.num_draft_tokens, metrics.num_accepted_draft_tokens)
