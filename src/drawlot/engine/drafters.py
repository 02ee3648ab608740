"""Loads what drafts for a target, and puts it on the engine's cache and sampler."""

import logging
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from drawlot.assets import resolve
from drawlot.engine.adapters.loading import LoadedModel, load
from drawlot.engine.args import EngineArgs
from drawlot.engine.attention import LayerLayout
from drawlot.engine.config import ModelLimits
from drawlot.engine.drafting import Drafting
from drawlot.engine.kv_cache import KVCache
from drawlot.engine.paged_head import PagedHead, layout
from drawlot.engine.paged_model import PagedModel
from drawlot.engine.speculative_config import SpeculativeConfig
from drawlot.errors import ParameterError
from drawlot.sampling import Sampler
from drawlot.speculators.draft_model import DraftModel
from drawlot.speculators.eagle import Eagle
from drawlot.speculators.eagle_head import EagleHead, load_head
from drawlot.speculators.interface import Speculator
from drawlot.speculators.ngram import Ngram
from drawlot.verification import DraftSampler, RejectionSampler

logger = logging.getLogger("drawlot")
_MODEL = "speculative_config.model"


class Drafter(NamedTuple):
    """What drafts, before it has a cache."""

    speculative: SpeculativeConfig
    layers: tuple[LayerLayout, ...] = ()
    """What it keeps for a token, beside the target's layers"""
    model: Any = None
    limits: ModelLimits | None = None
    head: EagleHead | None = None


def load_drafter(args: EngineArgs, target: LoadedModel) -> Drafter | None:
    """Load what `args.speculative_config` names; None without it.

    Raises:
        ModelError: The drafter cannot be loaded or is not supported.
        ParameterError: It does not fit the target.
    """
    speculative = args.speculative_config
    if speculative is None:
        return None
    if speculative.method == "ngram":
        return Drafter(speculative)
    assert speculative.model is not None
    if speculative.method == "eagle":
        head = load_head(resolve(speculative.model), resolve(args.model))
        return Drafter(speculative, (layout(head.config),), head=head)
    model = load(
        replace(
            args,
            model=speculative.model,
            tokenizer=None,
            dtype=str(target.model.dtype).removeprefix("torch."),
            enforce_eager=True,
            speculative_config=None,
        )
    )
    _check_model(speculative.model, args, target, model)
    return Drafter(speculative, model.limits.layers, model.model, model.limits)


def build(drafter: Drafter, target: PagedModel, cache: KVCache, sampler: Sampler) -> Drafting:
    """The speculator and its verifier.

    Raises:
        BackendError: The sampler's backend does not verify drafts.
    """
    speculative = drafter.speculative
    verifier = RejectionSampler(
        sampler,
        num_speculative_tokens=speculative.num_speculative_tokens,
        method=speculative.rejection_sample_method,
        synthetic_rates=speculative.synthetic_acceptance_rates,
    )
    config, draws = target.config, _draws(speculative, sampler)
    if config.device.type == "cuda" and not config.enforce_eager:
        logger.info("compiling the verifier's kernels; it takes a minute where it was never done before")
        logits = torch.zeros((2, sampler.vocab_size), dtype=config.dtype, device=config.device)
        laws = (None, None) if draws is None else (draws.draft_logits, draws.draft_lse)
        verifier.warm_up(logits, *laws)
    return Drafting(_speculator(drafter, target, cache, draws), verifier)


def _draws(speculative: SpeculativeConfig, sampler: Sampler) -> DraftSampler | None:
    """None for drafts that nobody draws."""
    if speculative.method == "ngram":
        return None
    return DraftSampler(
        sampler,
        num_speculative_tokens=speculative.num_speculative_tokens,
        greedy=speculative.draft_sample_method == "greedy",
        filters=bool(speculative.draft_filters),
        coupled=speculative.rejection_sample_method == "coupled",
    )


def _speculator(drafter: Drafter, target: PagedModel, cache: KVCache, drafts: DraftSampler | None) -> Speculator:
    speculative, config = drafter.speculative, target.config
    if drafts is None:
        assert speculative.prompt_lookup_min is not None
        assert speculative.prompt_lookup_max is not None
        lookup = speculative.prompt_lookup_min, speculative.prompt_lookup_max
        return Ngram(config.max_num_seqs, speculative.num_speculative_tokens, *lookup, config.device)
    if drafter.head is not None:
        target.keep_hidden_states()
        return Eagle(PagedHead(drafter.head, target, cache), drafts)
    assert drafter.limits is not None
    return DraftModel(PagedModel(drafter.model, drafter.limits, config, cache), drafts, config.block_size)


def _check_model(name: str, args: EngineArgs, target: LoadedModel, model: LoadedModel) -> None:
    ours, theirs = target.limits, model.limits
    if theirs.vocab_size != ours.vocab_size:
        raise ParameterError(
            _MODEL, f"must have the target's {ours.vocab_size} logits, it has {theirs.vocab_size}", name
        )
    if target.tokenizer.get_vocab() != model.tokenizer.get_vocab():
        raise ParameterError(_MODEL, "must have the target's tokenizer; its tokens differ", name)
    longest = args.max_model_len or ours.context_length
    if theirs.context_length < longest:
        rule = f"must have a context of max_model_len ({longest}) tokens, it has {theirs.context_length}"
        raise ParameterError(_MODEL, rule, name)
