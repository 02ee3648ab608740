"""Our attention function, as transformers calls it."""

from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import AttentionInterface

ATTENTION = "drawlot"
"""The name under which models select it. No mask function is registered under it, so models build no mask."""


class Attends(Protocol):
    """The handle that travels to every attention call as the keyword `paged`; see `PagedBatch.attend`."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        scale: float | None,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attention of one layer, [1, T, H, value_dim]."""


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged: Attends,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer over a flat batch; the mask is in `paged`."""
    layer: int = module.layer_idx  # type: ignore[assignment]
    out = paged.attend(layer, query, key, value, scale=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    return out, None


AttentionInterface.register(ATTENTION, paged_attention)
