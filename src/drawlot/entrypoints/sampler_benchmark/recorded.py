"""Rows of logits recorded from a model."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from drawlot.errors import InputError


def read_logits(path: Path) -> Tensor:
    """[rows, vocab] on the CPU, as the file has it.

    Args:
        path: A .npy of float32 or float16, or a .safetensors with one tensor, or one named `logits`.

    Raises:
        InputError: It holds no such rows.
        OSError: It cannot be read.
    """
    if path.suffix == ".npy":
        logits = torch.from_numpy(np.load(path))
    elif path.suffix == ".safetensors":
        logits = _from_safetensors(path)
    else:
        raise InputError(f"{path}: must be a .npy or .safetensors file")
    if logits.ndim != 2 or not logits.numel():
        raise InputError(f"{path}: must hold [rows, vocab]; got {list(logits.shape)}")
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"{path}: must be float32, bfloat16 or float16; got {logits.dtype}")
    return logits


def _from_safetensors(path: Path) -> Tensor:
    from safetensors.torch import load_file

    tensors: dict[str, Tensor] = load_file(path)
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    if "logits" not in tensors:
        raise InputError(f"{path}: must hold one tensor, or one named logits; got {', '.join(sorted(tensors))}")
    return tensors["logits"]
