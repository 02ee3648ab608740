"""Rows of logits to tokens, in the order of stages that the reference declares."""

import torch
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.torch import filters
from drawlot.kernels.torch.edits import as_tiles, grammar_masked, row_values
from drawlot.kernels.torch.logprobs import row_logprobs
from drawlot.kernels.torch.race import first_largest, race
from drawlot.kernels.torch.scan import gather_tiles, log_total, tile_log_masses, tile_maxima, token_ids_of
from drawlot.outputs import RowStatus, RowSummary
from drawlot.rng import Stream

_CHUNK = 1 << 22  # elements worked on at once: bounds the extra memory, whatever the number of rows


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
        part = RowParams(*(field[start:stop] for field in params))
        part_wanted = wanted and wanted.rows(start, stop)
        parts.append(_sample_chunk(logits[start:stop], part, edits.rows(start, stop), part_wanted, wide))
    tokens, status = torch.cat([p.token_ids for p in parts]), torch.cat([p.status for p in parts])
    if wanted is None:
        return SampledRows(tokens, status, None)
    ids, values, ranks = (torch.cat(column) for column in zip(*(p.logprobs for p in parts if p.logprobs)))
    return SampledRows(tokens, status, (ids, values, ranks))


def _sample_chunk(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, wide: bool
) -> SampledRows:
    raw = as_tiles(logits)
    masked = grammar_masked(raw, edits)
    values = row_values(masked, edits)
    maxima = tile_maxima(values)
    row_max = maxima.amax(1)
    edited = values is not raw
    status = _status(row_max, tile_maxima(raw).amax(1) if edited else row_max)
    bad = status != 0
    if bool(bad.any()):
        # Bad rows are drawn from as if all their logits were 0, and their tokens thrown away: no other row notices.
        values = torch.where(bad.view(-1, 1, 1), 0.0, values)
        maxima, row_max = torch.where(bad.unsqueeze(1), 0.0, maxima), torch.where(bad, 0.0, row_max)
    scale = (1 / params.temperature.clamp(min=SMALLEST_TEMPERATURE)).clamp(min=SMALLEST_TEMPERATURE).float()

    winners, summary = _win_tiles(values, maxima, row_max, scale, params, wide)
    tokens = _draw_inside(values, winners, row_max, scale, summary.cut_key, params, wide)
    tokens = torch.where(bad, -1, tokens)
    logprobs = None
    if wanted is not None:
        raw_maxima = maxima if values is masked else tile_maxima(masked)
        logprobs = row_logprobs(masked, raw_maxima, values, maxima, summary, scale, tokens, params, wanted)
    return SampledRows(tokens, status, logprobs)


def _status(row_max: Tensor, raw_max: Tensor) -> Tensor:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    good = (row_max < torch.inf) & (raw_max < torch.inf)
    empty = torch.where(row_max == -torch.inf, int(RowStatus.EMPTY_SUPPORT), int(RowStatus.OK))
    return torch.where(good, empty, int(RowStatus.NONFINITE)).to(torch.uint8)


def _win_tiles(
    values: Tensor, maxima: Tensor, row_max: Tensor, scale: Tensor, params: RowParams, wide: bool
) -> tuple[Tensor, RowSummary]:
    """The winning tile of each row, int64 [N], and the rows' summaries. Rows take the cheapest exact path."""
    n, num_tiles = maxima.shape
    device = values.device
    greedy = params.temperature == 0
    filtered = ~greedy & ((params.top_k > 0) | (params.top_p < 1) | (params.min_p > 0))
    listed = filtered & filters.listable(params)
    winners = torch.empty(n, dtype=torch.int64, device=device)
    log_mass = torch.zeros(n, dtype=torch.float64, device=device)
    cut_key = torch.full((n,), filters.KEEP_ALL, dtype=torch.int64, device=device)
    all_tiles = torch.arange(num_tiles, device=device)

    def finish(rows: Tensor, tile_ids: Tensor, masses: Tensor) -> None:
        winners[rows] = race(tile_ids, masses, _of(params, rows), Stream.TARGET_TILE)
        log_mass[rows] = log_total(masses)

    # Whole-row masses, wherever a short list cannot give them: no filters, or filters without top_k.
    needs_mass = ~greedy & ~(listed & (params.top_k > 0))
    rows = needs_mass.nonzero().squeeze(1)
    whole = None
    if len(rows):
        whole = torch.full((n, num_tiles), -torch.inf, dtype=torch.float64 if wide else torch.float32, device=device)
        whole[rows] = tile_log_masses(_pick(values, rows), maxima[rows], row_max[rows], scale[rows], wide=wide)

    rows = (~filtered & ~greedy).nonzero().squeeze(1)
    if len(rows) and whole is not None:
        finish(rows, all_tiles.expand(len(rows), -1), whole[rows])

    rows = greedy.nonzero().squeeze(1)
    if len(rows):
        winners[rows] = first_largest(all_tiles, maxima[rows])

    uncut = filtered & ~listed
    rows = listed.nonzero().squeeze(1)
    if len(rows):
        of_rows = _of(params, rows)
        row_mass = None if whole is None else log_total(whole[rows])
        found = filters.cut_from_best_tiles(
            _pick(values, rows), maxima[rows], row_max[rows], scale[rows], row_mass, of_rows
        )
        masses = tile_log_masses(
            found.values, maxima[rows].gather(1, found.tile_ids), row_max[rows], scale[rows], found.kept, wide=wide
        )
        cut_key[rows] = found.cut_key
        finish(rows, found.tile_ids, masses)
        uncut[rows[~found.certified]] = True

    for row in uncut.nonzero().squeeze(1):
        one = row.unsqueeze(0)
        k, p, m = (field[row].item() for field in params[1:4])
        key = filters.exact_cut(values[row].flatten(), row_max[row], scale[row], int(k), p, m)
        kept = filters.kept_by_key(values[one], key.unsqueeze(0))
        masses = tile_log_masses(values[one], maxima[one], row_max[one], scale[one], kept, wide=wide)
        cut_key[row] = key
        finish(one, all_tiles.unsqueeze(0), masses)
    return winners, RowSummary(row_max, log_mass, cut_key)


def _draw_inside(
    values: Tensor, winners: Tensor, row_max: Tensor, scale: Tensor, cut_key: Tensor, params: RowParams, wide: bool
) -> Tensor:
    """The drawn token of each row, int64 [N], from its winning tile [N]."""
    x = gather_tiles(values, winners.unsqueeze(1)).squeeze(1)
    ids = token_ids_of(winners)
    kept = filters.kept_in_tile(x, ids, cut_key)
    z = (x.to(torch.float64 if wide else torch.float32) - row_max.unsqueeze(1)) * scale.unsqueeze(1)
    tokens = race(ids, torch.where(kept, z, -torch.inf), params, Stream.TARGET_TOKEN)
    greedy = params.temperature == 0
    return torch.where(greedy, first_largest(ids, x), tokens)


def _of(params: RowParams, rows: Tensor) -> RowParams:
    return params if len(rows) == len(params.seed) else RowParams(*(field[rows] for field in params))


def _pick(tiles: Tensor, rows: Tensor) -> Tensor:
    """Some rows of the tiles, without a copy where they are all."""
    return tiles if len(rows) == len(tiles) else tiles[rows]
