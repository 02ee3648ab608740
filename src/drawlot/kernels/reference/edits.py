"""Stages 1 and 2: from the logits of a row to its values. Float32, as on every backend, so that all order alike."""

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.inputs import Edits

Float32Row = NDArray[np.float32]


def grammar_masked(logits: Float32Row, row: int, edits: Edits) -> Float32Row:
    """The logits with the grammar bitmask applied: what raw logprobs are computed from."""
    if edits.bitmask is None:
        return logits
    words = edits.bitmask[row].numpy().view(np.uint32)
    ids = np.arange(len(logits))
    allowed = (words[ids >> 5] >> (ids & 31).astype(np.uint32)) & 1
    return np.where(allowed == 1, logits, np.float32(-np.inf))


def row_values(logits: Float32Row, row: int, edits: Edits) -> Float32Row:
    """The row's values: hard masks, then bias, then penalties."""
    x = grammar_masked(logits, row, edits).copy()
    if edits.allowed is not None:
        rows, ids = (t.numpy() for t in edits.allowed)
        if (rows == row).any():
            forbidden = np.ones(len(x), bool)
            forbidden[ids[rows == row]] = False
            x[forbidden] = -np.inf
    if edits.masked is not None:
        rows, ids = (t.numpy() for t in edits.masked)
        x[ids[rows == row]] = -np.inf
    if edits.bias is not None:
        mine = edits.bias.rows.numpy() == row
        x[edits.bias.ids.numpy()[mine]] += edits.bias.values.numpy()[mine]
    if edits.penalties is not None:
        mine = edits.penalties.rows.numpy() == row
        ids, repetition, subtract, subtract_once = (t.numpy()[mine] for t in edits.penalties[1:])
        seen = x[ids]
        with np.errstate(over="ignore"):
            seen = np.where(seen > 0, seen / repetition, seen * repetition)
        x[ids] = seen - subtract - subtract_once
    return x + np.float32(0)  # -0.0 and 0.0 are one value
