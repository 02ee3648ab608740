"""The EAGLE-style head for a few tokens at a time, where an operation costs more than its work.

It computes what `eagle_head.EagleHead` defines, in fewer operations: projections of the same input are one product.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from drawlot.speculators.eagle_head import Attend, EagleHead


class EagleSteps:
    """A head that does not learn any more, with weights of its own."""

    def __init__(self, head: EagleHead) -> None:
        config = head.config
        self._heads = config.num_attention_heads, config.num_key_value_heads
        self._head_dim = config.head_dim
        self._width, self._eps = (config.hidden_size,), config.rms_norm_eps
        self._input_norms = torch.stack([head.hidden_norm.weight, head.embedding_norm.weight])
        self._norms = [norm.weight for norm in (head.attention_norm, head.mlp_norm, head.output_norm)]
        self._input, self._output, self._down = head.input_proj.weight, head.o_proj.weight, head.down_proj.weight
        self._attention = torch.cat([head.q_proj.weight, head.k_proj.weight, head.v_proj.weight])
        self._mlp = torch.cat([head.gate_proj.weight, head.up_proj.weight])
        cos, sin = head.rotation.chunk(2, -1)
        # [positions, 2, 1, head_dim]: what an entry is multiplied by, and what the one that turns with it.
        self._turns = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1).unsqueeze(2)

    def __call__(self, hidden: Tensor, embeddings: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """As `EagleHead.forward`, of a flat batch: [T, D], [T, D] and int64 [T] to [T, D]."""
        attention_norm, mlp_norm, output_norm = self._norms
        both = F.rms_norm(torch.stack([hidden, embeddings], 1), self._width, eps=self._eps) * self._input_norms
        x = F.linear(both.flatten(1), self._input)

        heads, groups = self._heads
        projected = F.linear(self._normed(x, attention_norm), self._attention).view(len(x), -1, self._head_dim)
        turning, value = projected.split_with_sizes([heads + groups, groups], 1)
        near, far = self._turns[positions].unbind(1)
        turned = turning * near + turning.roll(self._head_dim // 2, 2) * far
        query, key = turned.split_with_sizes([heads, groups], 1)
        attended = attend(*(part.transpose(0, 1).unsqueeze(0) for part in (query, key, value)))
        x = x + F.linear(attended.reshape(len(x), -1), self._output)

        gate, up = F.linear(self._normed(x, mlp_norm), self._mlp).chunk(2, 1)
        x = x + F.linear(F.silu(gate) * up, self._down)
        return self._normed(x, output_norm)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, self._width, weight, self._eps)
