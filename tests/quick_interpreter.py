"""Triton's interpreter prepares its language for every function that another calls, half of all it does; here once."""

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
