"""drawlot: turns an LLM's logits into tokens, exactly, fast and reproducibly."""

from importlib import import_module
from typing import TYPE_CHECKING

from drawlot.errors import BackendError, DrawlotError, InputError, ModelError, ParameterError
from drawlot.functional import sample
from drawlot.outputs import LogitsRows, LogprobsTensors, RowStatus, SamplerOutput
from drawlot.params import SamplingParams
from drawlot.sampling import Sampler

if TYPE_CHECKING:
    from drawlot.engine.args import EngineArgs
    from drawlot.entrypoints.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "BackendError",
    "DrawlotError",
    "EngineArgs",
    "InputError",
    "LogitsRows",
    "LogprobsTensors",
    "ModelError",
    "ParameterError",
    "RowStatus",
    "Sampler",
    "SamplerOutput",
    "SamplingParams",
    "sample",
]

# What brings in transformers loads when it is first used.
_LAZY = {"LLM": "drawlot.entrypoints.llm", "EngineArgs": "drawlot.engine.args"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'drawlot' has no attribute {name!r}")
