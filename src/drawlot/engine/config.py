"""The engine's configuration once the model is known."""

from dataclasses import dataclass

import torch

from drawlot.engine.args import EngineArgs
from drawlot.engine.attention import LayerLayout
from drawlot.engine.speculative_config import SpeculativeConfig
from drawlot.errors import ParameterError

# Bounds what a step's prompt logprobs need: 256 MiB of float32 logits.
_PROMPT_LOGITS = 2**26
_CPU_CACHE_BYTES = 4 * 2**30
_GPU_CACHE_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLimits:
    """What a model says about itself."""

    vocab_size: int
    """Width of its logits: ids that the tokenizer lacks (padding of the embedding) are valid as long as the model
    has logits for them"""
    context_length: int
    layers: tuple[LayerLayout, ...]
    windows: frozenset[int | None]
    """Sliding windows of its layers; None is full attention"""
    eos_token_ids: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Every value resolved; see `EngineArgs` for their meaning."""

    dtype: torch.dtype
    device: torch.device
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    block_size: int
    num_kv_blocks: int
    enable_prefix_caching: bool
    enforce_eager: bool
    logprobs_mode: str
    max_logprobs: int
    max_prompt_logprob_rows: int
    """Rows of prompt logprobs in one step"""
    speculative: SpeculativeConfig | None


def resolve_device(device: str) -> torch.device:
    """The device; auto is the GPU if there is one.

    Raises:
        ParameterError: The device is not there.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    resolved = torch.device(device)
    if resolved.type == "cuda" and (resolved.index or 0) >= torch.cuda.device_count():
        raise ParameterError("device", f"must exist ({torch.cuda.device_count()} GPUs found)", device)
    return resolved


def resolve_config(
    args: EngineArgs,
    limits: ModelLimits,
    dtype: torch.dtype,
    device: torch.device,
    drafter_layers: tuple[LayerLayout, ...] = (),
) -> EngineConfig:
    """Fill in what the model decides; each block of the cache has room for the drafter's layers too.

    Raises:
        ParameterError: `max_model_len` is more than the model can, or drafts are more than fit into it or into a step.
    """
    if args.max_model_len is not None and args.max_model_len > limits.context_length:
        raise ParameterError("max_model_len", f"must be at most {limits.context_length}", args.max_model_len)
    max_model_len = args.max_model_len or limits.context_length
    _check_drafts(args, max_model_len)
    return EngineConfig(
        dtype=dtype,
        device=device,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=args.block_size,
        num_kv_blocks=args.num_kv_blocks
        or _num_kv_blocks(args, limits.layers + drafter_layers, max_model_len, dtype, device),
        enable_prefix_caching=args.enable_prefix_caching,
        enforce_eager=args.enforce_eager,
        logprobs_mode=args.logprobs_mode,
        max_logprobs=args.max_logprobs,
        max_prompt_logprob_rows=max(1, _PROMPT_LOGITS // limits.vocab_size),
        speculative=args.speculative_config,
    )


def _check_drafts(args: EngineArgs, max_model_len: int) -> None:
    if args.speculative_config is None:
        return
    count = args.speculative_config.num_speculative_tokens
    for name, limit in (("max_model_len", max_model_len), ("max_num_batched_tokens", args.max_num_batched_tokens)):
        if count >= limit:
            raise ParameterError(
                "speculative_config.num_speculative_tokens", f"must be less than {name} ({limit})", count
            )


def _num_kv_blocks(
    args: EngineArgs, layers: tuple[LayerLayout, ...], max_model_len: int, dtype: torch.dtype, device: torch.device
) -> int:
    """As many as the longest requests could use, within a share of the memory."""
    a_token = sum(layer.num_kv_heads * (layer.key_dim + layer.value_dim) for layer in layers) * dtype.itemsize
    on_gpu = device.type == "cuda"
    budget = int(torch.cuda.mem_get_info(device)[0] * _GPU_CACHE_SHARE) if on_gpu else _CPU_CACHE_BYTES
    usable = args.max_num_seqs * -(-max_model_len // args.block_size)
    return max(1, min(usable, budget // (a_token * args.block_size)))
