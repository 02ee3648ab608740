"""The product's transform of words to noise, alone in a kernel."""

import torch
import triton
import triton.language as tl
from torch import Tensor

# The one thing here that the backend provides: uint32 words to float32 noise.
from drawlot.kernels.triton.noise import gumbel_of_words

_BLOCK = 1024


@triton.jit
def _noise_kernel(first, noise, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    words = (first + at).to(tl.uint32)
    tl.store(noise + at, gumbel_of_words(words), mask=at < count)


def noise_of(first: int, count: int, device: torch.device) -> Tensor:
    """float32 [count]: the noise of the words first, first + 1, ..."""
    noise = torch.empty(count, dtype=torch.float32, device=device)
    # Bit for bit means one rounding an operation, as the product's kernels are compiled.
    _noise_kernel[(triton.cdiv(count, _BLOCK),)](first, noise, count, BLOCK=_BLOCK, enable_fp_fusion=False)
    return noise


@triton.jit
def _store_kernel(tensor, place):
    tl.store(tensor + place, 1.0)


def store_past_the_end(tensor: Tensor) -> None:
    """A mistake on purpose, for a checker of memory to find."""
    _store_kernel[(1,)](tensor, tensor.numel())
