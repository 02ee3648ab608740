"""Every tensor between two walls of canary bytes: writes outside it show, and so do bytes that nobody wrote."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

WALL = 4096
"""Bytes on either side, a multiple of the allocator's alignment"""


class Guard(TorchDispatchMode):
    """Within it, every tensor that an operation of torch returns anew is moved between two walls.

    Kernels of our own are given such tensors too, their outputs and workspaces among them: they come from torch.empty
    and its like. The walls hold the byte `poison`, and so does fresh memory that torch.empty promises nothing about.
    """

    def __init__(self, poison: int) -> None:
        super().__init__()
        self.poison = poison
        self._buffers: dict[int, Tensor] = {}
        """Each guarded storage by its address; kept, so that no address comes twice"""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; guard what it returns."""
        result = func(*args, **(kwargs or {}))
        if all(returned.alias_info is None for returned in func._schema.returns):
            fresh = func.overloadpacket.__name__.removeprefix("new_").startswith("empty")
            result = tree_map_only(Tensor, lambda tensor: self.guarded(tensor, fresh=fresh), result)
        return result

    def guarded(self, tensor: Tensor, *, fresh: bool = False) -> Tensor:
        """The tensor between walls, strides and all; fresh: its bytes are poison."""
        content = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        # The host's memory that kernels are given is pinned, or they may not use it.
        how: dict[str, Any] = {"device": tensor.device, "pin_memory": tensor.is_pinned()}
        buffer = torch.full((WALL + len(content) + WALL,), self.poison, dtype=torch.uint8, **how)
        if not fresh:
            buffer[WALL : WALL + len(content)] = content
        self._buffers[buffer.untyped_storage().data_ptr()] = buffer
        offset = WALL // tensor.element_size() + tensor.storage_offset()
        typed = buffer[: len(buffer) // tensor.element_size() * tensor.element_size()].view(tensor.dtype)
        return typed.as_strided(tensor.size(), tensor.stride(), offset)

    def holds(self, tensor: Tensor) -> bool:
        """The tensor lies between walls."""
        return tensor.untyped_storage().data_ptr() in self._buffers

    def touched(self) -> int:
        """How many wall bytes, of all tensors there were, are no longer poison."""
        walls = (wall for buffer in self._buffers.values() for wall in (buffer[:WALL], buffer[-WALL:]))
        return int(sum((wall != self.poison).sum() for wall in walls))

    def __len__(self) -> int:
        """The number of tensors guarded."""
        return len(self._buffers)
