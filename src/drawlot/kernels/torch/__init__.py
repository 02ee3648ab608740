"""The vectorised backend in plain torch: any device, the default on CPU.

Follows the one-read design: tile maxima and tile masses first, then work on the few tiles that can hold a winner. No
vocabulary is sorted, and no noise is drawn for tokens that cannot be kept.
"""

from drawlot.kernels.torch.draft_draws import draw_drafts
from drawlot.kernels.torch.log_weights import log_weights
from drawlot.kernels.torch.logprobs import logprobs_of
from drawlot.kernels.torch.sample import sample_rows
from drawlot.kernels.torch.verify import law, verify_rows

__all__ = ["draw_drafts", "law", "log_weights", "logprobs_of", "sample_rows", "verify_rows"]
