"""FlashInfer's own entry points, called as their documentation asks, from raw logits; tokens alone, it has no logprobs.

Written from flashinfer/sampling.py and flashinfer/cake_sampling.py of version 0.7.2. Parameters are tensors, one number
a row, as a server has them; seed and offset are given, which a CUDA graph needs. Penalties and greedy rows it leaves to
others, and so a batch with such rows is not timed.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.providers.interface import Call, Drawn
from drawlot.entrypoints.sampler_benchmark.workload import Workload

_MAX_CAKE_K = 1024


class FlashInfer:
    """`flashinfer.sampling`."""

    name = "flashinfer"
    same_tokens = False

    def why_not(self, work: Workload) -> str | None:
        """It needs a GPU, and what it does not do is no fair comparison."""
        if work.device.type != "cuda":
            return "needs a GPU"
        if find_spec("flashinfer") is None:
            return "flashinfer is not installed"
        return _beyond_flashinfer(work)

    def rows_per_path(self, work: Workload) -> dict[str, int] | None:
        """It does not count."""
        return None

    def call(self, work: Workload) -> Call:
        """From logits where it has such an entry point, else softmax and from probabilities; top-k before top-p."""
        library: Any = import_module("flashinfer.sampling")
        temperature = work.column("temperature", torch.float32)
        top_k, top_p = work.column("top_k", torch.int32), work.column("top_p", torch.float32)
        min_p = work.column("min_p", torch.float32)
        noise = _noise(work.device)

        def tempered(logits: Tensor) -> Tensor:
            return logits.float() / temperature.unsqueeze(1)

        def softmax(logits: Tensor) -> Tensor:
            probs: Tensor = library.softmax(logits, temperature=temperature)
            return probs

        if work.some("top_k", 0):
            return lambda x: _tokens(
                library.top_k_top_p_sampling_from_logits(
                    tempered(x), top_k, top_p, filter_apply_order="top_k_first", **noise
                )
            )
        if work.some("top_p", 1):
            return lambda x: _tokens(library.top_p_sampling_from_probs(softmax(x), top_p, **noise))
        if work.some("min_p", 0):
            return lambda x: _tokens(library.min_p_sampling_from_probs(softmax(x), min_p, **noise))
        return lambda x: _tokens(library.sampling_from_logits(tempered(x), **noise))


class FlashInferCake(FlashInfer):
    """`flashinfer.cake_sampling`: exact top-k up to 1,024, then top-p, from FlashInfer's softmax."""

    name = "flashinfer-cake"

    def why_not(self, work: Workload) -> str | None:
        """It needs top_k on every row."""
        reason = super().why_not(work)
        if reason is not None:
            return reason
        if find_spec("flashinfer.cake_sampling") is None:
            return "this version of flashinfer has no cake_sampling"
        if not all(0 < params.top_k <= _MAX_CAKE_K for params in work.params):
            return f"needs 0 < top_k <= {_MAX_CAKE_K} on every row"
        rows, vocab_size = work.buffers[0].shape
        probs = torch.empty((rows, vocab_size), device=work.device)
        route: str = import_module("flashinfer.cake_sampling").cake_sampling_route(probs, _top_k_max(work))
        return None if route == "pipeline" else route

    def call(self, work: Workload) -> Call:
        """Softmax, then its one or two kernels; the largest k is known to the host."""
        softmax = import_module("flashinfer.sampling").softmax
        sample = import_module("flashinfer.cake_sampling").top_k_top_p_sampling_from_probs
        temperature = work.column("temperature", torch.float32)
        top_k, top_p = work.column("top_k", torch.int32), work.column("top_p", torch.float32)
        top_k_max = _top_k_max(work)

        def call(logits: Tensor) -> Drawn:
            probs = softmax(logits, temperature=temperature)
            return _tokens(sample(probs, top_k, top_p, top_k_max=top_k_max, philox_seed=7, philox_offset=0))

        return call


def _beyond_flashinfer(work: Workload) -> str | None:
    kinds = work.params
    if work.bitmask is not None:
        return "has no bitmask"
    if any(params.is_greedy or params.has_penalties for params in kinds):
        return "has no greedy rows and no penalties"
    filters = {(params.top_k > 0, params.top_p < 1, params.min_p > 0) for params in kinds}
    if len(filters) > 1:
        return "has no entry point for rows with different filters"
    if any(params.logprobs or params.logprob_token_ids for params in kinds):
        return "has no logprobs"
    return None


def _noise(device: torch.device) -> dict[str, Any]:
    return {name: torch.tensor([7], device=device) for name in ("seed", "offset")}


def _top_k_max(work: Workload) -> int:
    return max(params.top_k for params in work.params)


def _tokens(token_ids: Tensor) -> Drawn:
    return Drawn(token_ids, None)
