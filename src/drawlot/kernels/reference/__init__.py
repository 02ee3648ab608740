"""The specification: NumPy float64, one row at a time, one function a rule of `docs/semantics.md`."""

from drawlot.kernels.reference.logprobs import logprobs_of
from drawlot.kernels.reference.sample import sample_rows

__all__ = ["logprobs_of", "sample_rows"]
