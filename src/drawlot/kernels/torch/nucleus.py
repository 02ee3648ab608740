"""Rows that top_p alone cuts among hundreds or thousands of tokens."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.inputs import TILE

_MANY = 1 << 13
_MARGIN = 0.9  # of an estimate


class Nucleus(NamedTuple):
    """What one row keeps."""

    value: float
    id: int
    """Of the last kept token"""
    tile_mass: NDArray[np.float64]
    """[T]: the kept tokens' sums of exp(z)"""


def nucleus(
    values: NDArray[np.float32],
    maxima: NDArray[np.float32],
    tile_mass: NDArray[np.float64],
    temperature: float,
    top_p: float,
) -> Nucleus | None:
    """The kept tokens of a row, if they are among those above a line that is likely to list enough of them.

    Args:
        values: [V]; maxima: [T], of its tiles.
        tile_mass: [T], the tiles' sums of exp(z).
        temperature: > 0; top_p: < 1.
    """
    row_max, row_mass = maxima.max(), tile_mass.sum()
    target = top_p * row_mass
    num_tiles, ascending, line = len(maxima), np.sort(maxima), np.float32(-np.inf)
    for tokens_a_tile in (4, 2, 1):
        # Of tokens in random places so many reach it, since exp(-so many) of the tiles then hold none.
        next_line = ascending[int(num_tiles * math.exp(-tokens_a_tile))]
        if _mass_below(next_line, maxima, tile_mass) > _MARGIN * (row_mass - target):
            break
        line = next_line
    if line == -np.inf:
        return None
    reach = values >= line
    if np.count_nonzero(reach) > _MANY:
        return None
    ids = np.flatnonzero(reach)
    listed = values[ids]
    mass = _mass(listed, row_max, temperature)
    order = np.argsort(listed)[::-1]
    last = int(np.searchsorted(mass[order].cumsum(), target))
    # A row of which the whole list is kept may be kept whole.
    if last >= len(ids) - 1:
        return None
    cut = listed[order[last]]
    # Equal values were in no order: the lower ids of them are kept.
    cut_id = ids[listed == cut][last - np.count_nonzero(listed > cut)]
    kept = (listed > cut) | ((listed == cut) & (ids <= cut_id))
    kept_mass: NDArray[np.float64] = np.bincount(ids[kept] // TILE, mass[kept], len(maxima)).astype(np.float64)
    return Nucleus(float(cut), int(cut_id), kept_mass)


def cut_among_many(
    values: NDArray[np.float32], row_max: float, temperature: float, target: float
) -> tuple[float, int] | None:
    """The cut at a mass of `target`, if the best 2^13 tokens hold it: only they are put in order."""
    best = values
    if len(values) > _MANY:
        best = np.partition(values, len(values) - _MANY)[-_MANY:]
    best = np.sort(best)[::-1]
    running = _mass(best, row_max, temperature).cumsum()
    last = int(np.searchsorted(running, target))
    if last == len(best):
        return None
    value = best[last]
    # Equal values were in no order: the lower ids of them are kept.
    rank_among_equals = last - int(np.searchsorted(-best, -value))
    return float(value), int(np.flatnonzero(values == value)[rank_among_equals])


def _mass_below(line: np.float32, maxima: NDArray[np.float32], tile_mass: NDArray[np.float64]) -> float:
    """An estimate for tokens in random places: tiles that do not reach the line hold only what is below it."""
    below = maxima < line
    return float(tile_mass @ below) * len(maxima) / max(1, int(np.count_nonzero(below)))


def _mass(values: NDArray[np.float32], row_max: float, temperature: float) -> NDArray[np.float64]:
    return np.exp((values.astype(np.float64) - row_max) / temperature)
