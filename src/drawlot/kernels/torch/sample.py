"""Rows of logits to tokens, in the order of stages that the reference declares."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.torch import filters
from drawlot.kernels.torch.edits import as_tiles, edited_rows, grammar_masked, row_values
from drawlot.kernels.torch.filters import Cut, Filters
from drawlot.kernels.torch.logprobs import Columns, processed_columns, raw_columns
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.scan import IntArray, TileMasses, Tiles, on_host, rows_of, tile_masses, tile_maxima
from drawlot.outputs import RowStatus
from drawlot.rng import Stream

_CHUNK = 1 << 22  # elements worked on at once: bounds the extra memory, whatever the number of rows


class Rows(NamedTuple):
    """Good rows of a chunk, with what the scan left behind."""

    values: Tiles
    maxima: Tensor
    """float32 [N, T], of the tiles"""
    row_max: Tensor
    """float32 [N]"""
    scale: Tensor
    """float32 [N], 1 / temperature"""
    params: RowParams
    wide: bool

    def pick(self, index: IntArray) -> "Rows":
        """Some of the rows, without a copy where they are all."""
        if len(index) == len(self.row_max):
            return self
        at = torch.from_numpy(index).to(self.maxima.device)
        values, params = self.values.pick(index), self.params.pick(at)
        return Rows(values, self.maxima[at], self.row_max[at], self.scale[at], params, self.wide)


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
        rows = slice(start, stop)
        part_wanted = wanted and wanted.pick(rows)
        parts.append(_sample_chunk(logits[rows], params.pick(rows), edits.rows(start, stop), part_wanted, wide))
    tokens, status = torch.cat([p.token_ids for p in parts]), torch.cat([p.status for p in parts])
    if wanted is None:
        return SampledRows(tokens, status, None)
    ids, values, ranks = (torch.cat(column) for column in zip(*(p.logprobs for p in parts if p.logprobs)))
    return SampledRows(tokens, status, (ids, values, ranks))


@np.errstate(over="ignore", divide="ignore")  # tiny temperatures send z to -inf, and log(0) is -inf: both are meant
def _sample_chunk(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, wide: bool
) -> SampledRows:
    n, device = len(logits), logits.device
    logits_tiles = as_tiles(logits)
    raw = grammar_masked(logits_tiles, edits)
    raw_maxima = tile_maxima(raw)
    row_max = raw_maxima.amax(1)
    logits_max = row_max if raw is logits_tiles else tile_maxima(logits_tiles).amax(1)
    plain = np.ones(n, bool)
    if edits.beyond_bitmask:
        edited = edited_rows(edits)
        values = row_values(raw, edits, edited)
        maxima = tile_maxima(values)
        row_max = row_max.index_copy(0, edited, maxima.amax(1))
        plain[on_host(edited)] = False
    status = _status(on_host(row_max), on_host(logits_max))
    good = status == 0
    scale = (1 / params.temperature.clamp(min=SMALLEST_TEMPERATURE)).clamp(min=SMALLEST_TEMPERATURE).float()
    whole = Rows(Tiles(raw), raw_maxima, row_max, scale, params, wide)

    tokens = np.full(n, -1)
    columns = wanted and Columns.unused(n, wanted.columns)
    for index in (np.flatnonzero(good & plain), np.flatnonzero(good & ~plain)):
        if not len(index):
            continue
        raw_rows = rows = whole.pick(index)
        if not plain[index[0]]:
            own = np.flatnonzero(good[~plain])
            rows = rows._replace(values=Tiles(values, own), maxima=maxima[torch.from_numpy(own).to(device)])
        drawn = _draw(rows)
        tokens[index] = drawn.tokens
        if wanted is not None and columns is not None:
            own_wanted = wanted if len(index) == n else wanted.pick(torch.from_numpy(index).to(device))
            columns.put(index, _logprobs(raw_rows, rows, drawn, own_wanted))
    return SampledRows(
        torch.from_numpy(tokens).to(device), torch.from_numpy(status).to(device), columns and columns.on_device(device)
    )


def _logprobs(raw_rows: Rows, rows: Rows, drawn: Drawn, wanted: LogprobsWanted) -> Columns:
    temperature = on_host(rows.params.temperature)
    if wanted.mode.startswith("raw"):
        # The masses of rows drawn from as they came are known.
        known = raw_rows is rows and bool(((temperature == 1) & (drawn.cut_id == -1)).all())
        return raw_columns(raw_rows.values, raw_rows.maxima, drawn.tokens, wanted, drawn.mass if known else None)
    cut = Cut(drawn.cut_value, drawn.cut_id)
    return processed_columns(rows.values, rows.maxima, cut, drawn.mass, temperature, drawn.tokens, wanted)


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
        row_mass = masses.totals(rows_of(rows.maxima), n)
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
        filters.exact_cut(rows.values.row(i), float(row_max), float(temperature), int(k), float(p), float(m))
        for i, (row_max, temperature, k, p, m) in enumerate(zip(rows.row_max, _temperature(rows), *row_filters))
    ]
    values, ids = zip(*cuts)
    cut = Cut(np.array(values, np.float32), np.array(ids))
    device = rows.maxima.device
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
    return Drawn(tokens, masses.totals(rows_of(rows.maxima), n), cut.value, cut.id)


def _num_finite(rows: Rows) -> IntArray:
    n = len(rows.row_max)
    return np.array([int((rows.values.row(i) > -torch.inf).count_nonzero()) for i in range(n)])


def _temperature(rows: Rows) -> NDArray[np.float64]:
    temperature: NDArray[np.float64] = np.maximum(on_host(rows.params.temperature), SMALLEST_TEMPERATURE)
    return temperature


def _tile_values(rows: Rows, tile: IntArray) -> NDArray[np.float32]:
    """float32 [N, 128]: one tile of each row."""
    values: NDArray[np.float32] = on_host(rows.values.at(np.arange(len(tile)), tile))
    return values
