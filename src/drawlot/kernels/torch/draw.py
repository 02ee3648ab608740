"""Stages 3 to 5 and the draw: good rows with their tile maxima in, tokens out, each row on the cheapest exact path."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from drawlot.kernels.inputs import TILE
from drawlot.kernels.torch import filters
from drawlot.kernels.torch.filters import Filters
from drawlot.kernels.torch.nucleus import nucleus
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.scan import TileMasses, tile_masses
from drawlot.kernels.torch.tiles import Cut, IntArray, Tiles, on_host
from drawlot.rng import Stream


class Rows(NamedTuple):
    """Good rows, with what the scan left behind; all but their values on the host."""

    values: Tiles
    maxima: NDArray[np.float32]
    """[N, T], of the tiles"""
    row_max: NDArray[np.float32]
    """[N]"""
    scale: NDArray[np.float32]
    """[N], 1 / temperature"""
    temperature: NDArray[np.float64]
    """[N], positive; greedy rows do not use theirs"""
    filters: Filters
    keys: NoiseKeys
    wide: bool
    want_ranks: bool
    masses: TileMasses | None
    """Of all tokens of the tiles, NaN for rows that need none; None if no row does"""

    def pick(self, index: IntArray) -> "Rows":
        """Some of the rows."""
        if len(index) == len(self.temperature):
            return self
        return Rows(
            self.values.pick(index),
            self.maxima[index],
            self.row_max[index],
            self.scale[index],
            self.temperature[index],
            self.filters.pick(index),
            self.keys.pick(index),
            self.wide,
            self.want_ranks,
            self.masses and self.masses.pick(index),
        )

    def kept_masses(self, cut: Cut) -> TileMasses:
        """The masses of the tokens that a cut keeps."""
        device = self.values.original.device
        maxima, row_max, scale = (torch.from_numpy(x).to(device) for x in (self.maxima, self.row_max, self.scale))
        return tile_masses(self.values, maxima, row_max, scale, cut, wide=self.wide)

    def tile_mass(self) -> NDArray[np.float64]:
        """[N, T]: the tiles' sums of exp(z), NaN for rows that need none."""
        return np.full(self.maxima.shape, np.nan) if self.masses is None else self.masses.of_tiles()

    def tiles_at(self, tile_ids: IntArray) -> NDArray[np.float32]:
        """[N, 128]: one tile of each row, on the host."""
        return self.values.at(np.arange(len(tile_ids)), tile_ids)


class Drawn(NamedTuple):
    """The tokens of some rows, and the rows' summaries; on the host."""

    tokens: IntArray
    mass: NDArray[np.float64]
    """The kept tokens' sum of exp(z); 1 for greedy rows"""
    cut: Cut
    rank: IntArray
    """1 + the tokens before it in the order of values; 0 where it is not known"""

    @classmethod
    def nothing(cls, n: int) -> "Drawn":
        """Of n rows that have not drawn."""
        return cls(np.full(n, -1), np.ones(n), Cut.nowhere(n), np.zeros(n, np.int64))

    def pick(self, index: IntArray) -> "Drawn":
        """Those of some rows."""
        return Drawn(self.tokens[index], self.mass[index], self.cut.pick(index), self.rank[index])

    def put(self, index: IntArray, part: "Drawn") -> None:
        """Set some rows."""
        self.tokens[index], self.mass[index] = part.tokens, part.mass
        self.cut.value[index], self.cut.id[index] = part.cut
        self.rank[index] = part.rank


class Waiting(NamedTuple):
    """Rows whose law is settled, and whose tokens wait to be drawn."""

    places: IntArray
    """[M]: which of the N rows they are"""
    rows: Rows
    """The M rows"""
    cut: Cut
    log_mass: NDArray[np.float64]
    """[M, T]: of the kept tokens of each tile"""

    def draw(self, which: NDArray[np.bool_], drawn: Drawn, streams: tuple[Stream, Stream]) -> None:
        """Draw for some of the N rows, bool [N], into what the N rows have drawn."""
        mine = np.flatnonzero(which[self.places])
        if len(mine) == len(self.places):
            drawn.tokens[self.places] = _race(self.rows, self.cut, self.log_mass, streams)
        elif len(mine):
            rows, cut = self.rows.pick(mine), self.cut.pick(mine)
            drawn.tokens[self.places[mine]] = _race(rows, cut, self.log_mass[mine], streams)


def draw(rows: Rows, greedy: NDArray[np.bool_], streams: tuple[Stream, Stream]) -> Drawn:
    """One token for each row; greedy: bool [N], rows that take the first token of the order."""
    drawn, waiting = settle(rows, greedy, streams)
    if waiting is not None:
        waiting.draw(np.ones(len(greedy), np.bool_), drawn, streams)
    return drawn


def settle(rows: Rows, greedy: NDArray[np.bool_], streams: tuple[Stream, Stream]) -> tuple[Drawn, Waiting | None]:
    """The laws of all rows, and the tokens of those whose law is found on the way to one; arguments as of `draw`."""
    n = len(greedy)
    drawn = Drawn.nothing(n)
    index = np.flatnonzero(greedy)
    if len(index):
        drawn.put(index, _first_tokens(rows.pick(index)))
        if len(index) == n:
            return drawn, None
    filtered = ~greedy & rows.filters.some_on
    index = np.flatnonzero(filtered & filters.listable(rows.filters))
    tile_mass = rows.tile_mass()
    if len(index):
        listed, part = _from_lists(rows.pick(index), tile_mass[index], streams)
        drawn.put(index[listed], part)
    # The others, and those whose lists did not suffice, take the masses of whole rows.
    index = np.flatnonzero(drawn.tokens < 0)
    if not len(index):
        return drawn, None
    own = rows.pick(index)
    cut, mass, log_mass = _whole_rows(own, tile_mass[index])
    drawn.cut.value[index], drawn.cut.id[index] = cut
    drawn.mass[index] = mass
    return drawn, Waiting(index, own, cut, log_mass)


def _first_tokens(rows: Rows) -> Drawn:
    """Greedy rows: the first token of the order."""
    row_max = rows.row_max
    tile = np.argmax(rows.maxima == row_max[:, None], 1)
    tokens = tile * TILE + np.argmax(rows.tiles_at(tile) == row_max[:, None], 1)
    return Drawn(tokens, np.ones(len(tokens)), Cut(row_max, tokens), np.ones(len(tokens), np.int64))


def _from_lists(rows: Rows, tile_mass: NDArray[np.float64], streams: tuple[Stream, Stream]) -> tuple[IntArray, Drawn]:
    """Rows that are cut within the list of their best tokens: which of the rows, and their draws."""
    n = len(tile_mass)
    listed = filters.kept_of_best_tokens(
        rows.values, rows.maxima, rows.row_max, rows.temperature, tile_mass, rows.filters
    )
    exact = listed.exact
    # A filter that keeps everything changes nothing, to the bit: such rows race the very masses of unfiltered ones.
    for i in np.flatnonzero(exact & listed.keeps_list).tolist():
        num_finite = int(np.count_nonzero(on_host(rows.values.row(i)) > -np.inf))
        exact[i] = num_finite > np.count_nonzero(listed.kept.rows == i)
    chosen = np.flatnonzero(exact)
    if not len(chosen):
        return chosen, Drawn(chosen, np.ones(0), Cut.nowhere(0), chosen)
    kept, z = listed.kept, listed.z
    if len(chosen) < n:
        mine = exact[kept.rows]
        kept, z = kept.pick(mine), z[mine]
    new_row = np.cumsum(exact) - 1
    row = new_row[kept.rows]
    tokens, totals = rows.keys.pick(chosen).race_twice(row, kept.ids, z, streams)
    rank = np.zeros(len(chosen), np.int64)
    if rows.want_ranks:
        # Whatever comes before a kept token is kept. By values: distinct ones may have equal z.
        own = kept.values[kept.ids == tokens[row]][row]
        before = (kept.values > own) | ((kept.values == own) & (kept.ids < tokens[row]))
        rank = 1 + np.bincount(row[before], minlength=len(chosen))
    return chosen, Drawn(tokens, totals, listed.cut.pick(chosen), rank)


def _whole_rows(rows: Rows, tile_mass: NDArray[np.float64]) -> tuple[Cut, NDArray[np.float64], NDArray[np.float64]]:
    """Rows without filters, and rows whose cut may lie anywhere: cuts, masses [N], and log-masses of tiles [N, T]."""
    n = len(tile_mass)
    cut, mass = Cut.nowhere(n), tile_mass.sum(1)
    log_mass = np.empty(rows.maxima.shape) if rows.masses is None else rows.masses.log()
    top_p_alone = rows.filters.top_p_alone
    summed_again = []
    for i in np.flatnonzero(rows.filters.some_on).tolist():
        values, temperature = rows.values.row(i).view(-1), float(rows.temperature[i])
        if top_p_alone[i]:
            kept = nucleus(on_host(values), rows.maxima[i], tile_mass[i], temperature, rows.filters.top_p[i])
            if kept is not None:
                cut.value[i], cut.id[i] = kept.value, kept.id
                log_mass[i], mass[i] = np.log(kept.tile_mass), kept.tile_mass.sum()
                continue
        exact = filters.exact_cut(values, float(rows.row_max[i]), temperature, rows.filters, i, mass[i])
        cut.value[i], cut.id[i] = exact
        summed_again.append(i)
    if summed_again:
        index = np.array(summed_again)
        masses = rows.pick(index).kept_masses(cut.pick(index))
        log_mass[index], mass[index] = masses.log(), masses.totals()
    return cut, mass, log_mass


def _race(rows: Rows, cut: Cut, log_mass: NDArray[np.float64], streams: tuple[Stream, Stream]) -> IntArray:
    """The tokens of rows whose tiles have such masses of kept tokens."""
    tile = rows.keys.race_run(np.zeros(len(log_mass), np.int64), log_mass, streams[0])
    x = rows.tiles_at(tile)
    value, last = cut.value[:, None], (cut.id - tile * TILE)[:, None]
    kept = ((x > value) | ((x == value) & (np.arange(TILE) <= last))) & (x > -np.inf)
    x = np.where(kept, x, np.float64(-np.inf))[:, : np.flatnonzero(kept.any(0))[-1] + 1]
    z = (x - rows.row_max[:, None]) / rows.temperature[:, None]
    return rows.keys.race_run(tile * TILE, z, streams[1])
