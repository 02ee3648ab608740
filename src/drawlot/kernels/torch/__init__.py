"""The vectorised backend in plain torch: any device, the default on CPU.

Follows the one-read design: tile maxima and tile masses first, then work on the few tiles that can hold a winner. No
vocabulary is sorted, and no noise is drawn for tokens that cannot be kept.
"""

from drawlot.kernels.torch.logprobs import logprobs_of
from drawlot.kernels.torch.sample import sample_rows

__all__ = ["logprobs_of", "sample_rows"]
