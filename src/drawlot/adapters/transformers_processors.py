"""Which of transformers' logits processors drawlot performs itself, and which act on the logits before it."""

import math
from collections.abc import Iterable
from typing import Any

from transformers.generation import logits_process as hf

from drawlot.errors import ParameterError
from drawlot.params import SamplingParams

# In drawlot's order. transformers cuts top-p before min-p, so the two together are not among what can be mapped.
_PERFORMED = {
    hf.RepetitionPenaltyLogitsProcessor: ("repetition_penalty", "penalty"),
    hf.TemperatureLogitsWarper: ("temperature", "temperature"),
    hf.TopKLogitsWarper: ("top_k", "top_k"),
    hf.MinPLogitsWarper: ("min_p", "min_p"),
    hf.TopPLogitsWarper: ("top_p", "top_p"),
}
_ORDER = {kind: rank for rank, kind in enumerate(_PERFORMED)}
# They only forbid tokens: the same before or after a repetition penalty.
_MASKS = frozenset(
    {
        hf.NoRepeatNGramLogitsProcessor,
        hf.EncoderNoRepeatNGramLogitsProcessor,
        hf.NoBadWordsLogitsProcessor,
        hf.MinLengthLogitsProcessor,
        hf.MinNewTokensLengthLogitsProcessor,
        hf.PrefixConstrainedLogitsProcessor,
        hf.SuppressTokensLogitsProcessor,
        hf.SuppressTokensAtBeginLogitsProcessor,
    }
)
_USUAL_OPTIONS = {"filter_value": -math.inf, "min_tokens_to_keep": 1, "prompt_ignore_length": None}


def not_performed(processors: Iterable[Any]) -> Any:
    """The processors that drawlot does not perform, in their order."""
    return hf.LogitsProcessorList(p for p in processors if not _is_performed(p))


def performed(processors: Iterable[Any]) -> dict[str, Any]:
    """The fields of `SamplingParams` that say what the other processors say.

    Raises:
        ParameterError: A processor would act after one that drawlot performs, and the order matters.
    """
    fields: dict[str, Any] = {}
    last, last_name = -1, ""
    for processor in processors:
        kind = type(processor)
        if not _is_performed(processor):
            rank = _ORDER[hf.RepetitionPenaltyLogitsProcessor] if kind in _MASKS else -1
        else:
            rank = _ORDER[kind]
            field, attribute = _PERFORMED[kind]
            value = getattr(processor, attribute)
            if value == getattr(SamplingParams(), field):
                continue
            fields[field] = value
        if rank < last:
            rule = (
                f"acts after {last_name} in transformers, which drawlot cannot do: drop one, or pass sampling_params "
                "(drawlot then draws as they say, after all processors that it does not perform itself)"
            )
            raise ParameterError("logits_processor", rule, kind.__name__)
        if _is_performed(processor):
            last, last_name = rank, kind.__name__
    return fields


def _is_performed(processor: Any) -> bool:
    usual = all(getattr(processor, name, value) == value for name, value in _USUAL_OPTIONS.items())
    return usual and type(processor) in _PERFORMED
