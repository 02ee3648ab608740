"""Launches that do not pass through Triton's binder, which takes longer than everything else a launch costs."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor, dtype
from triton import AsyncCompileMode
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from drawlot.kernels.triton.arguments import Lists, Rows, Tiles, Whole

# Of these, kernels know whether addresses and numbers are multiples of 16: their loads are wide, and a model or a
# workspace always gives the same. Of all others they know nothing, since it may differ from call to call.
_KNOWN_MULTIPLES = (Rows, Tiles, Lists, Whole)
_MOST_PROGRAMS = 2**31 - 1


class Packed(NamedTuple):
    """An argument of a kernel, good for any number of launches as long as its tensors live."""

    argument: Any
    """A tuple of tensors, numbers, None and such tuples; or one of these"""
    stand_in: Any
    """The same with nothing in it but what a compiled kernel depends on"""
    raw: Any
    """The same with addresses for tensors"""
    kind: int
    """Equal for equal stand-ins"""


class _Pointer:
    """Stands in for tensors of a type while a kernel is compiled."""

    def __init__(self, dtype: dtype, address: int) -> None:
        self.dtype = dtype
        self.data_ptr = lambda: address


class _Compiled(NamedTuple):
    run: Callable[..., None]
    function: int
    metadata: Any


_compiled: dict[Any, _Compiled] = {}
_pointers: dict[tuple[dtype, bool], _Pointer] = {}
_kinds: dict[Any, int] = {}
_only_compiles: ContextVar[bool] = ContextVar("_only_compiles", default=False)


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Launches run nothing: what they need is compiled, as many at once as there are processors, before this ends."""
    token = _only_compiles.set(True)
    try:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads, AsyncCompileMode(threads):
            yield
    finally:
        _only_compiles.reset(token)


def pack(argument: Any) -> Packed:
    """An argument, packed; parts of it may be already."""
    stand_in, raw = _parts(argument, known_multiple=True)
    return Packed(argument, stand_in, raw, _kinds.setdefault(stand_in, len(_kinds)))


class Launch:
    """One launch of a call: a kernel, and all that does not change from one step to the next."""

    def __init__(
        self,
        kernel: Any,
        grid: Callable[[int], int],
        *arguments: Any,
        forms: Sequence[tuple[int, dict[str, Any]]] = (),
        **constants: Any,
    ) -> None:
        """Prepare a launch.

        Args:
            kernel: Its first two parameters are what `__call__` is given, then come the arguments and the constants.
            grid: How many programs a call for so many rows has.
            arguments: Tuples of tensors and numbers, numbers, None; kept alive.
            forms: Other options for calls of at most so many programs, ascending. All are compiled at once.
            constants: Constexprs, and options of the compiler; these may be functions of the first parameter.
        """
        self._kernel = kernel
        self._grid = grid
        self._arguments = arguments
        # No call has more programs than the last form is for.
        self._forms = [(most, {**constants, **options}) for most, options in forms if most]
        self._forms.append((_MOST_PROGRAMS, constants))
        self._compiled: dict[Any, _Compiled] = {}
        if isinstance(kernel, JITFunction):
            packed = [pack(argument) for argument in arguments]
            self._stand_ins = tuple(argument.stand_in for argument in packed)
            constexprs = (constants[name] for name in kernel.arg_names if name in constants)
            self._raw = *(argument.raw for argument in packed), *constexprs

    def __call__(self, n: int, first: Packed, second: Packed) -> None:
        """Run the kernel for n rows on the current stream, with these two before the other arguments."""
        programs = self._grid(n)
        if _only_compiles.get():
            self._start_compiling(first.stand_in, second.stand_in)
            return
        if not isinstance(self._kernel, JITFunction):
            # Triton's interpreter.
            arguments = map(_unpacked, (first, second, *self._arguments))
            self._kernel[(programs,)](*arguments, **_options(self._forms[-1][1], first.stand_in))
            return
        device = driver.active.get_current_device()
        for most, _ in self._forms:
            if programs <= most:
                break
        key = device, first.kind, second.kind, most
        compiled = self._compiled.get(key)
        if compiled is None:
            for size, constants in self._forms:
                self._compiled[*key[:3], size] = self._compile(device, constants, first.stand_in, second.stand_in)
            compiled = self._compiled[key]
        stream = driver.active.get_current_stream(device)
        # In the place of the three: metadata for profilers' hooks, and the hooks.
        compiled.run(
            programs,
            1,
            1,
            stream,
            compiled.function,
            compiled.metadata,
            None,
            None,
            None,
            first.raw,
            second.raw,
            *self._raw,
        )

    def _start_compiling(self, *first: Any) -> None:
        if isinstance(self._kernel, JITFunction):
            for _, constants in self._forms:
                options = _options(constants, first[0])
                self._kernel.run(*first, *self._stand_ins, grid=(1,), warmup=True, **options)

    def _compile(self, device: int, constants: dict[str, Any], *first: Any) -> _Compiled:
        """By Triton, for stand-ins: neither batch size nor memory makes a difference."""
        options = _options(constants, first[0])
        key = self._kernel, device, *first, *self._stand_ins, *options.items()
        if key not in _compiled:
            kernel = self._kernel.run(*first, *self._stand_ins, grid=(1,), warmup=True, **options)
            # `run` loads the kernel, and only then `function` is there.
            run = kernel.run
            _compiled[key] = _Compiled(run, kernel.function, kernel.packed_metadata)
        return _compiled[key]


def _options(constants: dict[str, Any], first: Any) -> dict[str, Any]:
    return {name: value(first) if callable(value) else value for name, value in constants.items()}


def _parts(argument: Any, *, known_multiple: bool) -> tuple[Any, Any]:
    """Stand-in and raw form."""
    if argument is None:
        return None, None
    if isinstance(argument, Tensor):
        address = argument.data_ptr()
        key = argument.dtype, known_multiple and _rows_are_aligned(argument, address)
        pointer = _pointers.get(key)
        if pointer is None:
            pointer = _pointers[key] = _Pointer(key[0], 16 if key[1] else 1)
        return pointer, address
    if isinstance(argument, int):
        # 1 is compiled as a constant, and what does not fit 32 bits as 64.
        number = 1 if known_multiple and argument == 1 else 16 if known_multiple and argument % 16 == 0 else 3
        return (number if argument < 2**31 else number + 2**32), argument
    if isinstance(argument, Packed):
        return argument.stand_in, argument.raw
    known = isinstance(argument, _KNOWN_MULTIPLES)
    stand_ins, raw = zip(*[_parts(part, known_multiple=known) for part in argument])
    return type(argument)(*stand_ins), raw


def _rows_are_aligned(tensor: Tensor, address: int) -> bool:
    """All rows, so that a slice of a batch is like the whole."""
    step = tensor.stride(0) * tensor.element_size() if tensor.ndim > 1 else 0
    return (address | step) % 16 == 0


def _unpacked(argument: Any) -> Any:
    if isinstance(argument, Packed):
        return _unpacked(argument.argument)
    if isinstance(argument, tuple):
        return type(argument)(*map(_unpacked, argument))
    return argument
