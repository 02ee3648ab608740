"""Programs of a launch in Triton's interpreter run in another order each time, as a GPU may run them in any."""

import random
from typing import Any

from triton.runtime import interpreter


def shuffle_programs() -> None:
    """Of every launch from now on, by a generator that begins anew with each process."""
    builder, generator = interpreter.InterpreterBuilder, random.Random(0)
    set_size, set_place = builder.set_grid_dim, builder.set_grid_idx
    order: list[int] = []

    def shuffled_size(self: Any, nx: int, ny: int, nz: int) -> None:
        order[:] = generator.sample(range(nx), nx)
        set_size(self, nx, ny, nz)

    def shuffled_place(self: Any, x: int, y: int, z: int) -> None:
        set_place(self, order[x], y, z)

    builder.set_grid_dim, builder.set_grid_idx = shuffled_size, shuffled_place
