"""What is timed: cases, and the grid of them that the command line spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.distributions import DISTRIBUTIONS
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES
from drawlot.errors import ParameterError

DTYPES = ("float32", "bfloat16", "float16")
RECORDED = "recorded"
"""The distribution of rows that come from a file"""


@dataclass(frozen=True)
class Case:
    """One line of a table: every provider draws one token for each of these rows in one call.

    Raises:
        ParameterError: A name or number is not one of those that exist.
    """

    rows: int
    vocab_size: int = 128_256
    dtype: str = "float32"
    mix: str = "k50p90"
    distribution: str = "normal3"

    def __post_init__(self) -> None:
        for field, number in (("rows", self.rows), ("vocab", self.vocab_size)):
            if number < 1:
                raise ParameterError(field, "must be >= 1", number)
        for field, name, names in (
            ("dtype", self.dtype, DTYPES),
            ("mix", self.mix, tuple(MIXES)),
            ("distribution", self.distribution, (*DISTRIBUTIONS, RECORDED)),
        ):
            if name not in names:
                raise ParameterError(field, f"must be one of {', '.join(names)}", name)

    def __str__(self) -> str:
        rows = f"{self.rows} row{'s' if self.rows > 1 else ''}"
        return f"{rows} x {self.vocab_size:,} {self.dtype}, {self.mix}, {self.distribution}"


def recorded_grid(recorded: Tensor, rows: Sequence[int], mixes: Sequence[str]) -> list[Case]:
    """The cases of recorded rows [M, V]; raises as `Case` does."""
    dtype = str(recorded.dtype).removeprefix("torch.")
    return [Case(n, recorded.shape[1], dtype, mix, RECORDED) for mix in mixes for n in rows]


def grid(
    rows: Sequence[int],
    vocab_sizes: Sequence[int] = (128_256,),
    dtypes: Sequence[str] = ("float32",),
    mixes: Sequence[str] = ("k50p90",),
    distributions: Sequence[str] = ("normal3",),
) -> list[Case]:
    """Every combination, rows fastest; raises as `Case` does."""
    combinations = product(vocab_sizes, dtypes, mixes, distributions, rows)
    return [Case(n, vocab_size, dtype, mix, distribution) for vocab_size, dtype, mix, distribution, n in combinations]
