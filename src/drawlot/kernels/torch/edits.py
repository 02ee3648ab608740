"""Stages 1 and 2, and the view of rows as tiles that all later stages read."""

import numpy as np
import torch
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits
from drawlot.kernels.torch.tiles import IntArray, on_host


def as_tiles(logits: Tensor) -> Tensor:
    """Logits [N, V] of any dtype as float32 tiles [N, T, 128], padded with -inf; a view where nothing has to change."""
    n, vocab_size = logits.shape
    padding = -vocab_size % TILE
    if padding or logits.dtype != torch.float32 or logits.stride(1) != 1:
        tiles = logits.new_full((n, vocab_size + padding), -torch.inf, dtype=torch.float32)
        tiles[:, :vocab_size] = logits
        logits = tiles
    return logits.view(n, logits.shape[1] // TILE, TILE)


def grammar_masked(tiles: Tensor, edits: Edits) -> Tensor:
    """The tiles with the grammar bitmask applied: what raw logprobs are computed from."""
    if edits.bitmask is None:
        return tiles
    # Bytes, not words: a quarter of the memory. Byte j of a word holds its ids 8 j .. 8 j + 7.
    bits = torch.arange(8, dtype=torch.uint8, device=tiles.device)
    allowed = (edits.bitmask.contiguous().view(torch.uint8).unsqueeze(2) >> bits).bitwise_and_(1).flatten(1)
    width = tiles.shape[1] * TILE
    # The mask ends at the vocabulary's last word, the tiles at a multiple of 128: what lies between is padding.
    allowed = torch.nn.functional.pad(allowed[:, :width], (0, max(0, width - allowed.shape[1])))
    return tiles.masked_fill(allowed.view_as(tiles) == 0, -torch.inf)


def edited_rows(edits: Edits) -> IntArray:
    """[M], ascending: the rows that an edit beyond the bitmask names."""
    named = [on_host(edit[0]) for edit in edits[1:] if edit is not None]
    return np.unique(np.concatenate(named)) if named else np.empty(0, np.int64)


def row_values(masked: Tensor, edits: Edits, which: IntArray) -> Tensor:
    """The values [M, T, 128] of the rows `which` [M] of grammar-masked tiles: hard masks, bias, then penalties."""
    # Row by row: indexing takes longer.
    values = torch.stack([masked[row] for row in which.tolist()])
    flat = values.flatten(1)
    own_rows = torch.from_numpy(which).to(masked.device)

    def own(rows: Tensor) -> Tensor:
        return torch.searchsorted(own_rows, rows)

    if edits.allowed is not None:
        rows, ids = own(edits.allowed[0]), edits.allowed[1]
        kept = flat[rows, ids]
        flat[rows] = -torch.inf
        flat[rows, ids] = kept
    if edits.masked is not None:
        flat[own(edits.masked[0]), edits.masked[1]] = -torch.inf
    if edits.bias is not None:
        flat[own(edits.bias.rows), edits.bias.ids] += edits.bias.values
    if edits.penalties is not None:
        rows, ids = own(edits.penalties.rows), edits.penalties.ids
        x = flat[rows, ids]
        x = torch.where(x > 0, x / edits.penalties.repetition, x * edits.penalties.repetition)
        flat[rows, ids] = x - edits.penalties.subtract - edits.penalties.subtract_once
    return values
