"""The product's noise alone in kernels: of bare words, and of ids and keys."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawlot.kernels.inputs import RowParams

# All that the backend provides here: uint32 words to float32 noise, and keyed noise of both widths.
from drawlot.kernels.triton.noise import gumbel, gumbel_of_words

_BLOCK = 1024
_RUN = 128


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
def _keyed_kernel(first, seed, position, choice, step_row, stream, noise, RUN: tl.constexpr, WIDE: tl.constexpr):
    key = tl.program_id(0)
    ids = tl.load(first + key).to(tl.int32) + tl.arange(0, RUN)
    place = tl.load(position + key), stream, tl.load(choice + key), tl.load(step_row + key)
    result = gumbel(ids, tl.load(seed + key), place[0], place[1], place[2], place[3], WIDE)
    tl.store(noise + key * RUN + tl.arange(0, RUN), result)


def keyed_noise(first: Tensor, params: RowParams, stream: int, *, wide: bool) -> Tensor:
    """[N, 128]: the noise of the ids first [N], first + 1, ..., for each row's key."""
    dtype = torch.float64 if wide else torch.float32
    noise = torch.empty(len(first), _RUN, dtype=dtype, device=first.device)
    key = params.seed, params.position, params.choice, params.row
    _keyed_kernel[(len(first),)](first, *key, stream, noise, RUN=_RUN, WIDE=wide, enable_fp_fusion=False)
    return noise


@triton.jit
def _store_kernel(tensor, place):
    tl.store(tensor + place, 1.0)


def store_past_the_end(tensor: Tensor) -> None:
    """A mistake on purpose, for a checker of memory to find."""
    _store_kernel[(1,)](tensor, tensor.numel())
