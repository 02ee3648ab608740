"""Programs that wait for what never comes raise in Triton's interpreter, where programs and launches run one by one.

So what a program looks for again and again is there when it first looks, or never.
"""

from typing import Any

from triton.runtime import interpreter

_MOST = 1000
"""Looks of a program: atomics that add nothing, volatile loads"""


class EndlessWaitError(Exception):
    """A program looks again and again."""


def refuse_endless_waits() -> None:
    """Of every launch from now on."""
    builder, looks = interpreter.InterpreterBuilder, 0
    begin, load, change = builder.set_grid_idx, builder.create_masked_load, builder.create_atomic_rmw

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks > _MOST:
            raise EndlessWaitError(f"a program has looked {_MOST} times")

    def counted_begin(self: Any, *place: int) -> None:
        nonlocal looks
        looks = 0
        begin(self, *place)

    def counted_load(self: Any, pointers: Any, mask: Any, other: Any, *how: Any) -> Any:
        *_, is_volatile = how
        if is_volatile:
            look()
        return load(self, pointers, mask, other, *how)

    def counted_change(self: Any, operation: Any, pointers: Any, value: Any, *rest: Any) -> Any:
        if not value.data.any():
            look()
        return change(self, operation, pointers, value, *rest)

    builder.set_grid_idx, builder.create_masked_load, builder.create_atomic_rmw = (
        counted_begin,
        counted_load,
        counted_change,
    )
