"""Builds the speculator that a configuration names, on the engine's model, cache and sampler."""

from typing import Any

from drawlot.engine.args import EngineArgs
from drawlot.engine.drafting import Drafting
from drawlot.engine.paged_model import PagedModel
from drawlot.engine.speculative_config import SpeculativeConfig
from drawlot.sampling import Sampler
from drawlot.speculators.interface import Speculator
from drawlot.speculators.ngram import Ngram
from drawlot.verification import RejectionSampler


def build(
    args: EngineArgs, speculative: SpeculativeConfig, target: PagedModel, tokenizer: Any, sampler: Sampler
) -> Drafting:
    """The speculator and its verifier.

    Raises:
        ModelError: The drafter cannot be loaded or is not supported.
        ParameterError: The drafter does not fit the target.
    """
    verifier = RejectionSampler(
        sampler,
        num_speculative_tokens=speculative.num_speculative_tokens,
        method=speculative.rejection_sample_method,
        synthetic_rates=speculative.synthetic_acceptance_rates,
    )
    return Drafting(_speculator(speculative, target), verifier, speculative.num_speculative_tokens)


def _speculator(speculative: SpeculativeConfig, target: PagedModel) -> Speculator:
    config = target.config
    assert speculative.prompt_lookup_min is not None
    assert speculative.prompt_lookup_max is not None
    return Ngram(
        config.max_num_seqs,
        speculative.num_speculative_tokens,
        speculative.prompt_lookup_min,
        speculative.prompt_lookup_max,
        config.device,
    )
