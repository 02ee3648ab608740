"""How much drafts save: `drawlot bench spec`, and the same from Python."""

from drawlot.entrypoints.spec_benchmark.benchmark import benchmark
from drawlot.entrypoints.spec_benchmark.cases import Case, Work, grid
from drawlot.entrypoints.spec_benchmark.plot import svg

__all__ = ["Case", "Work", "benchmark", "grid", "svg"]
