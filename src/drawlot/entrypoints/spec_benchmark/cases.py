"""What is measured: who drafts how much, how it is verified, at which temperature; and on what text."""

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from drawlot.engine.speculative_config import METHODS, SpeculativeConfig
from drawlot.entrypoints.spec_benchmark.held_out import FILES
from drawlot.errors import ParameterError

LOSSLESS = ("standard", "block", "coupled")


class Case(NamedTuple):
    """One configuration."""

    speculator: str
    verification: str
    temperature: float
    num_drafts: int

    @property
    def name(self) -> str:
        """Of its line in tables and plots, where the temperature is told elsewhere."""
        return self.speculator if self.temperature == 0 else f"{self.speculator} {self.verification}"

    @property
    def config(self) -> SpeculativeConfig:
        """The engine's."""
        return SpeculativeConfig(
            method=self.speculator,
            rejection_sample_method=self.verification,
            num_speculative_tokens=self.num_drafts,
        )


class Work(NamedTuple):
    """The text that every case goes on with."""

    files: Sequence[str] = FILES
    prompts: int = 8
    prompt_tokens: int = 64
    new_tokens: int = 48
    together: int = 1
    """Requests that run together"""


def grid(
    speculators: Sequence[str], verifications: Sequence[str], temperatures: Sequence[float], drafts: Sequence[int]
) -> list[Case]:
    """Every combination; at temperature 0, where all verifications do the same, with the first one only.

    Raises:
        ParameterError: There is no such speculator or lossless verification, or a number is out of range.
    """
    for field, names, known in (("speculators", speculators, METHODS), ("verifications", verifications, LOSSLESS)):
        for name in names:
            if name not in known:
                raise ParameterError(field, f"must be among {', '.join(known)}", name)
    for temperature in temperatures:
        if not 0 <= temperature < float("inf"):
            raise ParameterError("temperatures", "must be finite and >= 0", temperature)
    cases = []
    for temperature, speculator, verification, count in product(temperatures, speculators, verifications, drafts):
        if temperature > 0 or verification == verifications[0]:
            cases.append(Case(speculator, verification, temperature, count))
            # Raises here, not in the middle of a long run.
            _ = cases[-1].config
    return cases
