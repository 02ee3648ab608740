"""Rows of logits to tokens, in the order of stages that the reference declares."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.torch import filters
from drawlot.kernels.torch.edits import as_tiles, grammar_masked, row_values
from drawlot.kernels.torch.filters import Cut, Filters
from drawlot.kernels.torch.logprobs import row_logprobs
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.scan import IntArray, TileMasses, on_host, rows_of, tile_masses, tile_maxima, tiles_at_least
from drawlot.outputs import RowStatus
from drawlot.rng import Stream

_CHUNK = 1 << 22  # elements worked on at once: bounds the extra memory, whatever the number of rows


class Rows(NamedTuple):
    """Rows of a chunk, with what the scan left behind."""

    values: Tensor
    """float32 [N, T, 128]"""
    maxima: Tensor
    """float32 [N, T], of the tiles"""
    row_max: Tensor
    """float32 [N], finite"""
    scale: Tensor
    """float32 [N], 1 / temperature"""
    params: RowParams
    wide: bool

    def pick(self, index: IntArray) -> "Rows":
        """Some of the rows, without a copy where they are all."""
        if len(index) == len(self.row_max):
            return self
        at = torch.from_numpy(index).to(self.values.device)
        params = RowParams(*(column[at] for column in self.params))
        return Rows(self.values[at], self.maxima[at], self.row_max[at], self.scale[at], params, self.wide)


class Won(NamedTuple):
    """The tile that won in each row, and the row's summary; on the host."""

    tile: IntArray
    mass: NDArray[np.float64]
    """The kept tokens' sum of exp(z); 1 for greedy rows"""
    cut_value: NDArray[np.float32]
    cut_id: IntArray


def sample_rows(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    n, vocab_size = logits.shape
    step = max(1, _CHUNK // (vocab_size + -vocab_size % TILE))
    if n <= step:
        return _sample_chunk(logits, params, edits, wanted, wide)
    parts = []
    for start in range(0, n, step):
        stop = min(n, start + step)
        part = RowParams(*(column[start:stop] for column in params))
        part_wanted = wanted and wanted.rows(start, stop)
        parts.append(_sample_chunk(logits[start:stop], part, edits.rows(start, stop), part_wanted, wide))
    tokens, status = torch.cat([p.token_ids for p in parts]), torch.cat([p.status for p in parts])
    if wanted is None:
        return SampledRows(tokens, status, None)
    ids, values, ranks = (torch.cat(column) for column in zip(*(p.logprobs for p in parts if p.logprobs)))
    return SampledRows(tokens, status, (ids, values, ranks))


@np.errstate(over="ignore", divide="ignore")  # tiny temperatures send z to -inf, and log(0) is -inf: both are meant
def _sample_chunk(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, wide: bool
) -> SampledRows:
    device = logits.device
    raw = as_tiles(logits)
    masked = grammar_masked(raw, edits)
    values = row_values(masked, edits)
    maxima = tile_maxima(values)
    row_max = maxima.amax(1)
    raw_maxima = maxima if values is masked else tile_maxima(masked)
    raw_max = row_max if values is raw else tile_maxima(raw).amax(1)
    status = _status(on_host(row_max), on_host(raw_max))
    bad = np.flatnonzero(status)
    if len(bad):
        # Bad rows are drawn from as if all their logits were 0, and their tokens thrown away: no other row notices.
        at = torch.from_numpy(bad).to(device)
        values, maxima, row_max = (t.index_fill(0, at, 0.0) for t in (values, maxima, row_max))
    scale = (1 / params.temperature.clamp(min=SMALLEST_TEMPERATURE)).clamp(min=SMALLEST_TEMPERATURE).float()

    rows = Rows(values, maxima, row_max, scale, params, wide)
    won = _win_tiles(rows)
    tokens = _draw_inside(rows, won)
    tokens[bad] = -1
    columns = None
    if wanted is not None:
        columns = row_logprobs(masked, raw_maxima, values, maxima, Cut(*won[2:]), won.mass, tokens, params, wanted)
    return SampledRows(torch.from_numpy(tokens).to(device), torch.from_numpy(status).to(device), columns)


def _status(row_max: NDArray[np.float32], raw_max: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    status = np.where(row_max == -np.inf, np.uint8(RowStatus.EMPTY_SUPPORT), np.uint8(RowStatus.OK))
    status[~((row_max < np.inf) & (raw_max < np.inf))] = RowStatus.NONFINITE
    return status


def _win_tiles(rows: Rows) -> Won:
    """Races each row's tiles; rows take the cheapest exact path."""
    temperature, *columns = (on_host(column) for column in rows.params[:4])
    filters_ = Filters(*columns)
    greedy = temperature == 0
    filtered = ~greedy & ((filters_.top_k > 0) | (filters_.top_p < 1) | (filters_.min_p > 0))
    listed = filtered & filters.listable(filters_, rows.maxima.shape[1])
    paths: tuple[tuple[NDArray[np.bool_], Callable[[Rows, Filters], Won]], ...] = (
        (greedy, _greedy_tiles),
        (~greedy & ~filtered, _unfiltered_tiles),
        (listed, _listed_tiles),
        (filtered & ~listed, _whole_row_tiles),
    )
    taken = []
    for mask, path in paths:
        index = np.flatnonzero(mask)
        if len(index):
            taken.append((index, path(rows.pick(index), filters_.pick(index))))
    if len(taken) == 1:
        return taken[0][1]
    back = np.argsort(np.concatenate([index for index, _ in taken]))
    return Won(*(np.concatenate(column)[back] for column in zip(*(won for _, won in taken))))


def _greedy_tiles(rows: Rows, _: Filters) -> Won:
    """Cut after the first token of the order, which is then the only one to draw."""
    row_max = on_host(rows.row_max)
    tile = np.argmax(on_host(rows.maxima) == row_max[:, None], 1)
    token = tile * TILE + np.argmax(_tile_values(rows, tile) == row_max[:, None], 1)
    return Won(tile, np.ones(len(tile)), row_max, token)


def _unfiltered_tiles(rows: Rows, _: Filters) -> Won:
    n, num_tiles = rows.maxima.shape
    masses = tile_masses(rows.values, rows.maxima, rows.row_max, rows.scale, wide=rows.wide)
    cut = Cut(np.full(n, -np.inf, np.float32), np.full(n, -1))
    return _race_tiles(rows, rows_of(rows.values), np.tile(np.arange(num_tiles), n), masses, cut)


def _listed_tiles(rows: Rows, filters_: Filters) -> Won:
    """Rows that are likely cut within their best tokens; those that are not go on to `_whole_row_tiles`."""
    n = len(rows.row_max)
    row_mass = None
    if (filters_.top_k <= 0).any():
        masses = tile_masses(rows.values, rows.maxima, rows.row_max, rows.scale)
        row_mass = masses.totals(rows_of(rows.values), n)
    cut, certified = filters.cut_from_best_tokens(
        rows.values, rows.maxima, on_host(rows.row_max), _temperature(rows), row_mass, filters_
    )
    won = _race_cut_tiles(rows, cut)
    rest = np.flatnonzero(~certified)
    if len(rest):
        exact = _whole_row_tiles(rows.pick(rest), filters_.pick(rest))
        for name, better in exact._asdict().items():
            getattr(won, name)[rest] = better
    return won


def _whole_row_tiles(rows: Rows, filters_: Filters) -> Won:
    """Rows whose cut may lie anywhere."""
    cuts = [
        filters.exact_cut(x.reshape(-1), float(row_max), float(temperature), int(k), float(p), float(m))
        for x, row_max, temperature, k, p, m in zip(rows.values, rows.row_max, _temperature(rows), *filters_)
    ]
    values, ids = zip(*cuts)
    return _race_cut_tiles(rows, Cut(np.array(values, np.float32), np.array(ids)))


def _race_cut_tiles(rows: Rows, cut: Cut) -> Won:
    """Races the tiles that reach the cut; their masses are those of the kept tokens."""
    index, tile_ids, values = tiles_at_least(rows.values, on_host(rows.maxima), cut.value)
    device = values.device
    at, tile = torch.from_numpy(index).to(device), torch.from_numpy(tile_ids).to(device)
    # Each tile is a row of its own here, its token ids counted from its first.
    own_cut = (
        torch.from_numpy(cut.value).to(device)[at],
        torch.from_numpy(cut.id).to(device)[at] - tile * TILE,
    )
    masses = tile_masses(
        values.unsqueeze(1),
        rows.maxima[at, tile].unsqueeze(1),
        rows.row_max[at],
        rows.scale[at],
        own_cut,
        wide=rows.wide,
    )
    return _race_tiles(rows, index, tile_ids, masses, cut)


def _race_tiles(rows: Rows, index: IntArray, tile_ids: IntArray, masses: TileMasses, cut: Cut) -> Won:
    tile = NoiseKeys(rows.params, wide=rows.wide).race(index, tile_ids, masses.log(), Stream.TARGET_TILE)
    return Won(tile, masses.totals(index, len(tile)), cut.value, cut.id)


def _draw_inside(rows: Rows, won: Won) -> IntArray:
    """The drawn token of each row, from its winning tile."""
    x = _tile_values(rows, won.tile)
    ids = won.tile[:, None] * TILE + np.arange(TILE)
    value, last = won.cut_value[:, None], won.cut_id[:, None]
    kept = ((x > value) | ((x == value) & (ids <= last))) & (x > -np.inf)
    index, lanes = np.nonzero(kept)
    z = (x[index, lanes].astype(np.float64) - on_host(rows.row_max)[index]) / _temperature(rows)[index]
    keys = NoiseKeys(rows.params, wide=rows.wide)
    return keys.race(index, won.tile[index] * TILE + lanes, z, Stream.TARGET_TOKEN)


def _temperature(rows: Rows) -> NDArray[np.float64]:
    temperature: NDArray[np.float64] = np.maximum(on_host(rows.params.temperature), SMALLEST_TEMPERATURE)
    return temperature


def _tile_values(rows: Rows, tile: IntArray) -> NDArray[np.float32]:
    """float32 [N, 128]: one tile of each row."""
    device = rows.values.device
    at = torch.arange(len(tile), device=device)
    values: NDArray[np.float32] = on_host(rows.values[at, torch.from_numpy(tile).to(device)])
    return values
