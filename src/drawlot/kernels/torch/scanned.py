"""What the one read of some rows leaves behind: stages 1 and 2, the status of each row, and its summary."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, Edits, LogprobsWanted, RowParams
from drawlot.kernels.torch.draw import Drawn, Rows
from drawlot.kernels.torch.edits import as_tiles, edited_rows, grammar_masked, row_values
from drawlot.kernels.torch.filters import Filters
from drawlot.kernels.torch.logprobs import Columns, processed_columns, raw_columns
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.scan import TileMasses, scan, tile_maxima, tile_sums
from drawlot.kernels.torch.tiles import IntArray, Tiles, on_host
from drawlot.outputs import RowStatus

# Here once: a flag takes longer to convert than a row's status to find.
_OK, _EMPTY, _NONFINITE = (np.uint8(flag) for flag in (RowStatus.OK, RowStatus.EMPTY_SUPPORT, RowStatus.NONFINITE))


class Scanned(NamedTuple):
    """N rows, each read once."""

    rows: Rows
    """Only good ones may be drawn from"""
    greedy: NDArray[np.bool_]
    """[N]"""
    status: NDArray[np.uint8]
    """[N], flags of RowStatus"""
    maxima: Tensor
    """float32 [N, T], of the values' tiles"""
    raw: Tensor
    """float32 [N, T, 128], the logits with the grammar bitmask alone"""
    raw_maxima: Tensor
    """float32 [N, T]"""
    raw_sums: Tensor | None
    """[N, T], as `scan` returns them; None where no raw logprobs are wanted"""

    def columns(self, index: IntArray, drawn: Drawn, tokens: IntArray, wanted: LogprobsWanted) -> Columns:
        """The columns of some rows.

        Args:
            index: [M], good rows; drawn: what they drew.
            tokens: [M], whose logprobs to give: the drawn ones, or others.
            wanted: Of all N rows.
        """
        n, rows, maxima, raw_maxima, raw_sums = len(self.status), self.rows, self.maxima, self.raw_maxima, self.raw_sums
        if len(index) < n:
            at = torch.from_numpy(index).to(maxima.device)
            wanted, raw_maxima, maxima = wanted.pick(at), raw_maxima[at], maxima[at]
            raw_sums = None if raw_sums is None else raw_sums[at]
        rank = np.where(tokens == drawn.tokens, drawn.rank, 0)
        if wanted.mode.startswith("raw"):
            # The draw's rank is among the values.
            rank = rank if rows.values.edited is None else np.zeros_like(rank)
            return raw_columns(Tiles(self.raw).pick(index), raw_maxima, raw_sums, tokens, rank, wanted)
        temperature = np.where(self.greedy[index], 0, rows.temperature[index])
        values = rows.values.pick(index)
        return processed_columns(values, maxima, drawn.cut, drawn.mass, temperature, tokens, rank, wanted)


def scan_rows(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
) -> Scanned:
    """Reads rows of logits [N, V]; arguments as for `sample_rows`."""
    n, device = len(logits), logits.device
    logits_tiles = as_tiles(logits)
    raw = grammar_masked(logits_tiles, edits)
    temperature, top_k, top_p, min_p = (on_host(column) for column in params[:4])
    greedy, filters = temperature == 0, Filters(top_k, top_p, min_p)
    temperature = np.maximum(temperature, SMALLEST_TEMPERATURE)
    # Not 0 either, so that -inf / T is not NaN.
    scale = torch.from_numpy(np.maximum(1 / temperature, SMALLEST_TEMPERATURE).astype(np.float32)).to(device)
    edited = edited_rows(edits)
    summed = ~greedy & filters.needs_masses
    raw_summed = summed.copy()
    raw_summed[edited] = False
    raw_sums = sums = None
    if wanted is not None and wanted.mode == "raw_logprobs":
        raw_maxima, raw_sums = scan(raw, None)
        if summed.any():
            sums = tile_sums(Tiles(raw), raw_maxima, scale, summed=raw_summed, wide=wide)
    elif summed.any():
        raw_maxima, sums = scan(raw, scale, raw_summed, wide=wide)
    else:
        raw_maxima = tile_maxima(raw)
    row_max = raw_maxima.amax(1)
    logits_max = row_max if raw is logits_tiles else tile_maxima(logits_tiles).amax(1)
    values, maxima = Tiles(raw), raw_maxima
    if len(edited):
        at = torch.from_numpy(edited).to(device)
        own_values = row_values(raw, edits, edited)
        own_maxima, own_sums = scan(own_values, scale[at], summed[edited], wide=wide)
        maxima = raw_maxima.index_copy(0, at, own_maxima)
        row_max = row_max.index_copy(0, at, own_maxima.amax(1))
        if sums is not None:
            sums.index_copy_(0, at, own_sums)
        where = np.arange(n)
        where[edited] = n + np.arange(len(edited))
        values = Tiles(raw, own_values, where)
    rows = Rows(
        values,
        on_host(maxima),
        on_host(row_max),
        on_host(scale),
        temperature,
        filters,
        NoiseKeys.of(params, wide=wide),
        wide,
        wanted is not None,
        None if sums is None else TileMasses.of(sums, maxima, row_max, scale),
    )
    return Scanned(rows, greedy, _status(rows.row_max, on_host(logits_max)), maxima, raw, raw_maxima, raw_sums)


def _status(row_max: NDArray[np.float32], logits_max: NDArray[np.float32]) -> NDArray[np.uint8]:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    status = np.where(row_max == -np.inf, _EMPTY, _OK)
    status[~((row_max < np.inf) & (logits_max < np.inf))] = _NONFINITE
    return status
