"""The gate before any timing: nobody is timed who draws wrong tokens.

The torch backend must draw the reference's tokens, and every other backend of drawlot the torch backend's. Providers
with noise of their own must draw from the kept set of the reference. All that is checked was drawn by what is timed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.mixes import MIXES
from drawlot.entrypoints.sampler_benchmark.oracle import ROUNDING, Oracle
from drawlot.entrypoints.sampler_benchmark.providers import Drawn
from drawlot.kernels.inputs import SampledRows
from drawlot.outputs import LogprobsTensors

NEAR_TIE = 2.0**-18
"""The only excuse for another token than the reference's; `docs/semantics.md`, section 2"""
MOST_COMPARED = 5
"""Differing rows of a buffer that the reference is asked about; more differ for no good reason"""


@dataclass
class Gate:
    """Compares the providers of one workload with what is right."""

    oracle: Oracle
    excused: list[str] = field(default_factory=list)
    """Differences that were let pass, and why"""

    def same_tokens(self, name: str, drawn: Sequence[Drawn]) -> list[str]:
        """Where a backend of drawlot is not as the torch backend, or that not as the reference.

        Args:
            name: Of the provider.
            drawn: What it drew from each of the oracle's buffers.
        """
        wrong = list(self._torch_is_wrong)
        for b, (got, expected) in enumerate(zip(drawn, self.oracle.expected)):
            same = got.token_ids == expected.token_ids
            differing = (~same).nonzero().flatten().tolist()
            if len(differing) > MOST_COMPARED:
                wrong.append(f"buffer {b}: {len(differing)} of {len(same)} tokens differ from those of torch")
                continue
            for i in differing:
                line = f"buffer {b}, row {i}: {name} {int(got.token_ids[i])}, torch {int(expected.token_ids[i])}"
                wrong += self._unless_near_tie(line, self.oracle.reference(b, i))
            if expected.logprobs is None:
                continue
            if got.logprobs is None or not _same_logprobs(got.logprobs, expected.logprobs, same):
                wrong.append(f"buffer {b}: logprobs of {name} differ from those of torch")
        return wrong

    @cached_property
    def _torch_is_wrong(self) -> list[str]:
        kinds = len(MIXES[self.oracle.work.case.mix])
        wrong = []
        for b, i in self.oracle.first_rows(max(2, kinds)):
            row, token = self.oracle.reference(b, i), int(self.oracle.expected[b].token_ids[i])
            if token != int(row.token_ids[0]):
                line = f"buffer {b}, row {i}: torch {token}, reference {int(row.token_ids[0])}"
                wrong += self._unless_near_tie(line, row)
        return wrong

    def from_kept_set(self, name: str, drawn: Sequence[Drawn]) -> list[str]:
        """Where another provider draws what the filters do not keep, or returns a wrong logprob."""
        wrong = []
        for (b, i), row in self.oracle.kept_rows.items():
            token, columns = int(drawn[b].token_ids[i]), drawn[b].logprobs
            where = f"buffer {b}, row {i}: {name} {token}"
            if not 0 <= token < len(row.values):
                wrong.append(f"{where} is no token")
                continue
            if token not in row.kept:
                if row.values[token] == row.values[row.kept[-1]]:
                    self.excused.append(f"{where} ties with the last token that is kept")
                else:
                    wrong.append(f"{where} is not in the kept set of {len(row.kept)} tokens")
            if columns is not None and self.oracle.work.params[i].num_logprobs is not None:
                got, exact = float(columns.logprobs[i, 0]), float(row.logprobs[token])
                if not abs(got - exact) <= ROUNDING * max(1.0, abs(exact)):
                    wrong.append(f"{where} has the logprob {exact:.6g}, not {got:.6g}")
        return wrong

    def _unless_near_tie(self, line: str, row: SampledRows) -> list[str]:
        if row.margin is None or float(row.margin[0]) >= NEAR_TIE:
            return [line]
        self.excused.append(f"{line}: a near-tie")
        return []


def _same_logprobs(ours: LogprobsTensors, theirs: LogprobsTensors, rows: Tensor) -> bool:
    same_ids = torch.equal(ours.logprob_token_ids[rows], theirs.logprob_token_ids[rows])
    same_ranks = torch.equal(ours.selected_token_ranks[rows], theirs.selected_token_ranks[rows])
    a, b = ours.logprobs[rows].double(), theirs.logprobs[rows].double()
    # Each is within 1e-6 of the exact value.
    close = (a == b) | ((a - b).abs() <= 2e-6 * b.abs().clamp(min=1))
    return same_ids and same_ranks and bool(close.all())
