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
from drawlot.kernels.torch.scan import IntArray, TileMasses, on_host, rows_of, tile_masses, tile_maxima
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


class Drawn(NamedTuple):
    """The tokens of some rows, and the rows' summaries; on the host."""

    tokens: IntArray
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
    drawn = _draw(rows)
    tokens = np.where(status == 0, drawn.tokens, -1)
    columns = None
    if wanted is not None:
        cut = Cut(drawn.cut_value, drawn.cut_id)
        columns = row_logprobs(masked, raw_maxima, values, maxima, cut, drawn.mass, tokens, params, wanted)
    return SampledRows(torch.from_numpy(tokens).to(device), torch.from_numpy(status).to(device), columns)


def _status(row_max: NDArray[np.float32], raw_max: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    status = np.where(row_max == -np.inf, np.uint8(RowStatus.EMPTY_SUPPORT), np.uint8(RowStatus.OK))
    status[~((row_max < np.inf) & (raw_max < np.inf))] = RowStatus.NONFINITE
    return status


def _draw(rows: Rows) -> Drawn:
    """Rows take the cheapest exact path."""
    temperature, top_k, top_p, min_p = (on_host(column) for column in rows.params[:4])
    row_filters = Filters(top_k, top_p, min_p)
    greedy = temperature == 0
    filtered = ~greedy & ((top_k > 0) | (top_p < 1) | (min_p > 0))
    listed = filtered & filters.listable(row_filters, rows.maxima.shape[1])
    paths: tuple[tuple[NDArray[np.bool_], Callable[[Rows, Filters], Drawn]], ...] = (
        (greedy, _greedy),
        (~greedy & ~filtered, _unfiltered),
        (listed, _from_list),
        (filtered & ~listed, _from_whole_row),
    )
    parts = []
    for mask, path in paths:
        index = np.flatnonzero(mask)
        if len(index):
            parts.append((index, path(rows.pick(index), row_filters.pick(index))))
    if len(parts) == 1:
        return parts[0][1]
    back = np.argsort(np.concatenate([index for index, _ in parts]))
    return Drawn(*(np.concatenate(column)[back] for column in zip(*(drawn for _, drawn in parts))))


def _greedy(rows: Rows, _: Filters) -> Drawn:
    """The first token of the order."""
    row_max = on_host(rows.row_max)
    tile = np.argmax(on_host(rows.maxima) == row_max[:, None], 1)
    tokens = tile * TILE + np.argmax(_tile_values(rows, tile) == row_max[:, None], 1)
    return Drawn(tokens, np.ones(len(tokens)), row_max, tokens)


def _unfiltered(rows: Rows, _: Filters) -> Drawn:
    masses = tile_masses(rows.values, rows.maxima, rows.row_max, rows.scale, wide=rows.wide)
    return _race(rows, masses, Cut.nowhere(len(rows.row_max)))


def _from_list(rows: Rows, row_filters: Filters) -> Drawn:
    """Rows that are likely cut within their best tokens; those that are not take another path after all."""
    n = len(rows.row_max)
    row_mass = None
    if (row_filters.top_k <= 0).any():
        masses = tile_masses(rows.values, rows.maxima, rows.row_max, rows.scale)
        row_mass = masses.totals(rows_of(rows.values), n)
    kept, z, cut, exact, keeps_list = filters.kept_of_best_tokens(
        rows.values, on_host(rows.maxima), on_host(rows.row_max), _temperature(rows), row_mass, row_filters
    )
    tile = kept.ids // TILE
    first = np.flatnonzero(np.diff(kept.rows * rows.maxima.shape[1] + tile, prepend=-1))
    mass = np.add.reduceat(np.exp(z), first)
    keys = NoiseKeys(rows.params, wide=rows.wide)
    with np.errstate(divide="ignore"):
        won = keys.race(kept.rows[first], tile[first], np.log(mass), Stream.TARGET_TILE)
    inside = tile == won[kept.rows]
    tokens = keys.race(kept.rows[inside], kept.ids[inside], z[inside], Stream.TARGET_TOKEN)
    row_starts = np.searchsorted(kept.rows[first], np.arange(n))
    drawn = Drawn(tokens, np.add.reduceat(mass, row_starts), cut.value, cut.id)

    # A filter that keeps everything changes nothing, to the bit: such rows race the very masses of unfiltered ones.
    whole = np.flatnonzero(keeps_list & exact)
    if len(whole):
        whole = whole[_num_finite(rows.pick(whole)) == np.bincount(kept.rows)[whole]]
    for index, path in ((whole, _unfiltered), (np.flatnonzero(~exact), _from_whole_row)):
        if len(index):
            again = path(rows.pick(index), row_filters.pick(index))
            for name, better in again._asdict().items():
                getattr(drawn, name)[index] = better
    return drawn


def _from_whole_row(rows: Rows, row_filters: Filters) -> Drawn:
    """Rows whose cut may lie anywhere."""
    cuts = [
        filters.exact_cut(x.reshape(-1), float(row_max), float(temperature), int(k), float(p), float(m))
        for x, row_max, temperature, k, p, m in zip(rows.values, rows.row_max, _temperature(rows), *row_filters)
    ]
    values, ids = zip(*cuts)
    cut = Cut(np.array(values, np.float32), np.array(ids))
    device = rows.values.device
    on_device = torch.from_numpy(cut.value).to(device), torch.from_numpy(cut.id).to(device)
    masses = tile_masses(rows.values, rows.maxima, rows.row_max, rows.scale, on_device, wide=rows.wide)
    return _race(rows, masses, cut)


def _race(rows: Rows, masses: TileMasses, cut: Cut) -> Drawn:
    """Races all tiles, then the kept tokens of the winning ones."""
    keys = NoiseKeys(rows.params, wide=rows.wide)
    n = len(cut.id)
    tile = keys.race_run(np.zeros(n, np.int64), masses.log().reshape(rows.maxima.shape), Stream.TARGET_TILE)
    x = _tile_values(rows, tile)
    value, last = cut.value[:, None], (cut.id - tile * TILE)[:, None]
    kept = ((x > value) | ((x == value) & (np.arange(TILE) <= last))) & (x > -np.inf)
    x = np.where(kept, x, np.float64(-np.inf))[:, : np.flatnonzero(kept.any(0))[-1] + 1]
    z = (x - on_host(rows.row_max)[:, None]) / _temperature(rows)[:, None]
    tokens = keys.race_run(tile * TILE, z, Stream.TARGET_TOKEN)
    return Drawn(tokens, masses.totals(rows_of(rows.values), len(tile)), cut.value, cut.id)


def _num_finite(rows: Rows) -> IntArray:
    count: IntArray = on_host((rows.values > -torch.inf).sum((1, 2)))
    return count


def _temperature(rows: Rows) -> NDArray[np.float64]:
    temperature: NDArray[np.float64] = np.maximum(on_host(rows.params.temperature), SMALLEST_TEMPERATURE)
    return temperature


def _tile_values(rows: Rows, tile: IntArray) -> NDArray[np.float32]:
    """float32 [N, 128]: one tile of each row."""
    device = rows.values.device
    at = torch.arange(len(tile), device=device)
    values: NDArray[np.float32] = on_host(rows.values[at, torch.from_numpy(tile).to(device)])
    return values
