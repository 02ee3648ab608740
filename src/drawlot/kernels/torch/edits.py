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
    values = masked.new_empty((len(which), *masked.shape[1:]))
    # Row by row: indexing takes longer.
    for own_row, row in zip(values, which.tolist()):
        own_row.copy_(masked[row])
    flat = values.view(-1)
    width = values.shape[1] * TILE

    def at(rows: Tensor, ids: Tensor) -> Tensor:
        """Places in `flat`."""
        own_rows = np.searchsorted(which, on_host(rows))
        return torch.from_numpy(own_rows * width + on_host(ids)).to(flat.device)

    if edits.allowed is not None:
        places = at(*edits.allowed)
        kept = flat[places]
        values[torch.unique(places // width)] = -torch.inf
        flat[places] = kept
    if edits.masked is not None:
        flat[at(*edits.masked)] = -torch.inf
    # A few hundred floats are changed on the host, where an operation costs a quarter of the time.
    if edits.bias is not None:
        places = at(edits.bias.rows, edits.bias.ids)
        x = on_host(flat[places]) + on_host(edits.bias.values)
        flat[places] = torch.from_numpy(x).to(flat.device)
    if edits.penalties is not None:
        places = at(edits.penalties.rows, edits.penalties.ids)
        x, repetition = on_host(flat[places]), on_host(edits.penalties.repetition)
        x = np.where(x > 0, x / repetition, x * repetition)
        x -= on_host(edits.penalties.subtract)
        x -= on_host(edits.penalties.subtract_once)
        flat[places] = torch.from_numpy(x).to(flat.device)
    return values
