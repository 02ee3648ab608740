"""Model and tokenizer from a folder or the hub: safetensors only, no remote code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from drawlot.assets import resolve
from drawlot.engine.adapters.canary import examine
from drawlot.engine.args import EngineArgs
from drawlot.engine.config import ModelLimits, resolve_device
from drawlot.errors import ModelError

_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


class LoadedModel(NamedTuple):
    """A model that has passed the canary, with "drawlot" attention, in evaluation mode."""

    model: Any
    tokenizer: Any
    limits: ModelLimits


def load(args: EngineArgs) -> LoadedModel:
    """Load what `args` names.

    Raises:
        ModelError: It cannot be found or read, or its architecture is not supported.
        ParameterError: The device is not there.
    """
    device = resolve_device(args.device)
    config = _from_pretrained(AutoConfig, args.model)
    text_config = config.get_text_config()
    _check_architecture(args.model, config)
    with _quiet_unless_terminal():
        model = _from_pretrained(
            AutoModelForCausalLM,
            args.model,
            config=config,
            dtype=_dtype(args.dtype, text_config, device),
            use_safetensors=True,
            attn_implementation="eager",
        )
    if getattr(model, "_is_stateful", False):
        raise ModelError(
            f"{args.model}: model type {config.model_type!r} keeps recurrent state, which is not supported"
        )
    model.eval().to(device)
    anatomy = examine(model, args.model, by_decoder=device.type == "cuda" and not args.enforce_eager)
    limits = ModelLimits(
        vocab_size=anatomy.vocab_size,
        context_length=_context_length(args.model, text_config),
        layers=anatomy.layers,
        windows=frozenset(anatomy.windows),
        eos_token_ids=_eos_token_ids(model, anatomy.vocab_size),
    )
    return LoadedModel(model, _from_pretrained(AutoTokenizer, args.tokenizer or args.model), limits)


def _from_pretrained(factory: Any, name: str, **kwargs: Any) -> Any:
    if (Path(name).is_absolute() or name.startswith(".")) and not Path(name).is_dir():
        raise ModelError(f"{name}: no such folder")
    try:
        return factory.from_pretrained(resolve(name), trust_remote_code=False, **kwargs)
    # What transformers raises for missing files, unknown types, bad JSON and bad weights has no common class.
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = {AutoConfig: "configuration", AutoTokenizer: "tokenizer"}.get(factory, "weights")
        raise ModelError(f"{name}: cannot load the {what}: {reason}") from error


def _check_architecture(name: str, config: Any) -> None:
    if config.is_encoder_decoder:
        raise ModelError(f"{name}: model type {config.model_type!r} is an encoder-decoder; only decoders are supported")
    others = set(getattr(config.get_text_config(), "layer_types", None) or ()) - _ATTENTION_LAYERS
    if others:
        shown = ", ".join(sorted(others))
        raise ModelError(f"{name}: model type {config.model_type!r} has layers that are not supported: {shown}")


def _dtype(name: str, config: Any, device: torch.device) -> torch.dtype:
    if name != "auto":
        dtype: torch.dtype = getattr(torch, name)
        return dtype
    return torch.float32 if device.type == "cpu" else config.dtype or torch.bfloat16


def _context_length(name: str, config: Any) -> int:
    length = getattr(config, "max_position_embeddings", None)
    if length is None:
        raise ModelError(f"{name}: model type {config.model_type!r} does not say how long its context is")
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in (rope, *rope.values()):
        # Longrope (and dynamic, beyond max_position_embeddings) takes its frequencies from the longest request of a
        # batch: below this length none is long.
        if isinstance(parameters, dict) and parameters.get("rope_type") == "longrope":
            length = min(length, parameters.get("original_max_position_embeddings", length))
    return int(length)


def _eos_token_ids(model: Any, vocab_size: int) -> frozenset[int]:
    ids = model.generation_config.eos_token_id
    listed = [] if ids is None else [ids] if isinstance(ids, int) else ids
    return frozenset(int(i) for i in listed if 0 <= i < vocab_size)


@contextmanager
def _quiet_unless_terminal() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
