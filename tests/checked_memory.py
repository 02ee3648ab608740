"""Kernels in Triton's interpreter read and write within the tensors they are given, or raise.

A pointer keeps the tensor it comes from: each has a range of addresses of its own, far from all others, which only
loads and stores turn into real ones. So a store past the end of one buffer is seen, though another begins there. What
lies between the rows of a view belongs to it.
"""

from typing import Any

import numpy as np
from torch import Tensor
from triton.runtime import interpreter

_BITS = 44
"""Of the addresses of one tensor, which lies in their middle: ids of masked lanes may be negative"""


class OutOfBoundsError(Exception):
    """A lane that is not masked lies outside its tensor."""


def _address(number: int) -> int:
    return (number << _BITS) + (1 << (_BITS - 1))


class _Memory:
    """Tensors of the launch that runs: the real address of each, and its bytes."""

    def __init__(self) -> None:
        self.tensors: list[tuple[int, int, str]] = []

    def address_of(self, tensor: Tensor) -> int:
        """Where kernels see it."""
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        num_bytes = (last + 1) * tensor.element_size() if tensor.numel() else 0
        self.tensors.append((tensor.data_ptr(), num_bytes, f"{tensor.dtype} {tuple(tensor.shape)}, {tensor.stride()}"))
        return _address(len(self.tensors) - 1)

    def real(self, pointers: Any, mask: Any) -> Any:
        """The pointers to load from or store to."""
        addresses = pointers.data
        number = int(addresses.flat[0]) >> _BITS
        if number >= len(self.tensors):
            raise OutOfBoundsError("a pointer of no tensor")
        start, num_bytes, name = self.tensors[number]
        # Unsigned: what lies before the tensor is far behind it.
        offsets = addresses - np.uint64(_address(number))
        size = pointers.get_element_ty().primitive_bitwidth // 8
        outside = (offsets > np.uint64(num_bytes - size)) & mask.data if num_bytes else mask.data
        if outside.any():
            raise OutOfBoundsError(f"byte {offsets[outside].flat[0]} of {num_bytes} of {name}")
        return interpreter.TensorHandle(offsets + np.uint64(start), pointers.dtype)


def check_memory() -> None:
    """Of every launch from now on."""
    memory = _Memory()
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    launch, convert = executor.__call__, interpreter._implicit_cvt
    load, store = builder.create_masked_load, builder.create_masked_store
    exchange, change = builder.create_atomic_cas, builder.create_atomic_rmw

    def checked_launch(self: Any, *args: Any, **kwargs: Any) -> None:
        memory.tensors.clear()
        launch(self, *args, **kwargs)

    def checked_convert(arg: Any) -> Any:
        converted = convert(arg)
        if hasattr(arg, "data_ptr"):
            converted.handle.data[0] = memory.address_of(arg)
        return converted

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        return load(self, memory.real(pointers, mask), mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, memory.real(pointers, mask), value, mask, *rest)

    def checked_exchange(self: Any, pointers: Any, *rest: Any) -> Any:
        everywhere = interpreter.TensorHandle(np.ones_like(pointers.data, dtype=bool), interpreter.tl.int1)
        return exchange(self, memory.real(pointers, everywhere), *rest)

    def checked_change(self: Any, operation: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return change(self, operation, memory.real(pointers, mask), value, mask, *rest)

    executor.__call__, interpreter._implicit_cvt = checked_launch, checked_convert
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    builder.create_atomic_cas, builder.create_atomic_rmw = checked_exchange, checked_change
