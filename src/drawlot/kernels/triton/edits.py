"""Sparse edits as an overlay: new values of the tokens they touch, read instead of the logits."""

import torch
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits
from drawlot.kernels.triton.arguments import Overlay


def overlay_of(logits: Tensor, edits: Edits) -> Overlay | None:
    """The overlay of logits [N, V]; None without edits beyond the bitmask."""
    entries = [edit for edit in edits[1:] if edit is not None]
    if not entries:
        return None
    n, vocab_size = logits.shape
    num_words, width = num_words_of(vocab_size), width_of(vocab_size)
    rows, ids = torch.cat([edit[0] for edit in entries]), torch.cat([edit[1] for edit in entries])
    kind = torch.zeros(n, dtype=torch.int32, device=logits.device)
    kind[rows] = 1
    if edits.allowed is not None:
        kind[edits.allowed[0]] = 2
    values = torch.empty((n, width), dtype=torch.float32, device=logits.device)
    # Where others may not be drawn, a touched token may only if it is allowed too.
    values[rows, ids] = torch.where(kind[rows] == 2, -torch.inf, _grammar_masked(logits, edits, rows, ids))
    if edits.allowed is not None:
        values[edits.allowed] = _grammar_masked(logits, edits, *edits.allowed)
    if edits.masked is not None:
        values[edits.masked] = -torch.inf
    if edits.bias is not None:
        values[edits.bias[:2]] += edits.bias.values
    if edits.penalties is not None:
        x = values[edits.penalties[:2]]
        x = torch.where(x > 0, x / edits.penalties.repetition, x * edits.penalties.repetition)
        values[edits.penalties[:2]] = x - edits.penalties.subtract - edits.penalties.subtract_once
    return Overlay(kind, _touched(n, num_words, rows, ids), values, num_words, width)


def width_of(vocab_size: int) -> int:
    """Of new values: of whole tiles, so that those of a group are read at once."""
    return -(-vocab_size // TILE) * TILE


def num_words_of(vocab_size: int) -> int:
    """Of the bits of touched tokens: of whole tiles, so that those of a tile are read at once."""
    return width_of(vocab_size) // 32


def _grammar_masked(logits: Tensor, edits: Edits, rows: Tensor, ids: Tensor) -> Tensor:
    x = logits[rows, ids].to(torch.float32)
    if edits.bitmask is not None:
        allowed = (edits.bitmask[rows, ids >> 5] >> (ids & 31).to(torch.int32)) & 1
        x = torch.where(allowed == 1, x, -torch.inf)
    return x


def _touched(n: int, num_words: int, rows: Tensor, ids: Tensor) -> Tensor:
    """int32 [N, words] with the bits of the tokens set; a token may be named more than once."""
    touched = torch.zeros((n, num_words * 32), dtype=torch.uint8, device=rows.device)
    touched[rows, ids] = 1
    weights = 1 << torch.arange(32, dtype=torch.int64, device=rows.device)
    return (touched.view(n, num_words, 32) * weights).sum(2).to(torch.int32)
