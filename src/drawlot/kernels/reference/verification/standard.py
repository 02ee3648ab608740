"""Token by token: draft j is accepted with probability min(1, p_j(d_j) / q_j(d_j)).

Leviathan et al. 2023 (arXiv 2211.17192), theorem 1; Chen et al. 2023 (arXiv 2302.01318), algorithm 2.
"""

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.reference.verification.step import Step


def thresholds(step: Step) -> NDArray[np.float64]:
    """[n]: what the coin of each draft has to stay below."""
    return np.array([min_one(ratio(step, j)) for j in range(len(step.drafts))])


def num_accepted(thresholds: NDArray[np.float64], coins: NDArray[np.float64]) -> int:
    """The drafts before the first whose coin is not below its threshold."""
    for j, (coin, threshold) in enumerate(zip(coins, thresholds)):
        if not coin < threshold:
            return j
    return len(thresholds)


def residual(step: Step, j: int) -> NDArray[np.float64]:
    """[V]: what row j draws from if its draft is rejected, up to a factor."""
    left: NDArray[np.float64] = np.maximum(step.p[j] - step.q[j], 0)
    return left


def ratio(step: Step, j: int) -> float:
    """p_j(d_j) / q_j(d_j); 0 wherever p_j(d_j) is."""
    d = step.drafts[j]
    if d < 0 or step.p[j, d] == 0:
        return 0.0
    with np.errstate(divide="ignore"):
        return float(step.p[j, d] / step.q[j, d])


def min_one(x: float) -> float:
    """min(1, x); NaN stays NaN, and no coin is below it."""
    return 1.0 if x > 1 else x
