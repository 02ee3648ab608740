"""The proof, at load, that a model really runs through our attention function and means the same by it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drawlot.engine.adapters.interface import ATTENTION
from drawlot.engine.attention import KVPool, LayerLayout, allocate_pools
from drawlot.engine.batch import BatchBuilder, Span
from drawlot.errors import ModelError

_BLOCK_SIZE = 4
# Two sequences of 9 and 6 tokens with shuffled blocks, in three steps that mix a first chunk, a later one and single
# tokens, and one that only decodes: (sequence, first position, end).
_TABLES = np.array([[3, 1, 5], [4, 2, 0]])
_LENGTHS = (9, 6)
_STEPS = (((0, 0, 5), (1, 0, 2)), ((0, 5, 6), (1, 2, 5)), ((0, 6, 8),), ((0, 8, 9), (1, 5, 6)))
# Of the largest logit. Half precision rounds differently in other kernels; a wrong attention is off by far more.
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}


class Anatomy(NamedTuple):
    """What the canary has seen of a model."""

    vocab_size: int
    """Width of the logits"""
    layers: tuple[LayerLayout, ...]
    windows: tuple[int | None, ...]
    """The sliding window of each layer, None is full attention"""


class _Recorder:
    """Stands where the paged batch does, notes the calls and attends to nothing."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, LayerLayout, int | None]] = []

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        self.calls.append((layer, LayerLayout(key.shape[1], key.shape[3], value.shape[3]), window))
        return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


@torch.inference_mode()
def examine(model: Any, name: str, by_decoder: bool) -> Anatomy:
    """Switch the model to our attention and compare it with the model's own.

    Args:
        model: With "eager" attention; left with ours.
        name: For the messages.
        by_decoder: Steps that only decode will be a `Decoder`'s.

    Raises:
        ModelError: The model does not use the function in every layer, or gives other logits with it.
    """
    config = model.config.get_text_config()
    vocab_size = config.vocab_size
    sequences = [[(7919 * (i + 1) + 31 * s) % vocab_size for i in range(n)] for s, n in enumerate(_LENGTHS)]
    what = f"{name}: model type {config.model_type!r}"
    try:
        expected = [
            model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0] for ids in sequences
        ]
        model.set_attn_implementation(ATTENTION)
        if model.config._attn_implementation != ATTENTION:
            raise ModelError(f"{what} does not take its attention from transformers' AttentionInterface")
        anatomy = _record(model, what, sequences[0])
        _check_windows(config, anatomy, what)
        worst = _compare(model, anatomy, sequences, expected, by_decoder)
    except ModelError:
        raise
    # Models fail in many ways: arguments that they do not pass on, shapes that they assume.
    except Exception as error:
        raise ModelError(f"{what} does not run with paged attention: {error}") from error
    # Written so that NaN fails.
    if not worst <= _TOLERANCE[model.dtype]:
        raise ModelError(
            f"{what} gives other logits with paged attention than with its own (relative error {worst:.1e})"
        )
    return anatomy


def _compare(
    model: Any,
    anatomy: Anatomy,
    sequences: Sequence[Sequence[int]],
    expected: Sequence[Tensor],
    by_decoder: bool,
) -> float:
    """The largest error of a logit, relative to the largest logit."""
    pools = allocate_pools(anatomy.layers, 6, _BLOCK_SIZE, model.dtype, model.device)
    errors = []
    for step in _STEPS:
        spans = [Span(s, a, sequences[s][a:b]) for s, a, b in step]
        if by_decoder and step is _STEPS[-1]:
            logits = _decode(model, pools, spans)
        else:
            logits, spans = _forward(model, pools, set(anatomy.windows), spans)
        wanted = torch.cat([expected[span.row][span.start : span.end] for span in spans])
        errors.append((logits - wanted).abs().max() / wanted.abs().max())
    # Of tensors, as Python's max would drop NaN.
    return float(torch.stack(errors).max())


def _record(model: Any, what: str, token_ids: Sequence[int]) -> Anatomy:
    recorder = _Recorder()
    ids = torch.tensor([token_ids], device=model.device)
    positions = torch.arange(len(token_ids), device=model.device).unsqueeze(0)
    keep = torch.tensor([0, 2], device=model.device)
    logits = model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=keep, paged=recorder).logits
    num_layers = model.config.get_text_config().num_hidden_layers
    called = [layer for layer, _, _ in recorder.calls]
    if called != list(range(num_layers)):
        raise ModelError(f"{what} used our attention in layers {called}, not once in each of its {num_layers}")
    if logits.shape[1] != len(keep):
        raise ModelError(f"{what} ignores logits_to_keep")
    return Anatomy(
        logits.shape[2],
        tuple(layout for _, layout, _ in recorder.calls),
        tuple(window for _, _, window in recorder.calls),
    )


def _check_windows(config: Any, anatomy: Anatomy, what: str) -> None:
    """The short canary cannot see a window that reaches a model's own mask but not our function."""
    for layer, (kind, window) in enumerate(zip(getattr(config, "layer_types", None) or (), anatomy.windows)):
        if (kind == "sliding_attention") != (window is not None):
            raise ModelError(f"{what}: layer {layer} is {kind} but passes the sliding window {window}")


def _forward(
    model: Any, pools: Sequence[KVPool], windows: set[int | None], spans: Sequence[Span]
) -> tuple[Tensor, list[Span]]:
    batch = BatchBuilder(spans, _TABLES, _BLOCK_SIZE, windows)
    ids, positions, paged = batch.build(batch.staging.move(model.device), pools, model.dtype)
    return model(input_ids=ids, position_ids=positions, use_cache=False, paged=paged).logits[0], batch.spans


def _decode(model: Any, pools: Sequence[KVPool], spans: Sequence[Span]) -> Tensor:
    # Needs Triton, which only a GPU is sure to have.
    from drawlot.engine.decode import DecodeBatch

    def row(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=model.device)

    tables, width = row(_TABLES.ravel().tolist()), row([_TABLES.shape[1]])
    paged = DecodeBatch(pools, tables, width, row([span.end for span in spans]), max(_LENGTHS))
    ids, positions = row([span.token_ids[0] for span in spans]), row([span.start for span in spans])
    logits: Tensor = model(
        input_ids=ids.unsqueeze(0), position_ids=positions.unsqueeze(0), use_cache=False, paged=paged
    ).logits[0]
    return logits
