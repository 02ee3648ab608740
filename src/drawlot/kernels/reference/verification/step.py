"""One request of a verified step, as its formulas name it: drafts d_j, target laws p_j, draft laws q_j."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.drafts import PADDING, Drafts, Method
from drawlot.kernels.inputs import RowParams
from drawlot.kernels.reference.filters import Kept
from drawlot.kernels.reference.race import Key, log_sum_exp
from drawlot.kernels.reference.sample import key_of
from drawlot.outputs import SparseDraftLogits


class Step(NamedTuple):
    """A request with n drafts before the first padding and the first bad row."""

    drafts: list[int]
    """d_0 .. d_{n-1}; -1 for one that a constraint refuses or that is no token of the target: p(d) = 0"""
    kept: list[Kept | None]
    """What the rows 0 .. n may draw; only row n may be a bad one: None"""
    p: NDArray[np.float64]
    """[n + 1, V], the laws of the rows; zeros for a bad one"""
    q: NDArray[np.float64]
    """[n, V], the laws the drafts were drawn from; [0, V] where the method does not look at them"""
    key: Key
    """Of row 0: its position is the step's anchor"""
    method: Method
    greedy: bool
    rates: list[float]
    """Of `synthetic`"""

    @property
    def compares(self) -> bool:
        """A draft is accepted if it is the token that its row draws; no coin is tossed."""
        return self.method == Method.COUPLED or (self.greedy and self.method != Method.SYNTHETIC)

    @property
    def ordinary(self) -> bool:
        """Its rows draw as ordinary sampling does at their positions."""
        return self.method == Method.COUPLED or not self.drafts


def step_of(r: int, num_drafts: int, rows: list[Kept | None], params: RowParams, drafts: Drafts, v: int) -> Step:
    """The step of request r.

    Args:
        r: The request; num_drafts: how many it has before the first padding.
        rows: Of all rows of the batch.
        params: Of all rows; drafts: of all requests. On the CPU.
        v: The size of the vocabulary.
    """
    first = int(drafts.cu_rows[r])
    bad = (j for j in range(num_drafts) if rows[first + j] is None)
    n = next(bad, num_drafts)
    tokens = [int(token) if 0 <= token < v else -1 for token in drafts.token_ids[r, :n]]
    kept = rows[first : first + n + 1]
    method, greedy = Method(int(drafts.method[r])), bool(params.temperature[first] == 0)
    looks_at_q = method in (Method.STANDARD, Method.BLOCK) and not greedy
    return Step(
        tokens,
        kept,
        np.array([_law(row, v) for row in kept]),
        np.array([_draft_law(drafts, r, j, v) for j in range(n if looks_at_q else 0)]).reshape(-1, v),
        key_of(params, first)._replace(row=0),
        method,
        greedy,
        [] if drafts.rates is None else drafts.rates.tolist(),
    )


def _law(kept: Kept | None, v: int) -> NDArray[np.float64]:
    """[V]: the softmax of z over the kept tokens."""
    p = np.zeros(v)
    if kept is not None:
        p[kept.ids] = np.exp(kept.z - log_sum_exp(kept.z))
    return p


def _finite(x: float) -> float:
    """NaN for what makes a line no law: no coin is below that."""
    return x if np.isfinite(x) else np.nan


def _draft_law(drafts: Drafts, r: int, j: int, v: int) -> NDArray[np.float64]:
    """[V]: the law that draft j of request r was drawn from."""
    q = np.zeros(v)
    if drafts.logits is None:
        token = int(drafts.token_ids[r, j])
        if 0 <= token < v:
            q[token] = 1
        return q
    s = int(drafts.state_rows[r])
    if isinstance(drafts.logits, SparseDraftLogits):
        ids = drafts.logits.token_ids[s, j].numpy()
        logits = drafts.logits.logits[s, j].double().numpy()
        if (ids == PADDING).all():
            return q
        ids, logits = ids[ids != PADDING], logits[ids != PADDING]
    else:
        ids = np.arange(v)
        logits = drafts.logits[s, j, :v].double().numpy()
    with np.errstate(invalid="ignore"):
        if drafts.lse is not None:
            weights = np.exp(logits - _finite(float(drafts.lse[s, j])))
        else:
            # Beside a maximum far from 0 the log of the sum would be lost.
            z = logits - _finite(logits.max())
            weights = np.exp(z - _finite(log_sum_exp(z)))
        of_target = ids < v
        q[ids[of_target]] = weights[of_target]
    return q
