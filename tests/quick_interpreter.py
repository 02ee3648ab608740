"""What Triton's interpreter does again and again, done once: half of what it did, and a third of the rest.

It prepares its language for every function that another calls, works out the shape of every tensor from that of its
type, and lists all types whenever it looks one up.
"""

import math
from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def prepare_once_a_launch() -> None:
    """A launch of a kernel prepares the language for all the functions it calls."""
    if not hasattr(interpreter, "_LangPatchScope"):
        return
    prepare: Callable[[Any], Any] = interpreter._patch_lang
    prepared: set[int] = set()

    class Launch:
        """What a launch gives back at its end; what functions are given is never asked."""

        def __init__(self, scope: Any) -> None:
            self._scope = scope

        def restore(self) -> None:
            prepared.clear()
            self._scope.restore()

    def prepare_once(fn: Any) -> Launch | None:
        modules = {id(module) for module in (tl, tl.core) if any(value is module for value in fn.__globals__.values())}
        if prepared and modules <= prepared:
            return None
        scope = Launch(prepare(fn))
        prepared.update(modules)
        return scope

    interpreter._patch_lang = prepare_once


def remember_shapes_and_types() -> None:
    """Of tensors and of types of blocks, which are worked out at their first; the types of NumPy likewise."""
    shapes: dict[tuple[int, ...], tuple[Any, Any]] = {}
    blocks: dict[tuple[Any, ...], dict[str, Any]] = {}
    dtypes: dict[Any, Any] = {}
    new_block, look_up = tl.block_type.__init__, interpreter._get_np_dtype

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        sizes = (*type.shape.values,) if type.is_block() else ()
        if sizes not in shapes:
            shapes[sizes] = tl.tuple([tl.constexpr(size) for size in sizes]), tl.constexpr(math.prod(sizes))
        self.shape, self.numel = shapes[sizes]

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = shape.values if isinstance(shape, tl.tuple) else shape
        key = element_ty.name, *(size.value if isinstance(size, tl.constexpr) else size for size in sizes)
        if key not in blocks:
            new_block(self, element_ty, shape)
            blocks[key] = dict(vars(self))
        vars(self).update(blocks[key])

    def np_dtype(of: Any) -> Any:
        element = of.element_ty if isinstance(of, tl.block_type) else of
        if element.name not in dtypes:
            dtypes[element.name] = look_up(of)
        return dtypes[element.name]

    tl.tensor.__init__, tl.block_type.__init__ = tensor, block_type
    interpreter._get_np_dtype = np_dtype
