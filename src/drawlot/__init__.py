"""drawlot: turns an LLM's logits into tokens, exactly, fast and reproducibly."""

from importlib import import_module
from typing import TYPE_CHECKING

from drawlot.errors import BackendError, DrawlotError, InputError, ModelError, ParameterError
from drawlot.params import SamplingParams

if TYPE_CHECKING:
    from drawlot.engine.args import EngineArgs
    from drawlot.entrypoints.llm import LLM
    from drawlot.functional import sample, verify
    from drawlot.outputs import (
        LogitsRows,
        LogprobsTensors,
        RowStatus,
        SamplerOutput,
        SparseDraftLogits,
        VerifierOutput,
    )
    from drawlot.sampling import Sampler
    from drawlot.verification import RejectionSampler

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
    "RejectionSampler",
    "RowStatus",
    "Sampler",
    "SamplerOutput",
    "SamplingParams",
    "SparseDraftLogits",
    "VerifierOutput",
    "sample",
    "verify",
]

# What brings in torch or transformers loads when it is first used, so that `drawlot --help` answers at once.
_HOME = {
    "EngineArgs": "drawlot.engine.args",
    "LLM": "drawlot.entrypoints.llm",
    "LogitsRows": "drawlot.outputs",
    "LogprobsTensors": "drawlot.outputs",
    "RejectionSampler": "drawlot.verification",
    "RowStatus": "drawlot.outputs",
    "Sampler": "drawlot.sampling",
    "SamplerOutput": "drawlot.outputs",
    "SparseDraftLogits": "drawlot.outputs",
    "VerifierOutput": "drawlot.outputs",
    "sample": "drawlot.functional",
    "verify": "drawlot.functional",
}


def __getattr__(name: str) -> object:
    if name in _HOME:
        try:
            value = getattr(import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith("drawlot"):
                raise
            message = f"drawlot.{name} needs {error.name}: pip install 'drawlot[engine]'"
            raise ModuleNotFoundError(message, name=error.name) from error
        globals()[name] = value
        return value
    raise AttributeError(f"module 'drawlot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
