"""Verification of drafts on the GPU: what `kernels/reference/verification` says, without a word from the host."""

from drawlot.kernels.triton.verification.step_verifier import StepVerifier

__all__ = ["StepVerifier"]
