"""The semantics by the shortest road, on any device: sort every row, add up, race. All of it float64.

Vectorised over rows, where the reference loops over them; tests/test_oracle.py holds the two together. With the
backends that it judges it shares nothing but the noise, `drawlot.rng`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot import rng
from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE, Edits, RowParams, SampledRows
from drawlot.outputs import RowStatus
from drawlot.rng import Stream

NEAR_TIE = 2.0**-18
"""The only excuse for another token: a row's smallest relative margin is below it"""

_CHUNK = 1 << 22  # tokens worked on at once: some 400 MB


class Values(NamedTuple):
    """Stages 1 and 2 of some rows."""

    raw: Tensor
    """float32 [N, V]: the logits with the grammar bitmask alone"""
    values: Tensor
    """float32 [N, V]; 0 in bad rows, which are worked through like the others and then forgotten"""
    status: Tensor
    """uint8 [N]"""


class Kept(NamedTuple):
    """Stages 3 and 4 of some rows: the whole order, and how much of it is kept."""

    ids: Tensor
    """int64 [N, V]: value descending, then id ascending"""
    z: Tensor
    """float64 [N, V], in that order; -inf past the kept tokens"""
    margin: Tensor
    """float64 [N]: how close a filter came to deciding otherwise, relative"""


def sample_rows(logits: Tensor, params: RowParams, edits: Edits, *, wide: bool = False) -> SampledRows:
    """Draws one token for each row: tokens, status and margins as the reference returns them; no logprobs."""
    parts = [_draw(*chunk, wide) for chunk in chunks(logits, params, edits)]
    tokens, status, margins = (torch.cat(column) for column in zip(*parts))
    return SampledRows(tokens, status, None, margins)


def chunks(logits: Tensor, params: RowParams, edits: Edits) -> Iterator[tuple[Tensor, RowParams, Edits]]:
    """The rows in order, so many at a time that the work on them fits into memory."""
    n, vocab_size = logits.shape
    step = max(1, _CHUNK // (vocab_size + -vocab_size % TILE))
    for start in range(0, n, step):
        rows = slice(start, min(n, start + step))
        yield logits[rows], params.pick(rows), edits.rows(rows.start, rows.stop)


def values_of(logits: Tensor, edits: Edits) -> Values:
    """Stages 1 and 2: masks, bias, penalties. Float32, as the semantics have it."""
    logits = logits.float()
    x = logits.clone()
    n, vocab_size = x.shape
    if edits.bitmask is not None:
        ids = torch.arange(vocab_size, device=x.device)
        x[(edits.bitmask[:, ids >> 5] >> (ids & 31)) & 1 == 0] = -torch.inf
    raw = x.clone()
    if edits.allowed is not None:
        forbidden = torch.zeros(n, vocab_size, dtype=torch.bool, device=x.device)
        forbidden[edits.allowed[0]] = True
        forbidden[edits.allowed] = False
        x[forbidden] = -torch.inf
    if edits.masked is not None:
        x[edits.masked] = -torch.inf
    if edits.bias is not None:
        rows, ids, values = edits.bias
        x[rows, ids] += values
    if edits.penalties is not None:
        rows, ids, repetition, subtract, subtract_once = edits.penalties
        seen = x[rows, ids]
        seen = torch.where(seen > 0, seen / repetition, seen * repetition)
        x[rows, ids] = seen - subtract - subtract_once
    x = x + 0.0  # -0.0 and 0.0 are one value

    status = torch.zeros(n, dtype=torch.uint8, device=x.device)
    status[(x == -torch.inf).all(1)] = int(RowStatus.EMPTY_SUPPORT)
    for part in (logits, x):
        status[(part.isnan() | (part == torch.inf)).any(1)] = int(RowStatus.NONFINITE)
    return Values(raw, x.masked_fill((status != 0).unsqueeze(1), 0.0), status)


def kept_tokens(values: Tensor, params: RowParams) -> Kept:
    """Stages 3 and 4: temperature, then the first max(1, min(n_k, n_m, n_p)) tokens of the order."""
    temperature, top_k, top_p, min_p = (column.unsqueeze(1) for column in params[:4])
    x, ids = values.sort(dim=1, descending=True, stable=True)
    x = x.double()
    z = (x - x[:, :1]) / torch.where(temperature > 0, temperature, 1.0).clamp(min=SMALLEST_TEMPERATURE)
    place = torch.arange(x.shape[1], device=x.device)
    finite = x > -torch.inf
    num_finite = finite.sum(1, keepdim=True)

    n_k = torch.where(top_k > 0, torch.minimum(top_k, num_finite), num_finite)
    line = torch.where(min_p > 0, min_p.log(), -torch.inf)
    n_m = torch.where(min_p > 0, (z >= line).sum(1, keepdim=True), num_finite)
    off_line = ((z - line) / line.abs().clamp(min=1)).abs()
    margin = torch.where(finite & (min_p > 0), off_line, torch.inf).amin(1)

    n = torch.minimum(n_k, n_m)
    mass = torch.where(place < n, z.exp(), 0.0).cumsum(1)
    target = top_p * mass[:, -1:]
    n_p = (mass < target).sum(1, keepdim=True) + 1
    off_target = (mass - target).abs() / target
    margin = torch.minimum(margin, torch.where((place < n) & (top_p < 1), off_target, torch.inf).amin(1))
    n = torch.where(top_p < 1, n_p, n).clamp(min=1)
    return Kept(ids, z.masked_fill(place >= n, -torch.inf), margin)


def race(kept: Kept, params: RowParams, wide: bool) -> tuple[Tensor, Tensor]:
    """The draw: a race of the tiles, then one of the tokens in the winning tile. The tokens [N] and margins [N]."""
    n, vocab_size = kept.z.shape
    z = torch.full((n, vocab_size + -vocab_size % TILE), -torch.inf, dtype=torch.float64, device=kept.z.device)
    z.scatter_(1, kept.ids, kept.z)
    tiles = z.view(n, -1, TILE)
    key = [column.unsqueeze(1) for column in params[4:]]

    def winners(z: Tensor, ids: Tensor, stream: Stream) -> tuple[Tensor, Tensor]:
        seed, position, choice, row = key
        keys = z + rng.gumbel_noise(ids, seed, position, stream, choice, row, wide=wide).double()
        best = keys.amax(1, keepdim=True)
        lanes = torch.arange(z.shape[1], device=z.device)
        first = torch.where(keys == best, lanes, z.shape[1]).amin(1, keepdim=True)
        others = keys.scatter(1, first, -torch.inf).amax(1, keepdim=True)
        margin = (best - others) / best.abs().clamp(min=1)
        return first.squeeze(1), margin.squeeze(1)

    tile, tile_margin = winners(tiles.logsumexp(2), torch.arange(tiles.shape[1], device=z.device), Stream.TARGET_TILE)
    ids = tile.unsqueeze(1) * TILE + torch.arange(TILE, device=z.device)
    lane, token_margin = winners(z.gather(1, ids), ids, Stream.TARGET_TOKEN)
    return tile * TILE + lane, torch.minimum(tile_margin, token_margin)


def _draw(logits: Tensor, params: RowParams, edits: Edits, wide: bool) -> tuple[Tensor, Tensor, Tensor]:
    _, values, status = values_of(logits, edits)
    kept = kept_tokens(values, params)
    tokens, margin = race(kept, params, wide)
    greedy = params.temperature == 0
    tokens = torch.where(greedy, kept.ids[:, 0], tokens).masked_fill(status != 0, -1)
    margin = torch.minimum(margin, kept.margin).masked_fill(greedy | (status != 0), torch.inf)
    return tokens, status, margin
