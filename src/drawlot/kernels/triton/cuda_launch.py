"""Launches of compiled kernels by the CUDA driver, which finds their arguments in memory.

Triton's launcher is given each argument of each launch as a Python object, and takes twice the time of the driver.
"""

import ctypes
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton.runtime import driver

# CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, and CUDA_ERROR_INVALID_CONTEXT.
_OVERLAPS, _NO_CONTEXT = 6, 201
_WARP = 32
_BYTES = 8
"""Of a place for an argument; of a number of 32 bits the low half is read"""
_ADDED = 4
"""Zeros at the end, for places of memory that Triton adds and these kernels do not need: so far two"""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (("id", ctypes.c_int), ("unused", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


class Function:
    """A compiled kernel on a device."""

    def __init__(self, kernel: Any, num_arguments: int, device: int) -> None:
        """Load it.

        Args:
            kernel: What Triton compiled.
            num_arguments: How many arguments come before the constants that it was compiled for.
            device: The current one.

        Raises:
            RuntimeError: It takes other arguments than this file knows of.
        """
        about = kernel.metadata
        self.name: str = about.name
        types = [each for argument in list(kernel.src.signature.values())[:num_arguments] for each in _leaves(argument)]
        self.places = [place for place, type_ in enumerate(types) if type_ != "constexpr"]
        _, self.handle, *_ = driver.active.utils.load_binary(self.name, kernel.kernel, about.shared, device)
        self.threads, self.shared_bytes = _WARP * about.num_warps, about.shared
        self.overlaps = bool(about.launch_pdl)
        expected = [_BYTES if types[place].startswith("*") else int(types[place][1:]) // 8 for place in self.places]
        sizes = _sizes_of_parameters(self.handle, len(expected))
        needs_memory = about.global_scratch_size or about.profile_scratch_size
        if (sizes is not None and sizes != expected) or needs_memory:
            raise RuntimeError(f"{self.name}: this version of Triton passes arguments in an unknown way: {sizes}")


class PreparedLaunch:
    """Launches of a function that differ in their first arguments, in their programs and in their streams alone."""

    def __init__(self, function: Function, num_first: int, num_second: int, others: NDArray[np.int64]) -> None:
        """Bring what stays to where the driver finds it.

        Args:
            function: What is launched.
            num_first: Numbers of the first argument, and
            num_second: of the second one.
            others: int64, the numbers of the others.
        """
        self._function = function
        values = np.concatenate((np.zeros(num_first + num_second, np.int64), others, np.zeros(_ADDED, np.int64)))
        self._first, self._second = values[:num_first], values[num_first : num_first + num_second]
        places = np.array([*function.places, *range(len(values) - _ADDED, len(values))])
        # Both arrays live as long as this; the driver is given where they are.
        self._parameters = values.ctypes.data + _BYTES * places
        self._attribute = _Attribute(id=_OVERLAPS)
        self._attribute.value[0] = 1
        self._config = _Config(
            (1, 1, 1),
            (function.threads, 1, 1),
            function.shared_bytes,
            None,
            ctypes.pointer(self._attribute),
            int(function.overlaps),
        )
        self._grid = self._config.grid
        handle, parameters = ctypes.c_void_p(function.handle), ctypes.c_void_p(self._parameters.ctypes.data)
        self._given = ctypes.byref(self._config), handle, parameters, None

    def __call__(self, programs: int, stream: int, first: NDArray[np.int64], second: NDArray[np.int64]) -> None:
        """Launch it with these numbers of the first two arguments.

        Raises:
            RuntimeError: The driver refuses.
        """
        if not programs:
            return
        self._first[:], self._second[:] = first, second
        self._grid[0], self._config.stream = programs, stream
        launch = _driver().cuLaunchKernelEx
        error = launch(*self._given)
        if error == _NO_CONTEXT:
            # The first launch of a thread in which nothing ran yet.
            _enter_context()
            error = launch(*self._given)
        if error:
            raise RuntimeError(f"{self._function.name}: the CUDA driver refuses the launch: {_told(error)}")


def _leaves(argument: Any) -> Iterator[str]:
    if isinstance(argument, tuple):
        for part in argument:
            yield from _leaves(part)
    else:
        yield argument


def _sizes_of_parameters(handle: int, count: int) -> list[int] | None:
    """In bytes, of so many; None: drivers before CUDA 12.4 do not tell.

    Of more nothing is asked: what the driver refuses to tell is an error for compute-sanitizer.
    """
    tell = getattr(_driver(), "cuFuncGetParamInfo", None)
    if tell is None:
        return None
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    sizes: list[int] = []
    for place in range(count):
        if tell(ctypes.c_void_p(handle), place, ctypes.byref(offset), ctypes.byref(size)) == 0:
            sizes.append(size.value)
    return sizes


@cache
def _driver() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def _enter_context() -> None:
    context = ctypes.c_void_p()
    device = driver.active.get_current_device()
    error = _driver().cuDevicePrimaryCtxRetain(ctypes.byref(context), device) or _driver().cuCtxSetCurrent(context)
    if error:
        raise RuntimeError(f"the CUDA driver refuses its context: {_told(error)}")


def _told(error: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(error, ctypes.byref(text))
    return f"error {error}" if text.value is None else f"{text.value.decode()} (error {error})"
