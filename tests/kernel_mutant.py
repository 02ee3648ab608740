"""A wrong Triton kernel, a few characters away from the right one: a test that does not see it is no test."""

import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock


class KernelMutant(NamedTuple):
    """Puts `new` in the place of `old`, which stands once in the source of a function that kernels call."""

    name: str
    function: Any
    old: str
    new: str
    world: str = "standard"
    """The inputs of its test that show it"""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Whoever calls the function calls the mutant."""
        right = self.function.fn
        source = inspect.getsource(right)
        assert source.count(self.old) == 1, (self.name, source.count(self.old))
        # Triton reads the source again, by the name of its file.
        source, place, names = source.replace(self.old, self.new), f"<{self.name}>", dict[str, Any]()
        linecache.cache[place] = len(source), None, source.splitlines(keepends=True), place
        exec(compile(source, place, "exec"), right.__globals__, names)
        modules = [module for name, module in sys.modules.items() if name.startswith("drawlot.kernels.triton.")]
        with ExitStack() as patches:
            for module in modules:
                for name, value in list(vars(module).items()):
                    if value is self.function:
                        patches.enter_context(mock.patch.object(module, name, names[right.__name__]))
            yield
