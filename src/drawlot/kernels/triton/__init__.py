"""The GPU backend: one read of the logits, in Triton."""

from drawlot.kernels.triton.logprobs import logprobs_of
from drawlot.kernels.triton.sample import sample_rows
from drawlot.kernels.triton.step_sampler import StepSampler

__all__ = ["StepSampler", "logprobs_of", "sample_rows"]
