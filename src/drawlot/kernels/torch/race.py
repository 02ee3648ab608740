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
        uniform = rng.uniforms(noise_ids, seed, position, stream, choice, row, wide=self._wide)
        tile_uniform, uniform = uniform[: len(first)], uniform[len(first) :]
        won = tiles[first][_winners(tile_rows, np.log(mass), tile_uniform, n)]
        inside = np.flatnonzero(tiles == won[rows])
        tokens = ids[inside[_winners(rows[inside], z[inside], uniform[inside], n)]]
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
        uniform = rng.uniforms_run(first_id, z.shape[1], seed, position, stream, choice, row, wide=self._wide)
        rough = z + rng.rough_gumbel(uniform)
        rows, columns = np.nonzero(rough >= rough.max(1, keepdims=True) - rng.ROUGH)
        if len(rows) > len(z):
            columns = columns[_winners(rows, z[rows, columns], uniform[rows, columns], len(z))]
        winners: IntArray = first + columns
        return winners


def _winners(rows: IntArray, z: NDArray[np.float64], uniform: FloatArray, n: int) -> IntArray:
    """[n]: the index of each row's largest z + Gumbel noise, the lower one among equals; rows as in `race_twice`."""
    rough = z + rng.rough_gumbel(uniform)
    best = np.maximum.reduceat(rough, np.searchsorted(rows, np.arange(n)))
    may_win = np.flatnonzero(rough >= best[rows] - rng.ROUGH)
    if len(may_win) == n:
        return may_win
    rows = rows[may_win]
    first = np.searchsorted(rows, np.arange(n))
    keys = z[may_win] + rng.gumbel(uniform[may_win])
    won = np.flatnonzero(keys == np.maximum.reduceat(keys, first)[rows])
    return may_win[won[np.searchsorted(rows[won], np.arange(n))]]
