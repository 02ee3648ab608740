"""Drafts and their laws in one pass: what `kernels.draft_draws` defines, where every token may be drawn."""

import numpy as np
import torch
from torch import Tensor

from drawlot.kernels.draft_draws import DrawnDrafts, drawn_apart
from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, RowParams
from drawlot.kernels.torch.edits import as_tiles
from drawlot.kernels.torch.filters import Filters
from drawlot.kernels.torch.log_weights import log_weights
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.sample import rows_at_once, sample_rows
from drawlot.kernels.torch.scan import TileMasses, scan
from drawlot.kernels.torch.tiles import Tiles, on_host
from drawlot.rng import Stream

_drawn_apart = drawn_apart(sample_rows, log_weights)


def draw_drafts(logits: Tensor, params: RowParams, *, wide: bool, streams: tuple[Stream, Stream]) -> DrawnDrafts:
    """Draws a draft for each row; see `DrawDrafts`."""
    greedy = on_host(params.temperature) == 0
    filtered = Filters(*(on_host(column) for column in params[1:4])).some_on
    if (greedy | filtered).any() or len(logits) > rows_at_once(logits.shape[1]):
        return _drawn_apart(logits, params, wide=wide, streams=streams)
    return _drawn_from_all(logits, params, wide, streams)


@np.errstate(divide="ignore")  # log(0) is -inf: it is meant
def _drawn_from_all(logits: Tensor, params: RowParams, wide: bool, streams: tuple[Stream, Stream]) -> DrawnDrafts:
    tiles = as_tiles(logits)
    row_max = tiles.amax((1, 2))
    temperature = params.temperature.clamp(min=SMALLEST_TEMPERATURE)
    # As `log_weights`: in float64, then rounded once.
    weights = tiles.double().sub_(row_max.view(-1, 1, 1)).div_(temperature.view(-1, 1, 1)).float()
    good = np.isfinite(on_host(row_max))
    if not good.all():
        weights[torch.from_numpy(~good).to(weights.device)] = -torch.inf
    own = weights.flatten(1)[:, : logits.shape[1]]
    maxima, sums = scan(weights, None, wide=wide)
    index = np.flatnonzero(good)
    tokens, lse = np.full(len(logits), -1), np.full(len(logits), -np.inf, np.float32)
    if len(index):
        masses, keys = TileMasses.of(sums, maxima, torch.zeros_like(row_max), None), NoiseKeys.of(params, wide=wide)
        if len(index) < len(logits):
            masses, keys = masses.pick(index), keys.pick(index)
        tile = keys.race_run(np.zeros(len(index), np.int64), masses.log(), streams[0])
        z = Tiles(weights).at(index, tile).astype(np.float64)
        tokens[index] = keys.race_run(tile * TILE, z, streams[1])
        lse[index] = np.log(masses.totals())
    token_ids, sum_of_all = (torch.from_numpy(column).to(logits.device) for column in (tokens, lse))
    return DrawnDrafts(token_ids, own, sum_of_all)
