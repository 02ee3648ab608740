"""Stages 1 and 2, and the view of rows as tiles that all later stages read."""

import torch
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits


def as_tiles(logits: Tensor) -> Tensor:
    """Logits [N, V] of any dtype as float32 tiles [N, T, 128], padded with -inf; a view where nothing has to change."""
    n, vocab_size = logits.shape
    padding = -vocab_size % TILE
    if padding or logits.dtype != torch.float32 or logits.stride(1) != 1:
        tiles = logits.new_full((n, vocab_size + padding), -torch.inf, dtype=torch.float32)
        tiles[:, :vocab_size] = logits
        logits = tiles
    return logits.view(n, -1, TILE)


def grammar_masked(tiles: Tensor, edits: Edits) -> Tensor:
    """The tiles with the grammar bitmask applied: what raw logprobs are computed from."""
    if edits.bitmask is None:
        return tiles
    bits = torch.arange(32, dtype=torch.int32, device=tiles.device)
    allowed = ((edits.bitmask.unsqueeze(2) >> bits) & 1).flatten(1)
    width = tiles.shape[1] * TILE
    # The mask ends at the vocabulary's last word, the tiles at a multiple of 128: what lies between is padding.
    allowed = torch.nn.functional.pad(allowed[:, :width], (0, max(0, width - allowed.shape[1])))
    return tiles.masked_fill(allowed.view_as(tiles) == 0, -torch.inf)


def row_values(masked: Tensor, edits: Edits) -> Tensor:
    """The rows' values [N, T, 128] from the grammar-masked tiles: hard masks, then bias, then penalties."""
    if not edits.beyond_bitmask:
        return masked
    values = masked.clone(memory_format=torch.contiguous_format)
    flat = values.flatten(1)
    if edits.allowed is not None:
        rows, ids = edits.allowed
        kept = flat[rows, ids]
        flat[rows] = -torch.inf
        flat[rows, ids] = kept
    if edits.masked is not None:
        flat[edits.masked] = -torch.inf
    if edits.bias is not None:
        rows, ids, bias = edits.bias
        flat[rows, ids] += bias
    if edits.penalties is not None:
        rows, ids, repetition, subtract, subtract_once = edits.penalties
        x = flat[rows, ids]
        x = torch.where(x > 0, x / repetition, x * repetition)
        flat[rows, ids] = x - subtract - subtract_once
    return values
