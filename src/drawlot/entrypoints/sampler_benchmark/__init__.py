"""How fast samplers turn logits into tokens: `drawlot bench sampler`, and the same from Python.

>>> record = benchmark([Case(rows=64, mix="top-p")], ["drawlot-torch", "torch"])  # doctest: +SKIP
>>> record["results"][0]["providers"]["torch"]["us"]  # doctest: +SKIP
"""

from drawlot.entrypoints.sampler_benchmark.benchmark import benchmark
from drawlot.entrypoints.sampler_benchmark.cases import Case, grid, recorded_grid
from drawlot.entrypoints.sampler_benchmark.plot import svg
from drawlot.entrypoints.sampler_benchmark.recorded import read_logits

__all__ = ["Case", "benchmark", "grid", "read_logits", "recorded_grid", "svg"]
