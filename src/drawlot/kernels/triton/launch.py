"""Launches that pass neither through Triton's binder nor through its launcher, which take longer than the driver."""

import ast
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, dtype
from triton import AsyncCompileMode
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from drawlot.kernels.triton.arguments import Lists, Rows, Tiles, Whole
from drawlot.kernels.triton.cuda_launch import Function, PreparedLaunch

# Of these, kernels know whether addresses and numbers are multiples of 16: their loads are wide, and a model or a
# workspace always gives the same. Of all others they know nothing, since it may differ from call to call.
_KNOWN_MULTIPLES = (Rows, Tiles, Lists, Whole)
_MOST_ROWS = 2**31 - 1


class Packed(NamedTuple):
    """An argument of a kernel, good for any number of launches as long as its tensors live."""

    argument: Callable[[], Any]
    """A tuple of tensors, numbers, None and such tuples; or one of these"""
    stand_in: Any
    """The same with nothing in it but what a compiled kernel depends on"""
    numbers: NDArray[np.int64]
    """All that is in it, one after the other, with addresses for tensors"""
    kind: int
    """Equal for equal stand-ins"""


class _Pointer:
    """Stands in for tensors of a type while a kernel is compiled."""

    def __init__(self, dtype: dtype, address: int) -> None:
        self.dtype = dtype
        self.data_ptr = lambda: address


_compiled: dict[Any, Function] = {}
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


def rows_are_aligned(tensor: Tensor) -> bool:
    """Whether wide loads may read them: all rows, so that a slice of a batch is like the whole."""
    step = tensor.stride(0) * tensor.element_size() if tensor.ndim > 1 else 0
    return (tensor.data_ptr() | step) % 16 == 0


def pack(argument: Any) -> Packed:
    """An argument, packed; parts of it may be already."""
    numbers: list[int] = []
    stand_in = _stand_in(argument, numbers, known_multiple=True)
    return Packed(lambda: argument, stand_in, np.array(numbers, np.int64), _kinds.setdefault(stand_in, len(_kinds)))


class Template:
    """What `pack` makes of a named tuple, of which only some fields change, and only in where their tensors lie."""

    def __init__(self, argument: Any, *names: str) -> None:
        """Pack the argument; of these fields, which are tensors, None or packed, nothing is kept."""
        _, self._stand_in, self._numbers, self._kind = pack(argument)
        self._names = names
        self._others = argument._replace(**dict.fromkeys(names))
        stops = list(accumulate(len(pack(field).numbers) for field in argument))
        place_of = dict(zip(argument._fields, pairwise((0, *stops))))
        self._places = [place_of[name] for name in names]

    def packed(self, *fields: Tensor | Packed | None) -> Packed:
        """The argument with these fields: of the types, and as well aligned, as those that it was made with."""
        numbers = self._numbers.copy()
        for (start, stop), field in zip(self._places, fields):
            if isinstance(field, Packed):
                numbers[start:stop] = field.numbers
            elif field is not None:
                numbers[start] = field.data_ptr()

        def argument() -> Any:
            return self._others._replace(**dict(zip(self._names, fields)))

        return Packed(argument, self._stand_in, numbers, self._kind)


class Launch:
    """One launch of a call: a kernel, and all that does not change from one step to the next."""

    def __init__(
        self,
        kernel: Any,
        grid: Callable[[int, Callable[[str], Any]], int],
        *arguments: Any,
        forms: Sequence[tuple[int, dict[str, Any]]] = (),
        **constants: Any,
    ) -> None:
        """Prepare a launch.

        Args:
            kernel: Its first two parameters are what `__call__` is given, then come the arguments and the constants.
            grid: How many programs a call for so many rows has; what it is given tells the call's constants by name.
            arguments: Tuples of tensors and numbers, numbers, None; kept alive.
            forms: Other options for calls for at most so many rows; the first one counts. All are compiled at once.
            constants: Constexprs, and options of the compiler; these may be functions of the first parameter.
        """
        self._kernel, self._is_compiled = kernel, isinstance(kernel, JITFunction)
        if self._is_compiled:
            _name_callees_first(kernel)
        self._grid = grid
        self._arguments = arguments
        # No call has more rows than the last form is for.
        every = (*forms, (_MOST_ROWS, {}))
        self._forms = [(most, i, {**constants, **options}) for i, (most, options) in enumerate(every) if most]
        self._prepared: dict[tuple[int, int, int], PreparedLaunch] = {}
        self._ready: dict[tuple[int, int, int], tuple[PreparedLaunch, int, int]] = {}
        packed = [pack(argument) for argument in arguments]
        self._stand_ins = tuple(argument.stand_in for argument in packed)
        self._numbers = np.concatenate([np.zeros(0, np.int64), *(argument.numbers for argument in packed)])

    def __call__(self, n: int, first: Packed, second: Packed) -> None:
        """Run the kernel for n rows on the current stream, with these two before the other arguments."""
        if _only_compiles.get():
            self._start_compiling(first.stand_in, second.stand_in)
            return
        if not self._is_compiled:
            # Triton's interpreter.
            constants, _ = self._form_of(n)
            arguments = map(_unpacked, (first, second, *self._arguments))
            programs = self._grid(n, partial(_option, constants, first.stand_in))
            self._kernel[(programs,)](*arguments, **_options(constants, first.stand_in))
            return
        key = n, first.kind, second.kind
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self._make_ready(n, first, second)
        launch, programs, device = ready
        launch(programs, driver.active.get_current_stream(device), first.numbers, second.numbers)

    def _form_of(self, n: int) -> tuple[dict[str, Any], int]:
        """Constants of a call for n rows, and the number of their form."""
        return next((constants, number) for most, number, constants in self._forms if n <= most)

    def _make_ready(self, n: int, first: Packed, second: Packed) -> tuple[PreparedLaunch, int, int]:
        """What such calls have in common: the launch, programs and device, which holds all that a launch is given."""
        device, (constants, number) = driver.active.get_current_device(), self._form_of(n)
        kinds = first.kind, second.kind
        if (*kinds, number) not in self._prepared:
            for _, other, of_other in self._forms:
                self._prepared[*kinds, other] = self._prepare(device, of_other, first, second)
        return self._prepared[*kinds, number], self._grid(n, partial(_option, constants, first.stand_in)), device

    def _start_compiling(self, *first: Any) -> None:
        if self._is_compiled:
            for _, _, constants in self._forms:
                options = _options(constants, first[0])
                self._kernel.run(*first, *self._stand_ins, grid=(1,), warmup=True, **options)

    def _prepare(self, device: int, constants: dict[str, Any], first: Packed, second: Packed) -> PreparedLaunch:
        """Have it compiled by Triton, for stand-ins: neither batch size nor memory makes a difference."""
        options = _options(constants, first.stand_in)
        arguments = first.stand_in, second.stand_in, *self._stand_ins
        key = self._kernel, device, *arguments, *options.items()
        if key not in _compiled:
            kernel = self._kernel.run(*arguments, grid=(1,), warmup=True, **options)
            _compiled[key] = Function(kernel, len(arguments), device)
        return PreparedLaunch(_compiled[key], len(first.numbers), len(second.numbers), self._numbers)


def _name_callees_first(function: JITFunction[Any]) -> None:
    """Have Triton name a function, by which its cache knows a kernel, after all that it calls.

    As Triton 3.6 does it, a name lacks constants of what was not named yet: it would depend on what ran before, and
    another program would compile the same kernel anew.
    """
    if function.hash is None:
        for node in ast.walk(function.parse()):
            callee = function.fn.__globals__.get(node.id) if isinstance(node, ast.Name) else None
            if isinstance(callee, JITFunction):
                _name_callees_first(callee)
        _ = function.cache_key


def _options(constants: dict[str, Any], first: Any) -> dict[str, Any]:
    return {name: _option(constants, first, name) for name in constants}


def _option(constants: dict[str, Any], first: Any, name: str) -> Any:
    value = constants[name]
    return value(first) if callable(value) else value


def _stand_in(argument: Any, numbers: list[int], *, known_multiple: bool) -> Any:
    """Of an argument, of which all that is in it is added to `numbers`."""
    if isinstance(argument, Packed):
        numbers.extend(argument.numbers.tolist())
        return argument.stand_in
    if isinstance(argument, tuple):
        known = isinstance(argument, _KNOWN_MULTIPLES)
        return type(argument)(*[_stand_in(part, numbers, known_multiple=known) for part in argument])
    if argument is None:
        numbers.append(0)
        return None
    if isinstance(argument, Tensor):
        address = argument.data_ptr()
        numbers.append(address)
        key = argument.dtype, known_multiple and rows_are_aligned(argument)
        pointer = _pointers.get(key)
        if pointer is None:
            pointer = _pointers[key] = _Pointer(key[0], 16 if key[1] else 1)
        return pointer
    numbers.append(argument)
    # 1 is compiled as a constant, and what does not fit 32 bits as 64.
    number = 1 if known_multiple and argument == 1 else 16 if known_multiple and argument % 16 == 0 else 3
    return number if argument < 2**31 else number + 2**32


def _unpacked(argument: Any) -> Any:
    if isinstance(argument, Packed):
        return _unpacked(argument.argument())
    if isinstance(argument, tuple):
        return type(argument)(*map(_unpacked, argument))
    return argument
