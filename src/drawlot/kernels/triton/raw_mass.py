"""The mass of a row's raw logits, relative to which their logprobs are told."""

import triton
import triton.language as tl

from drawlot.kernels.triton.reduce import sum_of_masses
from drawlot.kernels.triton.tile_summary import LOG2_E
from drawlot.kernels.triton.values import MINUS_INF, is_edited


@triton.jit
def log_row_mass(maxima, sums, row_max):
    """float32: log of a row's mass at T = 1, relative to row_max; maxima, sums: [T], of its tiles."""
    return tl.log(sum_of_masses(tl.where(sums > 0, sums * tl.exp2((maxima - row_max) * LOG2_E), 0.0)))


@triton.jit
def raw_law(tiles, at, exists, maxima, sums, row_max, is_apart):
    """Maximum of a row's raw logits, the log of their mass relative to it, and the maxima of its tiles.

    at, exists: [T], places of its tiles; maxima, sums, row_max: of its values; is_apart: raw ones have tiles of their
    own.
    """
    if is_apart:
        maxima = tl.load(tiles.raw_maxima + at, mask=exists, other=MINUS_INF)
        sums = tl.load(tiles.raw_sums + at, mask=exists, other=0.0)
        row_max = tl.max(maxima)
    return row_max, log_row_mass(maxima, sums, row_max), maxima


@triton.jit
def raw_apart(rows, scale, row):
    """Whether raw logprobs need sums of their own, the row's being tempered or edited; scale: of the scan."""
    return apart_by(scale, is_edited(rows, row))


@triton.jit
def apart_by(scale, edited):
    """As `raw_apart`, for who knows whether edits are laid over the row."""
    return (scale != 1.0) | edited
