"""Logprobs in the four modes, top tokens, the ids asked for, and the rank of the drawn token."""

import torch
from torch import Tensor

from drawlot.kernels.inputs import TILE, LogprobsWanted, RowParams
from drawlot.kernels.torch.edits import as_tiles, ordered_keys, unpacked
from drawlot.kernels.torch.filters import KEEP_ALL
from drawlot.kernels.torch.scan import gather_tiles, log_total, tile_log_masses, tile_maxima, token_ids_of, top_tiles
from drawlot.outputs import RowSummary

_PAIRS = 4096  # tiles compared at once when ranks are counted
_FLOAT32_MAX = torch.finfo(torch.float32).max

Columns = tuple[Tensor, Tensor, Tensor]
"""ids int64 [N, C], logprobs float32 [N, C], rank of the drawn token int64 [N]"""


def logprobs(logits: Tensor, token_ids: Tensor, wanted: LogprobsWanted) -> Columns:
    """Raw logprobs of given tokens [N] of logits [N, V], nothing drawn."""
    tiles = as_tiles(logits)
    maxima = tile_maxima(tiles)
    row_max = maxima.amax(1)
    ones = torch.ones_like(row_max)
    summary = RowSummary(row_max, _log_mass(tiles, maxima, row_max, wanted.mode), torch.full_like(token_ids, KEEP_ALL))
    return _columns(tiles, maxima, summary, ones, token_ids, wanted)


def row_logprobs(
    raw: Tensor,
    raw_maxima: Tensor,
    values: Tensor,
    maxima: Tensor,
    summary: RowSummary,
    scale: Tensor,
    tokens: Tensor,
    params: RowParams,
    wanted: LogprobsWanted,
) -> Columns:
    """The columns of drawn rows.

    Args:
        raw: float32 [N, T, 128], logits with the grammar bitmask alone; raw_maxima: their tile maxima [N, T].
        values: float32 [N, T, 128], the values of stage 2; maxima: their tile maxima [N, T].
        summary: Of the drawn rows.
        scale: float32 [N], 1 / temperature.
        tokens: int64 [N], -1 for a bad row.
        params: Of all rows.
        wanted: Of all rows.
    """
    keep_all = torch.full_like(tokens, KEEP_ALL)
    ones = torch.ones_like(scale)
    if wanted.mode.startswith("raw"):
        raw_max = raw_maxima.amax(1)
        summary = RowSummary(raw_max, _log_mass(raw, raw_maxima, raw_max, wanted.mode), keep_all)
        return _columns(raw, raw_maxima, summary, ones, tokens, wanted)
    greedy = params.temperature == 0
    log_mass = summary.log_mass
    if wanted.mode == "processed_logprobs" and bool(greedy.any()):
        log_mass = torch.where(greedy, _log_mass(values, maxima, summary.maximum, wanted.mode), log_mass)
    summary = RowSummary(summary.maximum, log_mass, torch.where(greedy, keep_all, summary.cut_key))
    return _columns(values, maxima, summary, torch.where(greedy, ones, scale), tokens, wanted)


def _log_mass(tiles: Tensor, maxima: Tensor, row_max: Tensor, mode: str) -> Tensor:
    """float64 [N]: log of the rows' sum of exp(value - row_max); 0 in the logits modes, which need none."""
    if mode.endswith("logits"):
        return torch.zeros_like(row_max, dtype=torch.float64)
    return log_total(tile_log_masses(tiles, maxima, row_max, torch.ones_like(row_max)))


def _columns(
    tiles: Tensor, maxima: Tensor, summary: RowSummary, scale: Tensor, tokens: Tensor, wanted: LogprobsWanted
) -> Columns:
    use = wanted.wanted & (tokens >= 0)
    drawn = tokens.clamp(min=0)
    ids = torch.full((len(tokens), wanted.columns), -1, dtype=torch.int64, device=tiles.device)
    ids[:, 0] = drawn
    if wanted.max_top:
        top = _top_tokens(tiles, maxima, summary.cut_key, min(wanted.max_top, tiles[0].numel()))
        column = torch.arange(top.shape[1], device=tiles.device)
        ids[:, 1 : 1 + top.shape[1]] = torch.where(column < wanted.num_top.unsqueeze(1), top, -1)
    num_custom = wanted.token_ids.shape[1]
    if num_custom:
        custom = wanted.token_ids
        has_custom = custom[:, :1] >= 0
        ids[:, 1 : 1 + num_custom] = torch.where(has_custom, custom, ids[:, 1 : 1 + num_custom])
    ids = torch.where(use.unsqueeze(1), ids, -1)

    rows = torch.arange(len(tokens), device=tiles.device).unsqueeze(1)
    at = ids.clamp(min=0)
    x = tiles[rows, at // TILE, at % TILE]
    rank = _rank(tiles, maxima, x[:, 0], drawn, use)
    if wanted.mode == "processed_logits":
        result = (x.to(torch.float64) * scale.unsqueeze(1)).clamp(-_FLOAT32_MAX, _FLOAT32_MAX).float()
    elif wanted.mode == "raw_logits":
        result = x
    else:
        z = (x - summary.maximum.unsqueeze(1)).to(torch.float64) * scale.unsqueeze(1)
        result = (z - summary.log_mass.unsqueeze(1)).float()
    kept = (ordered_keys(x, at) >= summary.cut_key.unsqueeze(1)) & (x > -torch.inf) & (ids >= 0)
    return ids, torch.where(kept, result, -torch.inf), torch.where(use, rank, 0)


def _top_tokens(tiles: Tensor, maxima: Tensor, cut_key: Tensor, count: int) -> Tensor:
    """int64 [N, count]: the first tokens of the order, -1 past the last one that is kept. They lie in as many tiles."""
    tile_ids = top_tiles(maxima, min(count, maxima.shape[1]))
    keys = ordered_keys(gather_tiles(tiles, tile_ids), token_ids_of(tile_ids)).flatten(1)
    best = keys.topk(count, 1).values
    x, ids = unpacked(best)
    return torch.where((best >= cut_key.unsqueeze(1)) & (x > -torch.inf), ids, -1)


def _rank(tiles: Tensor, maxima: Tensor, x: Tensor, token_ids: Tensor, use: Tensor) -> Tensor:
    """int64 [N]: 1 + the tokens before (x, token_ids) [N] in the order. Reads only tiles that can hold one."""
    pairs = ((maxima >= x.unsqueeze(1)) & use.unsqueeze(1)).nonzero()
    before = torch.zeros(len(pairs), dtype=torch.int64, device=tiles.device)
    for start in range(0, len(pairs), _PAIRS):
        rows, tile_ids = pairs[start : start + _PAIRS].unbind(1)
        values, ids = tiles[rows, tile_ids], token_ids_of(tile_ids)
        own, own_id = x[rows].unsqueeze(1), token_ids[rows].unsqueeze(1)
        earlier = (values > own) | ((values == own) & (ids < own_id))
        before[start : start + _PAIRS] = earlier.sum(1)
    return torch.ones_like(token_ids).index_add_(0, pairs[:, 0], before)
