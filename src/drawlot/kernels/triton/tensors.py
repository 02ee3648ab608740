"""Tensors whose addresses kernels are given."""

import torch
from torch import Tensor

from drawlot.errors import InputError


def one_a_row(tensor: Tensor, n: int) -> Tensor:
    """A column of `LogitsRows` [N] with its numbers side by side.

    Raises:
        InputError: It has another length.
    """
    if tensor.shape != (n,):
        raise InputError(f"rows: every column must be [{n}], as many as rows of logits; got {list(tensor.shape)}")
    return tensor.contiguous()


def int64_a_row(tensor: Tensor, n: int) -> Tensor:
    """The same of numbers of 64 bits; others are copied."""
    column = one_a_row(tensor, n)
    return column if column.dtype == torch.int64 else column.to(torch.int64)


def adjacent(tensor: Tensor) -> Tensor:
    """A matrix whose columns are adjacent; its rows may lie apart."""
    return tensor if tensor.stride(1) == 1 else tensor.contiguous()


def upload(host: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, without a wait: torch does not reuse pinned memory before the device has read it."""
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def refuse_capture(tensor: Tensor, reason: str) -> None:
    """For what must not become part of a CUDA graph.

    Raises:
        InputError: The current stream is being captured.
    """
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise InputError(f"this step cannot be captured: {reason}")
