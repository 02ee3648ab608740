"""The draw: a race over tiles of 128 ids, then a race inside the winning tile. Its law is exactly the softmax of z."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drawlot import rng
from drawlot.kernels.inputs import TILE
from drawlot.rng import Stream


class Key(NamedTuple):
    """What the noise of one row is a function of, beside stream and id."""

    seed: int
    position: int
    choice: int
    row: int


def race(
    ids: NDArray[np.int64], z: NDArray[np.float64], key: Key, streams: tuple[Stream, Stream], wide: bool
) -> tuple[int, float]:
    """Draws one of `ids` with probability softmax(z).

    Returns:
        The id, and the smaller relative margin of the two races.
    """
    tile_of = ids // TILE
    tiles = np.unique(tile_of)
    log_mass = np.array([log_sum_exp(z[tile_of == tile]) for tile in tiles])
    tile, tile_margin = _winner(tiles, log_mass, _noise(tiles, key, streams[0], wide))
    inside = np.sort(ids[tile_of == tile])
    z_inside = z[tile_of == tile][np.argsort(ids[tile_of == tile])]
    token, token_margin = _winner(inside, z_inside, _noise(inside, key, streams[1], wide))
    return token, min(tile_margin, token_margin)


def log_sum_exp(z: NDArray[np.float64]) -> float:
    """log of the sum of exp(z), without overflow."""
    return float(z.max() + np.log(np.exp(z - z.max()).sum()))


def _winner(ids: NDArray[np.int64], z: NDArray[np.float64], noise: NDArray[np.float64]) -> tuple[int, float]:
    """The id with the largest z + noise, the lower id among equals; ids ascend."""
    keys = z + noise
    first = int(np.argmax(keys))
    others = np.delete(keys, first)
    margin = (keys[first] - others.max()) / max(1.0, abs(keys[first])) if len(others) else np.inf
    return int(ids[first]), float(margin)


def _noise(ids: NDArray[np.int64], key: Key, stream: Stream, wide: bool) -> NDArray[np.float64]:
    seed, position, choice, row = (np.array([part], dtype=np.int64).view(np.uint64) for part in key)
    noise = rng.gumbel_noise(ids.astype(np.uint64), seed, position, stream, choice, row, wide=wide)
    return np.asarray(noise, dtype=np.float64)
