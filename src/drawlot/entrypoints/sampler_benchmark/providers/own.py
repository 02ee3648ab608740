"""drawlot itself, through the `Sampler` that an engine uses."""

from collections import Counter

from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.providers.interface import Call, Drawn
from drawlot.entrypoints.sampler_benchmark.workload import Workload
from drawlot.kernels.registry import why_not


class Drawlot:
    """One of drawlot's backends."""

    same_tokens = True

    def __init__(self, backend: str) -> None:
        self.backend = backend
        self.name = f"drawlot-{backend}"

    def why_not(self, work: Workload) -> str | None:
        """The registry knows."""
        return why_not(self.backend, work.device)

    def call(self, work: Workload) -> Call:
        """One step of a sampler that has the requests."""
        sampler, rows, bitmask = work.sampler(self.backend), work.rows, work.bitmask

        def call(logits: Tensor) -> Drawn:
            out = sampler(logits, rows, bitmask)
            return Drawn(out.token_ids, out.logprobs)

        return call

    def rows_per_path(self, work: Workload) -> dict[str, int] | None:
        """What the sampler says of each buffer, drawn once more."""
        sampler, paths = work.sampler(self.backend), Counter[str]()
        for logits in work.buffers:
            sampler(logits, work.rows, work.bitmask)
            of_rows = sampler.row_paths(work.case.rows)
            if of_rows is None:
                return None
            paths.update(of_rows)
        return paths
