"""The floor: a kernel that does nothing but read the same bytes, in the same run, launched in the same way."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.providers import Drawn

BLOCKS = (2048, 8192, 16384)
"""Elements that a program of the GPU kernel reads; the quickest is the floor"""


def reads(device: torch.device) -> dict[str, Callable[[Tensor], Drawn]]:
    """Ways to read the logits once."""
    if device.type == "cpu":
        return {"sum": lambda logits: Drawn(logits.sum(-1), None)}
    from drawlot.entrypoints.sampler_benchmark.read_kernel import read_kernel

    def read(block: int) -> Callable[[Tensor], Drawn]:
        kernel: Any = read_kernel

        def call(logits: Tensor) -> Drawn:
            programs = -(-logits.numel() // block)
            sums = torch.empty(programs, device=logits.device)
            kernel[(programs,)](logits, sums, logits.numel(), BLOCK=block, num_warps=8)
            return Drawn(sums, None)

        return call

    return {f"blocks of {block}": read(block) for block in BLOCKS}
