"""The specification: NumPy float64, one row at a time, one function a rule of `docs/semantics.md`."""

from drawlot.kernels.reference.log_weights import log_weights
from drawlot.kernels.reference.logprobs import logprobs_of
from drawlot.kernels.reference.sample import sample_rows
from drawlot.kernels.reference.verify import law, verify_rows

__all__ = ["law", "log_weights", "logprobs_of", "sample_rows", "verify_rows"]
