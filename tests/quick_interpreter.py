"""What Triton's interpreter does again and again, done once: half of what it did, and a half of the rest.

It prepares its language for every function that another calls, works out the shape of every tensor from that of its
type, lists all types whenever it looks one up, converts operands to the types they have, and adds twice to see an
overflow that it tells in debug mode alone.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter


def prepare_once_a_launch() -> None:
    """A launch of a kernel prepares the language for all the functions it calls."""
    if not hasattr(interpreter, "_LangPatchScope"):
        return
    prepare: Callable[[Any], Any] = interpreter._patch_lang
    prepared: set[int] = set()
    seen: dict[Any, set[int]] = {}

    class Launch:
        """What a launch gives back at its end; what functions are given is never asked."""

        def __init__(self, scope: Any) -> None:
            self._scope = scope

        def restore(self) -> None:
            prepared.clear()
            self._scope.restore()

    def prepare_once(fn: Any) -> Launch | None:
        if fn not in seen:
            names = fn.__globals__.values()
            seen[fn] = {id(module) for module in (tl, tl.core) if any(value is module for value in names)}
        modules = seen[fn]
        if prepared and modules <= prepared:
            return None
        scope = Launch(prepare(fn))
        prepared.update(modules)
        return scope

    interpreter._patch_lang = prepare_once


def remember_shapes_and_types() -> None:
    """Of tensors and of types of blocks, which are worked out at their first; the types of NumPy likewise."""
    shapes: dict[str, tuple[Any, Any]] = {}
    shapes_of: dict[tuple[int, ...], tuple[Any, Any]] = {}
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    others: dict[tuple[str, str], Any] = {}
    dtypes: dict[Any, Any] = {}
    new_block, other_elements = tl.block_type.__init__, tl.block_type.with_element_ty
    look_up = interpreter._get_np_dtype

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        if type.name not in shapes:
            sizes = (*type.shape.values,) if type.is_block() else ()
            shape = tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))
            shapes[type.name] = shapes_of.setdefault(sizes, shape)
        self.shape, self.numel = shapes[type.name]

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = shape.values if isinstance(shape, tl.tuple) else shape
        key = element_ty.name, *(size.value if isinstance(size, tl.constexpr) else size for size in sizes)
        if key not in blocks:
            new_block(self, element_ty, shape)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    def with_element_ty(self: Any, element_ty: Any) -> Any:
        key = self.name, element_ty.name
        if key not in others:
            others[key] = other_elements(self, element_ty)
        return others[key]

    def np_dtype(of: Any) -> Any:
        element = of.element_ty if isinstance(of, tl.block_type) else of
        if element.name not in dtypes:
            dtypes[element.name] = look_up(of)
        return dtypes[element.name]

    tl.tensor.__init__, tl.block_type.__init__ = tensor, block_type
    tl.block_type.with_element_ty = with_element_ty
    # The interpreter's types are the language's own.
    tl.block_type.to_ir = lambda self, builder: self
    interpreter._get_np_dtype = np_dtype


def fill_at_once() -> None:
    """Blocks of one value: NumPy would ask for the sizes of a block's type one by one."""
    splat, broadcast = interpreter.InterpreterBuilder.create_splat, interpreter.InterpreterBuilder.create_broadcast

    def create_splat(self: Any, type: Any, value: Any) -> Any:
        return splat(self, SimpleNamespace(shape=type.shape.values), value)

    def create_broadcast(self: Any, value: Any, shape: Any) -> Any:
        return broadcast(self, value, shape.values if isinstance(shape, tl.tuple) else shape)

    interpreter.InterpreterBuilder.create_splat = create_splat
    interpreter.InterpreterBuilder.create_broadcast = create_broadcast


def convert_once() -> None:
    """Operands of the same type are not converted; a number becomes a tensor once for all tensors of a type."""
    numbers: dict[tuple[Any, ...], Any] = {}
    equal, convert = tl.dtype.__eq__, TritonSemantic.binary_op_type_checking_impl
    broadcast = TritonSemantic.broadcast_impl_value

    def operands(self: Any, left: Any, right: Any, *how: bool, **also: bool) -> tuple[Any, Any]:
        # Pointers may not be what is asked for.
        if not isinstance(left, tl.tensor) or left.dtype.is_ptr() or also:
            return convert(self, left, right, *how, **also)
        if isinstance(right, tl.tensor):
            # A division may ask for wider floats.
            is_same = left.type.name == right.type.name and len(how) <= 2
            return (left, right) if is_same else convert(self, left, right, *how)
        # Its text tells 1 from True, and zeros of both signs.
        key = left.type.name, repr(right), how
        if key in numbers:
            return left, numbers[key]
        new_left, new_right = convert(self, left, right, *how)
        if new_left is left:
            new_right.handle.data.flags.writeable = False
            numbers[key] = new_right
        return new_left, new_right

    def of_one_shape(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        return (left, right) if left.shape is right.shape else broadcast(self, left, right)

    TritonSemantic.binary_op_type_checking_impl = operands
    TritonSemantic.broadcast_impl_value = of_one_shape
    tl.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def call_at_once() -> None:
    """Functions of the language, without those that ask whether they are called from a kernel."""

    def patch(of: Any, name: str, function: Any, builder: Any, scope: Any) -> None:
        inner = getattr(function, "__wrapped__", function)

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = interpreter.interpreter_semantic
            return inner(*args, **kwargs)

        scope.set_attr(of, name, call)

    interpreter._patch_attr = patch


def look_for_no_overflow() -> None:
    """Without debug mode nothing is told of it."""
    if not interpreter.interpreter_builder.options.debug:
        TritonSemantic.binary_op_sanitize_overflow_impl = lambda self, left, right, operation: None
