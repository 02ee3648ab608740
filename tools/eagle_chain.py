"""The EAGLE head's chains of drafts from every position of whole sequences at once, for training and measuring.

Step 0 reads the target's states. Step s reads, at position t, what step s - 1 gave for it, and so is the s-th step of
the chain that began at t - s: its attention sees step 0 up to there, and after that its own chain, which is one key of
each later step. That is what a head with a cache computes while it drafts, without the cache.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from drawlot.speculators.eagle_head import EagleHead


class Chain:
    """Drafting from every position of [B, T] at once, step by step."""

    def __init__(self, head: EagleHead, hidden: Tensor) -> None:
        """From the target's states [B, T, D]."""
        self._head = head
        self._hidden = hidden
        self._positions = torch.arange(hidden.shape[1], device=hidden.device).expand(hidden.shape[:2])
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def step(self, embeddings: Tensor) -> Tensor:
        """The next step of every chain.

        Args:
            embeddings: [B, T, D], of the token after each position.

        Returns:
            [B, T, D], the state expected after each position. In step s the first s positions belong to no chain.
        """
        given = self._head(self._hidden, embeddings, self._positions, self._attend)
        self._hidden = shifted(given)
        return given

    def _attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # Repeated here, as fused kernels take either a mask or fewer KV heads.
        repeats = query.shape[1] // key.shape[1]
        self._keys.append(key.repeat_interleave(repeats, 1))
        self._values.append(value.repeat_interleave(repeats, 1))
        mask = chain_mask(len(self._keys), query.shape[2], query.device)
        keys, values = torch.cat(self._keys, 2), torch.cat(self._values, 2)
        return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask).transpose(1, 2)


def shifted(x: Tensor) -> Tensor:
    """[B, T, ...], each entry one position later, zeros in front."""
    return torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)


def chain_mask(steps: int, length: int, device: torch.device) -> Tensor:
    """Which keys of all steps so far the latest step's queries see: bool [length, steps * length]."""
    query = torch.arange(length, device=device)[:, None]
    key = torch.arange(length, device=device)
    latest = steps - 1
    later = [key == query - latest + step for step in range(1, steps)]
    return torch.cat([key <= query - latest, *later], 1)
