"""What programs of kernels read and write in Triton's interpreter before they follow the launch before them.

On a GPU they begin while it runs (programmatic dependent launch); in the interpreter it has ended, so nothing goes
wrong.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any
from unittest import mock

from triton.runtime import interpreter

from tests import checked_memory


@dataclass
class Touched:
    """Addresses that a launch touches, and those of them that its programs touch before they follow the one before."""

    kernel: str
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)
    early_reads: set[int] = field(default_factory=set)
    early_writes: set[int] = field(default_factory=set)


@contextmanager
def touched_by_launches(*modules: ModuleType) -> Iterator[list[Touched]]:
    """Launch after launch; modules: those whose kernels follow others' ends."""
    launches: list[Touched] = []
    reads, writes, now = set[int](), set[int](), ["read"]
    builder, executor = interpreter.InterpreterBuilder, interpreter.GridExecutor
    launch, real = executor.__call__, checked_memory._Memory.real

    def launched(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.append(Touched(self.fn.__name__))
        launch(self, *args, **kwargs)

    def begin(original: Any) -> Any:
        def begun(self: Any, *place: int) -> None:
            reads.clear()
            writes.clear()
            original(self, *place)

        return begun

    def follow(*how: Any) -> None:
        launches[-1].early_reads |= reads
        launches[-1].early_writes |= writes

    def noted(self: Any, pointers: Any, mask: Any) -> Any:
        found = real(self, pointers, mask)
        addresses = set(found.data[mask.data].tolist())
        for kind, mine, all_of_launch in (("read", reads, launches[-1].reads), ("write", writes, launches[-1].writes)):
            if kind in now[0]:
                mine |= addresses
                all_of_launch |= addresses
        return found

    def as_a(kind: str, original: Any) -> Any:
        def called(*args: Any) -> Any:
            now[0] = kind
            return original(*args)

        return called

    kinds = {"create_masked_load": "read", "create_masked_store": "write"}
    kinds |= {"create_atomic_cas": "read, write", "create_atomic_rmw": "read, write"}
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(executor, "__call__", launched))
        patches.enter_context(mock.patch.object(checked_memory._Memory, "real", noted))
        patches.enter_context(mock.patch.object(builder, "set_grid_idx", begin(builder.set_grid_idx)))
        for name, kind in kinds.items():
            patches.enter_context(mock.patch.object(builder, name, as_a(kind, getattr(builder, name))))
        for module in modules:
            names = ("follow", "follow_of_many", "wait_for_previous")
            follows = next(name for name in names if hasattr(module, name))
            patches.enter_context(mock.patch.object(module, follows, follow))
        yield launches


def touched_too_early(launches: list[Touched]) -> list[str]:
    """Kernels whose programs touch early what the launch before them writes, or write what it reads."""
    wrong = []
    for before, launch in pairwise(launches):
        if launch.early_reads & before.writes or launch.early_writes & (before.reads | before.writes):
            wrong.append(launch.kernel)
    return wrong
