"""Chooses a backend by name; "auto" takes the best that can run on the device and logs its choice once."""

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple, Protocol

from torch import Tensor, device

from drawlot.errors import BackendError
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows

logger = logging.getLogger("drawlot")
_logged: set[str] = set()


class SampleRows(Protocol):
    """A backend's `sample_rows`."""

    def __call__(
        self, logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
    ) -> SampledRows: ...


class Backend(NamedTuple):
    """The functions of one backend."""

    name: str
    sample_rows: SampleRows
    logprobs_of: Callable[[Tensor, Tensor, LogprobsWanted], tuple[Tensor, Tensor, Tensor]]


def why_not(name: str, on: device) -> str | None:
    """Why a backend cannot run on a device; None if it can."""
    if name in ("reference", "torch"):
        return None
    if name == "triton":
        if find_spec("triton") is None:
            return "triton is not installed; it comes with the extra drawlot[triton]"
        if on.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            return f"needs a CUDA device, or TRITON_INTERPRET=1 for a slow check on a CPU; got {on}"
        return None
    if name == "flashinfer":
        return "this version of drawlot does not have it yet"
    return "no such backend; there are auto, reference, torch, triton and flashinfer"


def get_backend(name: str, on: device) -> Backend:
    """The backend of that name.

    Raises:
        BackendError: It cannot run on the device; the message gives the reason.
    """
    chosen = "torch" if name == "auto" else name
    reason = why_not(chosen, on)
    if reason is not None:
        raise BackendError(f"backend {name!r}: {reason}")
    if name == "auto" and chosen not in _logged:
        _logged.add(chosen)
        logger.info("backend auto: %s on %s", chosen, on)
    return _load(chosen)


@cache
def _load(name: str) -> Backend:
    module = import_module(f"drawlot.kernels.{name}")
    return Backend(name, module.sample_rows, module.logprobs_of)
