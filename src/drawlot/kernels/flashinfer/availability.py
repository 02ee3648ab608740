"""Whether FlashInfer can run here."""

import re
from importlib import import_module

import torch

OLDEST = (0, 6, 14)
"""Older kernels can hang (flashinfer-ai/flashinfer 3615), and the oldest read out of bounds for a row of NaN."""

OLDEST_CAPABILITY = (7, 5)
"""Of a GPU that its kernels compile for."""


def why_not(on: torch.device) -> str | None:
    """Why FlashInfer cannot draw on a device; None if it can."""
    capability = compute_capability(on)
    if capability is None:
        return f"needs a CUDA GPU; got {on}"
    if capability < OLDEST_CAPABILITY:
        return f"needs compute capability {_dotted(OLDEST_CAPABILITY)} or newer; {on} has {_dotted(capability)}"
    try:
        version = import_module("flashinfer").__version__
    except Exception as error:  # an installation that does not fit its machine raises anything
        return f"flashinfer cannot be imported ({error}); it comes with the extra drawlot[flashinfer]"
    if tuple(int(part) for part in re.findall(r"\d+", version)[:3]) < OLDEST:
        return f"needs flashinfer-python {_dotted(OLDEST)} or newer; got {version}"
    return None


def compute_capability(on: torch.device) -> tuple[int, int] | None:
    """Major and minor; None: it is no CUDA GPU."""
    if on.type != "cuda" or torch.version.cuda is None or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_capability(on)


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
