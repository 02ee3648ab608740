"""FlashInfer as a provider of draws, for comparison and trust: `docs/flashinfer.md` says what it cannot promise.

Batches that it may not take, and all logprobs, go to drawlot's own backend.
"""

from drawlot.kernels.flashinfer.logprobs import logprobs_of
from drawlot.kernels.flashinfer.sample import for_batch, sample_rows

__all__ = ["for_batch", "logprobs_of", "sample_rows"]
