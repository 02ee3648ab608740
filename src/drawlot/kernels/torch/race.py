"""The draw: a race over tiles of 128 ids, then a race inside the winning tile."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drawlot import rng
from drawlot.kernels.inputs import TILE, RowParams
from drawlot.kernels.torch.tiles import FloatArray, IntArray, on_host
from drawlot.rng import Stream


class NoiseKeys:
    """What the noise of each row is a function of, beside stream and id."""

    def __init__(self, columns: Sequence[NDArray[np.uint64]], *, wide: bool) -> None:
        # In the order that `rng.gumbel_noise` takes them, its stream apart.
        self._columns = columns
        self._wide = wide

    @classmethod
    def of(cls, params: RowParams, *, wide: bool) -> "NoiseKeys":
        """The keys of rows with these parameters; wide: float64 noise."""
        return cls([on_host(column).view(np.uint64) for column in params[4:]], wide=wide)

    def pick(self, index: IntArray) -> "NoiseKeys":
        """Those of some rows."""
        return NoiseKeys([column[index] for column in self._columns], wide=self._wide)

    def race_twice(
        self, rows: IntArray, ids: IntArray, z: FloatArray, streams: tuple[Stream, Stream]
    ) -> tuple[IntArray, NDArray[np.float64]]:
        """Races the tiles of listed tokens, then the tokens of the winning tiles.

        Args:
            rows: int64 [E], ascending, each of 0 .. N - 1 at least once.
            ids: int64 [E], token ids, ascending within a row.
            z: float64 [E].
            streams: Of tiles and of tokens.

        Returns:
            The winning tokens int64 [N], and the rows' sums of exp(z) [N].
        """
        n = len(self._columns[0])
        tiles = ids // TILE
        begins = np.ones(len(ids), np.bool_)
        begins[1:] = (tiles[1:] != tiles[:-1]) | (rows[1:] != rows[:-1])
        first = np.flatnonzero(begins)
        tile_rows, mass = rows[first], np.add.reduceat(np.exp(z), first)
        # One call for the noise of both races: a call costs more than the noise of tokens whose tile will lose.
        of = np.concatenate((tile_rows, rows))
        stream = np.full(len(of), streams[1], np.uint64)
        stream[: len(first)] = streams[0]
        seed, position, choice, row = (column[of] for column in self._columns)
        noise_ids = np.concatenate((tiles[first], ids)).view(np.uint64)
        noise = rng.gumbel_noise(noise_ids, seed, position, stream, choice, row, wide=self._wide).astype(np.float64)
        won = _winners(tile_rows, tiles[first], np.log(mass) + noise[: len(first)], n)
        inside = tiles == won[rows]
        tokens = _winners(rows[inside], ids[inside], (z + noise[len(first) :])[inside], n)
        return tokens, np.add.reduceat(mass, np.searchsorted(tile_rows, np.arange(n)))

    def race_run(self, first: IntArray, z: FloatArray, stream: Stream) -> IntArray:
        """The winner of each row among the ids first .. first + M - 1, the lower one among equals.

        Args:
            first: int64 [N], multiples of 4.
            z: [N, M], -inf where an id may not win.
            stream: The purpose of the draw.
        """
        if z.shape[1] == 1:
            return first
        seed, position, choice, row = self._columns
        first_id = first.view(np.uint64)
        noise = rng.gumbel_noise_run(first_id, z.shape[1], seed, position, stream, choice, row, wide=self._wide)
        winners: IntArray = first + (z + noise).argmax(1)  # NumPy's is the first of equals
        return winners


def _winners(rows: IntArray, ids: IntArray, keys: NDArray[np.float64], n: int) -> IntArray:
    """[n]: the id with each row's largest key, the lower id among equals; rows and ids as in `race_twice`."""
    best = np.maximum.reduceat(keys, np.searchsorted(rows, np.arange(n)))
    winners = np.flatnonzero(keys == best[rows])
    return ids[winners[np.searchsorted(rows[winners], np.arange(n))]]
