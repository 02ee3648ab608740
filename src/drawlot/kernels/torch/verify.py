"""Drafts to accepted tokens and one token more, as the reference declares it.

Every row is read once and draws from its own law as in ordinary sampling: that settles greedy and coupled requests, and
gives the others the token after their last draft. What remains is a coin for each draft, and one residual draw for each
request that rejects one.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot import rng
from drawlot.kernels.drafts import PADDING, Drafts, Law, Method, VerifiedRows
from drawlot.kernels.inputs import TILE, Edits, LogprobsWanted, RowParams
from drawlot.kernels.torch.draw import Drawn, Waiting, settle
from drawlot.kernels.torch.logprobs import Columns
from drawlot.kernels.torch.race import NoiseKeys
from drawlot.kernels.torch.sample import joined, rows_at_once
from drawlot.kernels.torch.scanned import Scanned, scan_rows
from drawlot.kernels.torch.tiles import IntArray, on_host
from drawlot.kernels.torch.verification import acceptance
from drawlot.kernels.torch.verification.draft_laws import DraftLaws
from drawlot.kernels.torch.verification.steps import Steps
from drawlot.kernels.torch.verification.target_laws import Residuals, TargetLaws
from drawlot.rng import BONUS, RESIDUAL, TARGET, Stream


class OwnDraws(NamedTuple):
    """What rows draw from their own laws, of which few are asked for."""

    drawn: Drawn
    """Of all N rows; -1 where a token waits to be drawn"""
    waiting: list[tuple[Waiting, tuple[Stream, Stream]]]

    def draw(self, which: IntArray) -> None:
        """Let some rows [E] wait no longer."""
        if self.waiting and which.size:
            wanted = np.zeros(len(self.drawn.tokens), np.bool_)
            wanted[which] = self.drawn.tokens[which] < 0
            for waiting, streams in self.waiting:
                waiting.draw(wanted, self.drawn, streams)


class Judged(NamedTuple):
    """A chunk of requests, all but decided."""

    steps: Steps
    scanned: Scanned
    own: OwnDraws
    p: TargetLaws
    q: DraftLaws
    thresholds: NDArray[np.float64]
    """[R, K]: what the coins have to stay below; NaN where none is tossed"""
    masses: NDArray[np.float64]
    """[R, K + 1]: with which factor p enters the residual of each row"""


def verify_rows(
    logits: Tensor,
    params: RowParams,
    edits: Edits,
    drafts: Drafts,
    wanted: LogprobsWanted | None,
    *,
    wide: bool = False,
) -> VerifiedRows:
    """Verifies the drafts of each request; see `Drafts` and `VerifiedRows` for shapes, `sample_rows` for the rest."""
    edits = _masked_in(drafts, edits, logits.shape[1])
    if len(logits) <= rows_at_once(logits.shape[1]):
        return _verify_chunk(logits, params, edits, drafts, wanted, wide)
    parts = []
    for requests, rows in _chunks(drafts, logits):
        own_edits, own_wanted = edits.rows(rows.start, rows.stop), wanted and wanted.pick(rows)
        part = _verify_chunk(logits[rows], params.pick(rows), own_edits, drafts.pick(requests), own_wanted, wide)
        parts.append(part)
    sampled, emitted, accepted, status = (torch.cat(column) for column in zip(*(part[:4] for part in parts)))
    return VerifiedRows(sampled, emitted, accepted, status, joined([part.logprobs for part in parts]))


def law(logits: Tensor, params: RowParams, edits: Edits, drafts: Drafts) -> Law:
    """What `verify_rows` decides by; arguments as there."""
    edits = _masked_in(drafts, edits, logits.shape[1])
    parts = [
        _law_of_chunk(logits[rows], params.pick(rows), edits.rows(rows.start, rows.stop), drafts.pick(requests))
        for requests, rows in _chunks(drafts, logits)
    ]
    return Law(*(torch.cat(column) for column in zip(*parts)))


def _masked_in(drafts: Drafts, edits: Edits, vocab_size: int) -> Edits:
    """The edits with refused drafts masked, which are rare."""
    return drafts.masked_in(edits, vocab_size) if (on_host(drafts.token_ids) < PADDING).any() else edits


def _chunks(drafts: Drafts, logits: Tensor) -> Iterator[tuple[slice, slice]]:
    """Consecutive requests with few enough rows to work on at once, or a single one, and their rows."""
    cu_rows, most = on_host(drafts.cu_rows).tolist(), rows_at_once(logits.shape[1])
    start = 0
    for stop in range(1, len(cu_rows)):
        if stop == len(cu_rows) - 1 or cu_rows[stop + 1] - cu_rows[start] > most:
            yield slice(start, stop), slice(cu_rows[start], cu_rows[stop])
            start = stop


@np.errstate(over="ignore", divide="ignore")  # as in `sample_rows`
def _verify_chunk(
    logits: Tensor, params: RowParams, edits: Edits, drafts: Drafts, wanted: LogprobsWanted | None, wide: bool
) -> VerifiedRows:
    n, device = len(logits), logits.device
    judged = _judge(logits, params, edits, drafts, wanted, wide)
    steps, own = judged.steps, judged.own
    tossed = coins(params, steps, wide) if steps.tosses.any() else np.ones(steps.drafts.shape)
    accepted = num_accepted(judged, tossed)
    columns = np.arange(steps.drafts.shape[1] + 1)
    last_rows = steps.first + accepted
    tokens = np.full(len(accepted), -1)
    rejected = Residuals.of(steps, columns[:-1] == accepted[:, None], judged.masses)
    if len(rejected.rows):
        keys = NoiseKeys.of(params, wide=wide).pick(rejected.rows)
        _draw_residuals(judged, rejected, keys, tokens)
    # Without a residual, or with one of which nothing is left, the row draws from its own law.
    own.draw(last_rows[tokens < 0])
    tokens = np.where(tokens < 0, own.drawn.tokens[last_rows], tokens)
    sampled = np.full((len(accepted), len(columns)), -1)
    sampled[:, :-1] = np.where(columns[:-1] < accepted[:, None], steps.drafts, -1)
    sampled[np.arange(len(accepted)), accepted] = tokens
    emitted = accepted + (tokens >= 0)

    logprobs = None
    if wanted is not None:
        logprobs = Columns.unused(n, wanted.columns)
        requests, column = np.nonzero(columns < emitted[:, None])
        index = steps.first[requests] + column
        if len(index):
            emitted_tokens = sampled[requests, column]
            logprobs.put(index, judged.scanned.columns(index, own.drawn.pick(index), emitted_tokens, wanted))
    return VerifiedRows(
        torch.from_numpy(sampled).to(device),
        torch.from_numpy(emitted.astype(np.int32)).to(device),
        torch.from_numpy(accepted.astype(np.int32)).to(device),
        torch.from_numpy(judged.scanned.status).to(device),
        logprobs and logprobs.on_device(device),
    )


@np.errstate(over="ignore", divide="ignore")
def _law_of_chunk(logits: Tensor, params: RowParams, edits: Edits, drafts: Drafts) -> Law:
    judged = _judge(logits, params, edits, drafts, None, wide=False)
    steps, vocab_size = judged.steps, logits.shape[1]
    weights = np.zeros(logits.shape)
    rows = np.unique(steps.rows)
    rows = rows[judged.scanned.status[rows] == 0]
    for part, own in judged.p.weights(rows, np.ones(len(rows))):
        weights[rows[part]] = on_host(own.flatten(1)[:, :vocab_size])
    residuals = Residuals.of(steps, steps.is_draft, judged.masses)
    for part, left in judged.p.residuals(residuals, judged.q):
        some = on_host(_is_law(left.sum((1, 2))))
        weights[residuals.rows[part][some]] = on_host(left.flatten(1)[:, :vocab_size])[some]
    device = logits.device
    return Law(torch.from_numpy(judged.thresholds).to(device), torch.from_numpy(weights).to(device))


def _judge(
    logits: Tensor, params: RowParams, edits: Edits, drafts: Drafts, wanted: LogprobsWanted | None, wide: bool
) -> Judged:
    steps = Steps.of(drafts, params, logits.shape[1])
    scanned = scan_rows(logits, own_keys(params, steps), edits, wanted, wide=wide)
    if scanned.status.any():
        steps = steps.before_bad_rows(scanned.status)
    own = own_draws(scanned, steps)
    p = TargetLaws(scanned.rows, own.drawn)
    needed = steps.is_draft & steps.looks_at_q[:, None]
    q = DraftLaws.of(drafts, needed, logits.shape[1], wide=wide)
    thresholds, masses = _thresholds(steps, p, q, drafts)
    return Judged(steps, scanned, own, p, q, thresholds, masses)


def own_keys(params: RowParams, steps: Steps) -> RowParams:
    """What the rows' own draws are keyed by: anchor and row, or, where they are ordinary ones, their position."""
    request = np.searchsorted(steps.first, np.arange(len(params.row)), "right") - 1
    at = torch.from_numpy(steps.ordinary[request]).to(params.row.device)
    position = torch.where(at, params.position + params.row, params.position)
    return params._replace(position=position, row=torch.where(at, 0, params.row))


def own_draws(scanned: Scanned, steps: Steps) -> OwnDraws:
    """The own laws of each good row up to the last draft."""
    own = OwnDraws(Drawn.nothing(len(scanned.status)), [])
    for requests, streams in ((steps.ordinary, TARGET), (~steps.ordinary, BONUS)):
        if not requests.any():
            continue
        mine = np.zeros(len(scanned.status), np.bool_)
        mine[steps.rows[requests]] = True
        index = np.flatnonzero(mine & (scanned.status == 0))
        if len(index):
            part, waiting = settle(scanned.rows.pick(index), scanned.greedy[index], streams)
            own.drawn.put(index, part)
            if waiting is not None:
                own.waiting.append((waiting._replace(places=index[waiting.places]), streams))
    return own


def coins(params: RowParams, steps: Steps, wide: bool) -> NDArray[np.float64]:
    """[R, K]: the coin of each draft."""
    seed, anchor, choice = (
        on_host(column).view(np.uint64)[steps.first, None] for column in (params.seed, params.position, params.choice)
    )
    columns = np.arange(steps.drafts.shape[1], dtype=np.uint64)
    return np.asarray(rng.coin(seed, anchor, choice, columns, wide=wide), np.float64)


def _thresholds(
    steps: Steps, p: TargetLaws, q: DraftLaws, drafts: Drafts
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Thresholds [R, K] and factors [R, K + 1], as in `Judged`."""
    shape = steps.drafts.shape
    ratio, masses = np.zeros(shape), np.ones((shape[0], shape[1] + 1))
    if not steps.tosses.any():
        return np.full(shape, np.nan), masses
    requests, columns = np.nonzero(steps.is_draft & steps.looks_at_q[:, None])
    tokens = steps.drafts[requests, columns]
    p_drafts = p.at(steps.first[requests] + columns, tokens)
    ratio[requests, columns] = acceptance.ratios(p_drafts, q.at(requests, columns, tokens))
    thresholds = np.minimum(1, ratio)
    block = steps.looks_at_q & (steps.method == Method.BLOCK)
    if block.any():
        masses[block] = acceptance.prefix_masses(ratio[block])
        left = np.zeros(masses.shape)
        residuals = Residuals.of(steps, block[:, None] & (np.arange(shape[1]) > 0), masses)
        left[residuals.requests, residuals.columns] = p.residual_masses(residuals, q)
        thresholds[block] = acceptance.block_thresholds(masses[block], left[block], steps.num_drafts[block])
    synthetic = steps.method == Method.SYNTHETIC
    if synthetic.any() and drafts.rates is not None:
        thresholds[synthetic] = np.where(steps.drafts[synthetic] >= 0, on_host(drafts.rates), 0)
    thresholds[~steps.is_draft | steps.compares[:, None]] = np.nan
    return thresholds, masses


def num_accepted(judged: Judged, coins: NDArray[np.float64]) -> IntArray:
    """[R]: how many drafts of each request are accepted; coins: [R, K]."""
    steps, compares = judged.steps, judged.steps.compares
    judged.own.draw(steps.rows[compares, :-1])
    own_tokens = judged.own.drawn.tokens[steps.rows[:, :-1]]
    drawn_alike = (own_tokens == steps.drafts) & steps.is_draft
    below = coins < judged.thresholds
    hit = np.where(compares[:, None], drawn_alike, below)
    is_block = ~compares & (steps.method == Method.BLOCK)
    return np.where(is_block, acceptance.longest(hit), acceptance.before_first_miss(hit))


def _draw_residuals(judged: Judged, rejected: Residuals, keys: NoiseKeys, tokens: IntArray) -> None:
    """Sets the tokens [R] of requests that reject a draft; one of which nothing is left keeps the row's own draw."""
    for part, weights in judged.p.residuals(rejected, judged.q):
        masses = weights.sum(2)
        some = _is_law(masses.sum(1))
        index = part.start + np.flatnonzero(on_host(some))
        if not len(index):
            continue
        weights, own_keys = weights[some], keys.pick(index)
        log_masses = np.log(on_host(masses[some]).astype(np.float64))
        tile = own_keys.race_run(np.zeros(len(index), np.int64), log_masses, RESIDUAL[0])
        each = torch.arange(len(index), device=weights.device)
        inside = np.log(on_host(weights[each, torch.from_numpy(tile).to(weights.device)]).astype(np.float64))
        tokens[rejected.requests[index]] = own_keys.race_run(tile * TILE, inside, RESIDUAL[1])


def _is_law(mass: Tensor) -> Tensor:
    """bool [N]: something is left, and it is finite."""
    return (mass > 0) & (mass < torch.inf)
