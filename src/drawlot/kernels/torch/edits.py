"""Stages 1 and 2, and the view of rows as tiles that all later stages read."""

from functools import cache

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
    """The tiles with the grammar bitmask applied: what raw logprobs are computed from.

    A NaN that the grammar refuses stays one: it says of its row what it says elsewhere.
    """
    if edits.bitmask is None:
        return tiles
    # By bytes, of which there are few: a flag of each token takes five times as long. Byte j of a word holds its ids
    # 8 j .. 8 j + 7.
    given = edits.bitmask.contiguous().view(torch.uint8)
    limits = _limits_of_bytes(tiles.device).index_select(0, given.flatten().int())
    most = limits.view(len(given), 8 * given.shape[1])
    padding = tiles.shape[1] * TILE - most.shape[1]
    if padding:
        # The mask ends at the vocabulary's last word, the tiles at a multiple of 128: what lies between is padding.
        most = torch.nn.functional.pad(most, (0, padding), value=-torch.inf)
    most = most.view_as(tiles)
    return torch.minimum(tiles, most, out=most)


@cache
def _limits_of_bytes(device: torch.device) -> Tensor:
    """float32 [256, 8]: of each byte of a bitmask the largest values that its ids may have, inf or -inf."""
    bits = torch.arange(256).unsqueeze(1) >> torch.arange(8) & 1
    return torch.where(bits == 1, torch.inf, -torch.inf).to(device)


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
