"""A block of drafts at once: the longest prefix that its own coin accepts.

Sun et al. 2024 (arXiv 2403.10444), algorithm 2. A point mass needs no rule of its own: q is 1 at its token.
"""

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.reference.verification.standard import min_one, ratio
from drawlot.kernels.reference.verification.step import Step


def prefix_masses(step: Step) -> list[float]:
    """P_0 .. P_n: P_0 = 1, P_i = min(1, P_{i-1} p_{i-1}(d_{i-1}) / q_{i-1}(d_{i-1}))."""
    masses = [1.0]
    for j in range(len(step.drafts)):
        masses.append(min_one(masses[-1] * ratio(step, j)) if masses[-1] > 0 else 0.0)
    return masses


def rests(step: Step) -> NDArray[np.float64]:
    """[n]: what h_1 .. h_n are shares of: S_i + 1 - P_i, and 1."""
    n, masses = len(step.drafts), prefix_masses(step)
    return np.array([residual(step, i).sum() + 1 - masses[i] for i in range(1, n)] + [1.0] * min(1, n))


def thresholds(step: Step) -> NDArray[np.float64]:
    """h_1 .. h_n: what the coin of the first i drafts, the coin of row i - 1, has to stay below."""
    n, masses = len(step.drafts), prefix_masses(step)
    h = [residual(step, i).sum() / rest if rest != 0 else 1.0 for i, rest in enumerate(rests(step)[:-1], 1)]
    return np.array([*h, masses[n]] if n else [])


def num_accepted(thresholds: NDArray[np.float64], coins: NDArray[np.float64]) -> int:
    """The largest i whose coin is below h_i, else 0."""
    below = [i for i in range(1, len(thresholds) + 1) if coins[i - 1] < thresholds[i - 1]]
    return max(below, default=0)


def residual(step: Step, i: int) -> NDArray[np.float64]:
    """[V]: what row i draws from if the first i drafts are accepted and no more, up to a factor."""
    left: NDArray[np.float64] = np.maximum(prefix_masses(step)[i] * step.p[i] - step.q[i], 0)
    return left
