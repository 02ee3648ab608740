"""Prompts and their parameters as callers write them, made into lists of equal length."""

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

from drawlot.errors import ParameterError
from drawlot.params import SamplingParams

Prompt = str | Sequence[int]
"""A text, or token ids."""

TEXTS_OR_IDS = "must hold texts or lists of token ids"


def as_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt or several, as a list; token ids become ints.

    Raises:
        ParameterError: A prompt is neither a text nor a list of token ids.
    """
    if isinstance(prompts, str):
        return [prompts]
    if not isinstance(prompts, Iterable):
        raise ParameterError("prompts", TEXTS_OR_IDS, prompts)
    given: list[Any] = list(prompts)
    if given and all(isinstance(entry, Integral) for entry in given):
        given = [given]
    return [prompt if isinstance(prompt, str) else as_token_ids("prompts", prompt) for prompt in given]


def as_token_ids(field: str, ids: object) -> list[int]:
    """Token ids as ints.

    Raises:
        ParameterError: `ids` is no list of integers.
    """
    listed = list(ids) if isinstance(ids, Iterable) and not isinstance(ids, str | dict) else None
    if listed is None or any(isinstance(i, bool) or not isinstance(i, Integral) for i in listed):
        raise ParameterError(field, TEXTS_OR_IDS, ids)
    return [int(i) for i in listed]


def as_params(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """The parameters of each of `count` prompts.

    Raises:
        ParameterError: A list of another length, or of something else than `SamplingParams`.
    """
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        return [params] * count
    listed = list(params) if isinstance(params, Iterable) else [params]
    for entry in listed:
        if not isinstance(entry, SamplingParams):
            raise ParameterError("sampling_params", "must be SamplingParams, or a list of them", entry)
    if len(listed) != count:
        raise ParameterError(
            "sampling_params", f"must be one, or one for each prompt ({count})", f"{len(listed)} given"
        )
    return listed


def as_switches(use_speculation: bool | Sequence[bool], count: int) -> list[bool]:
    """Whether to draft, for each of `count` prompts.

    Raises:
        ParameterError: A list of another length, or of something else than bools.
    """
    if isinstance(use_speculation, bool):
        return [use_speculation] * count
    listed = list(use_speculation) if isinstance(use_speculation, Iterable) else [use_speculation]
    for entry in listed:
        if not isinstance(entry, bool):
            raise ParameterError("use_speculation", "must be True or False, or a list of them", entry)
    if len(listed) != count:
        raise ParameterError(
            "use_speculation", f"must be one, or one for each prompt ({count})", f"{len(listed)} given"
        )
    return listed
