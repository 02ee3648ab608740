"""What the benchmark asks of whoever draws tokens."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.workload import Workload
from drawlot.outputs import LogprobsTensors


class Drawn(NamedTuple):
    """What a call returns."""

    token_ids: Tensor
    """Integers [N]"""
    logprobs: LogprobsTensors | None
    """As the requests asked for, or None from a provider that has none"""


Call = Callable[[Tensor], Drawn]
"""One step: raw logits [N, V] in, tokens and logprobs out; never writes to the logits."""


class Provider(Protocol):
    """One bar of the plot."""

    name: str
    same_tokens: bool
    """It promises the reference's tokens; others must draw from the kept set"""

    def why_not(self, work: Workload) -> str | None:
        """Why it cannot draw these rows here; None if it can."""

    def call(self, work: Workload) -> Call:
        """Prepare once what an engine would keep between steps."""

    def rows_per_path(self, work: Workload) -> dict[str, int] | None:
        """How many rows of all buffers took each path; None: the provider does not tell."""
