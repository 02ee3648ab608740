"""The draw: a race over tiles of 128 ids, then a race inside the winning tile."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from drawlot import rng
from drawlot.kernels.inputs import RowParams
from drawlot.kernels.torch.scan import FloatArray, IntArray, on_host
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

    def race(self, rows: IntArray, ids: IntArray, z: FloatArray, stream: Stream) -> IntArray:
        """The winning id of each row: the largest z + noise, the lower id among equals.

        Args:
            rows: int64 [E], ascending, each of 0 .. N - 1 at least once.
            ids: int64 [E], tile or token ids, ascending within a row.
            z: [E]; noise is added in float64, so that no draw is lost to rounding.
            stream: The purpose of the draw.

        Returns:
            int64 [N].
        """
        n = len(self._columns[0])
        if len(rows) == n:
            return ids  # nobody to race with
        seed, position, choice, row = (column[rows] for column in self._columns)
        noise = rng.gumbel_noise(ids.view(np.uint64), seed, position, stream, choice, row, wide=self._wide)
        keys = z + noise.astype(np.float64)
        best = np.maximum.reduceat(keys, np.searchsorted(rows, np.arange(n)))
        winners = np.flatnonzero(keys == best[rows])
        first = np.searchsorted(rows[winners], np.arange(n))
        return ids[winners[first]]

    def race_run(self, first: IntArray, z: FloatArray, stream: Stream) -> IntArray:
        """The winner of each row among the ids first .. first + M - 1, as in `race`.

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
