"""`EngineArgs`: what a user may set for an engine, defined once.

The options of the command line, their environment variables and `docs/cli.md` are derived from these fields.
"""

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from numbers import Integral
from types import NoneType
from typing import Any, Self, get_args

from drawlot.errors import ParameterError
from drawlot.params import INT64_MAX, INT64_MIN

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
SAMPLER_BACKENDS = ("auto", "reference", "torch", "triton", "flashinfer")
DEVICE = re.compile(r"auto|[a-z]+(:\d+)?")


def _argument(default: Any, help: str, *, choices: tuple[str, ...] = (), low: int = 1, high: int = INT64_MAX) -> Any:
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineArgs:
    """How to build an engine.

    The environment is read by the command line alone (`DRAWLOT_MAX_NUM_SEQS` and so on, see `environment_variable`);
    in Python, what is not given has its default.

    Raises:
        ParameterError: A value breaks its rule; the message names the field, the rule and the value.
        TypeError: An argument that is not listed here; `from_kwargs` names the nearest one instead.
    """

    model: str = _argument("tiny", "An embedded model (tiny, tiny-draft), a folder or a name on the Hugging Face hub.")
    tokenizer: str | None = _argument(None, "Folder or name of the tokenizer; the model's own if not set.")
    dtype: str = _argument("auto", "Type of weights and activations; auto is float32 on a CPU.", choices=DTYPES)
    device: str = _argument("auto", "Where to run: auto, cpu, cuda or cuda:N.")
    seed: int | None = _argument(
        None,
        "Source of the seeds of requests that bring none; fresh entropy if not set.",
        low=INT64_MIN,
    )
    max_num_seqs: int = _argument(64, "Sequences that run at the same time, at most.")
    max_num_batched_tokens: int = _argument(2048, "Tokens in one step, at most; longer prompts are cut into chunks.")
    max_model_len: int | None = _argument(None, "Longest prompt + output in tokens; the model's limit if not set.")
    block_size: int = _argument(16, "Tokens in one block of the KV cache.")
    num_kv_blocks: int | None = _argument(None, "Blocks of the KV cache; chosen by the engine if not set.")
    enable_prefix_caching: bool = _argument(True, "Compute a prefix that prompts share only once.")
    enforce_eager: bool = _argument(False, "On a GPU, decode in plain torch instead of by CUDA graph.")
    logprobs_mode: str = _argument("raw_logprobs", "What the returned logprobs are.", choices=LOGPROBS_MODES)
    max_logprobs: int = _argument(20, "Logprobs that a request may ask for, at most; -1 is any number.", low=-1)
    use_fp64_gumbel: bool = _argument(False, "Compute the noise of the draws in float64.")
    sampler_backend: str = _argument("auto", "Which kernels sample.", choices=SAMPLER_BACKENDS)

    def __post_init__(self) -> None:
        for argument in fields(self):
            object.__setattr__(self, argument.name, _checked(argument, getattr(self, argument.name)))
        if not DEVICE.fullmatch(self.device):
            raise ParameterError("device", "must be auto, cpu, cuda or cuda:N", self.device)

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, object]) -> Self:
        """Build from keyword arguments.

        Raises:
            ParameterError: A value breaks its rule, or a name is unknown; the message offers the nearest field.
        """
        names = [argument.name for argument in fields(cls)]
        for name, value in kwargs.items():
            if name not in names:
                nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
                raise ParameterError(name, f"is not an engine argument (the nearest is {nearest})", value)
        return cls(**kwargs)  # type: ignore[arg-type]


def environment_variable(name: str) -> str:
    """The variable that sets a field, or an option, on the command line."""
    return f"DRAWLOT_{name.upper()}"


def _checked(argument: Field[Any], value: object) -> object:
    if value is None and NoneType in get_args(argument.type):
        return None
    if argument.type is bool:
        if not isinstance(value, bool):
            raise ParameterError(argument.name, "must be True or False", value)
        return value
    if argument.type in (int, int | None):
        return _checked_integer(argument, value)
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str) or not value:
        raise ParameterError(argument.name, "must be a non-empty string", value)
    choices = argument.metadata["choices"]
    if choices and value not in choices:
        raise ParameterError(argument.name, f"must be one of {', '.join(choices)}", value)
    return value


def _checked_integer(argument: Field[Any], value: object) -> int:
    low, high = argument.metadata["low"], argument.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(argument.name, "must be an integer", value)
    if not low <= value <= high:
        rule = "must fit in int64" if low == INT64_MIN else f"must be >= {low}"
        raise ParameterError(argument.name, rule, value)
    return int(value)
