"""Drafts to accepted tokens and one token more: what decides, and what each row draws from, is declared here."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot import rng
from drawlot.kernels.drafts import Drafts, Law, Method, VerifiedRows
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams
from drawlot.kernels.reference.race import race
from drawlot.kernels.reference.sample import logprobs_line, on_cpu, processed, stacked
from drawlot.kernels.reference.verification import block, own_token, standard, synthetic
from drawlot.kernels.reference.verification.step import Step, step_of
from drawlot.outputs import RowStatus, SparseDraftLogits
from drawlot.rng import BONUS, RESIDUAL, TARGET


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
    device, (num_reqs, most) = logits.device, drafts.token_ids.shape
    logits, params, edits, drafts, status, steps = _steps(logits, params, edits, drafts)
    sampled, accepted, emitted = np.full((num_reqs, most + 1), -1), [], []
    row_tokens, margins = np.full(len(logits), -1), []
    for r, step in enumerate(steps):
        count, token, margin = _verify(step, wide)
        tokens = step.drafts[:count] + ([token] if token >= 0 else [])
        sampled[r, : len(tokens)] = tokens
        first = int(drafts.cu_rows[r])
        row_tokens[first : first + len(tokens)] = tokens
        accepted.append(count)
        emitted.append(len(tokens))
        margins.append(margin)
    lines = []
    if wanted is not None:
        rows = logits.float().numpy()
        lines = [logprobs_line(rows[i], i, int(t), params, edits, wanted) for i, t in enumerate(row_tokens)]
    return VerifiedRows(
        torch.from_numpy(sampled).to(device),
        torch.tensor(emitted, dtype=torch.int32, device=device),
        torch.tensor(accepted, dtype=torch.int32, device=device),
        torch.tensor(status, dtype=torch.uint8, device=device),
        wanted and stacked(lines, wanted.columns, device),
        torch.tensor(margins, dtype=torch.float64, device=device),
    )


def law(logits: Tensor, params: RowParams, edits: Edits, drafts: Drafts) -> Law:
    """What `verify_rows` decides by; arguments as there."""
    device = logits.device
    logits, params, edits, drafts, _, steps = _steps(logits, params, edits, drafts)
    accept = np.full(drafts.token_ids.shape, np.nan)
    weights = np.zeros(logits.shape)
    for r, step in enumerate(steps):
        n, first = len(step.drafts), int(drafts.cu_rows[r])
        if not step.compares:
            accept[r, :n] = thresholds(step)
        for j in range(n + 1):
            left = residual(step, j)
            weights[first + j] = step.p[j] if left is None else left
    return Law(torch.from_numpy(accept).to(device), torch.from_numpy(weights).to(device))


def _steps(
    logits: Tensor, params: RowParams, edits: Edits, drafts: Drafts
) -> tuple[Tensor, RowParams, Edits, Drafts, list[RowStatus], list[Step]]:
    """What a call is given, on the CPU and without refused drafts; the rows' status; the requests' steps."""
    v, drafts = logits.shape[1], _on_cpu(drafts)
    logits, params, edits = on_cpu(logits, params, edits)
    edits = drafts.masked_in(edits, v)
    rows = [processed(row.float().numpy(), i, params, edits) for i, row in enumerate(logits)]
    kept, counts = [row[1] for row in rows], drafts.num_drafts().tolist()
    steps = [step_of(r, n, kept, params, drafts, v) for r, n in enumerate(counts)]
    return logits, params, edits, drafts, [row[0] for row in rows], steps


def _verify(step: Step, wide: bool) -> tuple[int, int, float]:
    """How many drafts are accepted, the token after them (-1 where its row is bad), and the smallest margin."""
    n = len(step.drafts)
    margin = min((kept.margin for kept in step.kept if kept is not None), default=np.inf)
    if step.compares:
        draws = [own_draw(step, j, wide) for j in range(n + 1)]
        count = own_token.num_accepted([token for token, _ in draws], step.drafts)
        return count, draws[count][0], min(margin, *(m for _, m in draws[: count + 1]))
    tossed, below = coins(step, wide), thresholds(step)
    decide = block.num_accepted if step.method == Method.BLOCK else standard.num_accepted
    count = decide(below, tossed)
    gaps = np.abs(tossed - below) / np.maximum(tossed, below)
    if step.method == Method.BLOCK:
        # Near 0 / 0 a threshold is what rounding makes it.
        gaps *= np.minimum(1, block.rests(step))
    margin = min(margin, np.where(np.isnan(below), np.inf, gaps).min(initial=np.inf))
    left = residual(step, count)
    if left is None:
        token, own_margin = own_draw(step, count, wide)
        return count, token, min(margin, own_margin)
    ids = np.flatnonzero(left > 0)
    token, own_margin = race(ids, np.log(left[ids]), step.key._replace(row=count), RESIDUAL, wide)
    # The residual is a difference: rounding weighs the more, the less of p it leaves.
    return count, token, min(margin, own_margin * min(1.0, left.sum()))


def coins(step: Step, wide: bool) -> NDArray[np.float64]:
    """[n]: the coin of each draft."""
    seed, anchor, choice, _ = (np.array([part], dtype=np.int64).view(np.uint64) for part in step.key)
    rows = np.arange(len(step.drafts), dtype=np.uint64)
    return np.asarray(rng.coin(seed, anchor, choice, rows, wide=wide), dtype=np.float64)


def thresholds(step: Step) -> NDArray[np.float64]:
    """[n]: what the coins have to stay below."""
    of = {Method.STANDARD: standard.thresholds, Method.BLOCK: block.thresholds, Method.SYNTHETIC: synthetic.thresholds}
    return of[step.method](step)


def residual(step: Step, j: int) -> NDArray[np.float64] | None:
    """[V]: what row j draws from if draft j is the first that is not accepted; None where that is its own law."""
    if j == len(step.drafts) or step.compares or step.method == Method.SYNTHETIC:
        return None
    left = block.residual(step, j) if step.method == Method.BLOCK else standard.residual(step, j)
    return left if 0 < left.sum() < np.inf else None


def own_draw(step: Step, j: int, wide: bool) -> tuple[int, float]:
    """The token that row j draws from its own law, and the margin; -1 for a bad row."""
    kept = step.kept[j]
    if kept is None:
        return -1, np.inf
    if step.ordinary:
        return race(kept.ids, kept.z, step.key._replace(position=step.key.position + j), TARGET, wide)
    return race(kept.ids, kept.z, step.key._replace(row=j), BONUS, wide)


def _on_cpu(drafts: Drafts) -> Drafts:
    def moved(part: Tensor | SparseDraftLogits | None) -> Any:
        if isinstance(part, SparseDraftLogits):
            return SparseDraftLogits(*(column.cpu() for column in part))
        return None if part is None else part.cpu()

    return Drafts(*(moved(part) for part in drafts))
