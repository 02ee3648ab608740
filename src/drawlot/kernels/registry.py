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
from drawlot.kernels.draft_draws import DrawDrafts, SampleRowsOnStreams, drawn_apart
from drawlot.kernels.drafts import Drafts, Law, VerifiedRows
from drawlot.kernels.inputs import BatchFacts, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.requests import StepSampler

logger = logging.getLogger("drawlot")
_logged: set[str] = set()

VARIABLE = "DRAWLOT_SAMPLER_BACKEND"
"""The environment variable that names what "auto" means."""


class SampleRows(Protocol):
    """A backend's `sample_rows`."""

    def __call__(
        self, logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
    ) -> SampledRows: ...


class VerifyRows(Protocol):
    """A backend's `verify_rows`."""

    def __call__(
        self,
        logits: Tensor,
        params: RowParams,
        edits: Edits,
        drafts: Drafts,
        wanted: LogprobsWanted | None,
        *,
        wide: bool = False,
    ) -> VerifiedRows: ...


class Drafting(NamedTuple):
    """What speculative decoding needs of a backend: draws of drafts, and their verification."""

    sample_rows: SampleRowsOnStreams
    log_weights: Callable[[Tensor, RowParams], Tensor]
    verify_rows: VerifyRows
    law: Callable[[Tensor, RowParams, Edits, Drafts], Law]
    draw_drafts: DrawDrafts


class Backend(NamedTuple):
    """The functions of one backend."""

    name: str
    sample_rows: SampleRows
    logprobs_of: Callable[[Tensor, Tensor, LogprobsWanted], tuple[Tensor, Tensor, Tensor]]
    for_batch: Callable[[BatchFacts], SampleRows] | None = None
    """Where `sample_rows` has to know a batch beforehand: its form for a batch with these facts"""
    step_sampler: type[StepSampler] | None = None
    """Where a backend keeps requests in tables of its own: what draws for them"""
    drafting: Drafting | None = None
    """Of a backend that verifies by tables of its own, torch's: their draws of drafts; None: it has none"""

    def sampler_of(self, facts: Callable[[], BatchFacts]) -> SampleRows:
        """What samples a batch; its facts are asked for only where they matter."""
        return self.sample_rows if self.for_batch is None else self.for_batch(facts())

    def needed_for_drafts(self) -> Drafting:
        """What drafts and verifies.

        Raises:
            BackendError: The backend does not.
        """
        if self.drafting is None:
            raise BackendError(f"backend {self.name!r}: does not draft; torch, triton and reference do")
        return self.drafting


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
        reason: str | None = import_module("drawlot.kernels.flashinfer.availability").why_not(on)
        return reason
    return "no such backend; there are auto, reference, torch, triton and flashinfer"


def get_backend(name: str, on: device) -> Backend:
    """The backend of that name; "auto" is the one that DRAWLOT_SAMPLER_BACKEND names, else the best of drawlot's own.

    Raises:
        BackendError: It cannot run on the device; the message gives the reason.
    """
    chosen, source = name, f"backend {name!r}"
    if name == "auto" and os.environ.get(VARIABLE, "auto") not in ("", "auto"):
        chosen, source = os.environ[VARIABLE], f"{VARIABLE}={os.environ[VARIABLE]}"
    if chosen == "auto":
        backend = own_backend(on)
    else:
        reason = why_not(chosen, on)
        if reason is not None:
            raise BackendError(f"{source}: {reason}")
        backend = _load(chosen)
    if name == "auto" and backend.name not in _logged:
        _logged.add(backend.name)
        logger.info("backend auto: %s on %s", backend.name, on)
    return backend


def name_that_drafts(name: str, on: device) -> str:
    """The same name, but the best of drawlot's own for an "auto" that means one which does not draft; logged once."""
    if name != "auto" or get_backend(name, on).drafting is not None:
        return name
    own = own_backend(on).name
    if "drafts" not in _logged:
        _logged.add("drafts")
        logger.info("backend auto: %s on %s, for drafts", own, on)
    return own


def own_backend(on: device) -> Backend:
    """The best of drawlot's own backends on a device."""
    # Triton's interpreter, which a CPU may have, is for checks alone.
    return _load("triton" if on.type == "cuda" and why_not("triton", on) is None else "torch")


@cache
def _load(name: str) -> Backend:
    module = import_module(f"drawlot.kernels.{name}")
    step_sampler = getattr(module, "StepSampler", None)
    drafting = None if step_sampler is None else _load("torch").drafting
    if hasattr(module, "verify_rows"):
        rows, weights = module.sample_rows, module.log_weights
        draw_drafts = getattr(module, "draw_drafts", None) or drawn_apart(rows, weights)
        drafting = Drafting(rows, weights, module.verify_rows, module.law, draw_drafts)
    return Backend(
        name,
        module.sample_rows,
        module.logprobs_of,
        getattr(module, "for_batch", None),
        step_sampler,
        drafting,
    )
