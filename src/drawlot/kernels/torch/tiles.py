"""The rows that the backend works on: tiles on their device, and the few tokens of them that come to the host."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import TILE

IntArray = NDArray[np.int64]
FloatArray = NDArray[Any]

_CHUNK = 1 << 17  # elements of a temporary: fits the second-level cache of a core


def on_host(tensor: Tensor) -> NDArray[Any]:
    """The tensor as a NumPy array; shares memory on a CPU."""
    array: NDArray[Any] = tensor.cpu().numpy()
    return array


class Tiles(NamedTuple):
    """Rows of tiles in two tensors, nothing copied before it is read."""

    original: Tensor
    """float32 [M, T, 128]"""
    edited: Tensor | None = None
    """float32 [E, T, 128]"""
    rows: IntArray | None = None
    """[N]: row r < M is original[r], row M + e is edited[e]; None: the rows of `original`"""

    def pick(self, index: IntArray) -> "Tiles":
        """Some of the rows."""
        return self._replace(rows=index if self.rows is None else self.rows[index])

    def at(self, rows: IntArray, tile_ids: IntArray) -> NDArray[np.float32]:
        """[P, 128]: single tiles, on the host."""
        rows = rows if self.rows is None else self.rows[rows]
        if self.edited is None:
            return self._at(self.original, rows, tile_ids)
        first_edited = len(self.original)
        from_edited = rows >= first_edited
        values = np.empty((len(rows), TILE), np.float32)
        for source, mask, first in ((self.original, ~from_edited, 0), (self.edited, from_edited, first_edited)):
            values[mask] = self._at(source, rows[mask] - first, tile_ids[mask])
        return values

    def row(self, i: int) -> Tensor:
        """float32 [T, 128], a view."""
        r, first_edited = i if self.rows is None else int(self.rows[i]), len(self.original)
        return self.original[r] if r < first_edited or self.edited is None else self.edited[r - first_edited]

    def chunk(self, start: int, stop: int) -> Tensor:
        """float32 [stop - start, T, 128]; a view if it is one row, or if all rows are meant."""
        if self.rows is None:
            return self.original[start:stop]
        if stop - start == 1:
            return self.row(start).unsqueeze(0)
        if self.edited is None:
            return self.original[self._index(self.rows[start:stop])]
        return torch.stack([self.row(i) for i in range(start, stop)])

    def chunk_borders(self, n: int) -> list[int]:
        """Where `chunks` divides n rows."""
        step = max(1, _CHUNK // (self.original.shape[1] * TILE))
        return list(range(step, n, step))

    def chunks(self, n: int) -> Iterator[tuple[slice, Tensor]]:
        """Few rows at a time of the n rows: slices, and their values as by `chunk`."""
        borders = self.chunk_borders(n)
        # Views of all rows in one operation: one a chunk costs a tenth of its read.
        views = self.original.tensor_split(borders) if self.rows is None else None
        for i, (start, stop) in enumerate(itertools.pairwise((0, *borders, n))):
            yield slice(start, stop), self.chunk(start, stop) if views is None else views[i]

    def _at(self, source: Tensor, rows: IntArray, tile_ids: IntArray) -> NDArray[np.float32]:
        # A quarter of the time of torch's indexing where the memory is shared.
        shared = source.device.type == "cpu"
        tiles: NDArray[np.float32] = (
            on_host(source)[rows, tile_ids] if shared else on_host(source[self._index(rows), self._index(tile_ids)])
        )
        return tiles

    def _index(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self.original.device)


class Tokens(NamedTuple):
    """Some tokens of some rows, ordered by row and id."""

    rows: IntArray
    ids: IntArray
    values: NDArray[np.float32]

    def pick(self, mask: NDArray[np.bool_]) -> "Tokens":
        """Some of the tokens."""
        return Tokens(self.rows[mask], self.ids[mask], self.values[mask])


class Cut(NamedTuple):
    """The last kept token of each row; a token is kept if it is not after it in the order (value desc, id asc).

    Without filters: (-inf, -1), since no token of value -inf is ever kept.
    """

    value: NDArray[np.float32]
    id: IntArray

    @classmethod
    def nowhere(cls, n: int) -> "Cut":
        """The cut of n rows without filters."""
        return cls(np.full(n, -np.inf, np.float32), np.full(n, -1))

    def pick(self, index: IntArray) -> "Cut":
        """Those of some rows."""
        return Cut(self.value[index], self.id[index])
