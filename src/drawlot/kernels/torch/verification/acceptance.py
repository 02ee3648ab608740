"""What coins have to stay below, and how many drafts they accept. R requests, K drafts at most; on the host."""

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.torch.tiles import IntArray

Numbers = NDArray[np.float64]


def ratios(p: Numbers, q: Numbers) -> Numbers:
    """p / q of each draft; 0 wherever p is."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p == 0, 0, p / q)


def prefix_masses(ratio: Numbers) -> Numbers:
    """[R, K + 1]: P_0 = 1, P_i = min(1, P_{i-1} ratio_{i-1}), of ratios [R, K]."""
    masses = np.ones((ratio.shape[0], ratio.shape[1] + 1))
    for i in range(ratio.shape[1]):
        with np.errstate(invalid="ignore"):
            masses[:, i + 1] = np.where(masses[:, i] == 0, 0, np.minimum(1, masses[:, i] * ratio[:, i]))
    return masses


def block_thresholds(masses: Numbers, left: Numbers, num_drafts: IntArray) -> Numbers:
    """[R, K]: h_i of the first i = 1 .. K drafts, for the coin of row i - 1.

    Args:
        masses: [R, K + 1], P_0 .. P_K.
        left: [R, K + 1], the sums of max(P_i p_i - q_i, 0).
        num_drafts: [R].
    """
    rest = left + 1 - masses
    with np.errstate(invalid="ignore", divide="ignore"):
        h = np.where(rest == 0, 1, left / rest)
    last = np.arange(masses.shape[1]) == num_drafts[:, None]
    return np.where(last, masses, h)[:, 1:]


def before_first_miss(hit: NDArray[np.bool_]) -> IntArray:
    """[R]: how many columns of hit [R, K] precede the first that is False."""
    count: IntArray = hit.astype(np.int64).cumprod(1).sum(1)
    return count


def longest(hit: NDArray[np.bool_]) -> IntArray:
    """[R]: the largest i with hit[:, i - 1], else 0."""
    count: IntArray = (hit * np.arange(1, hit.shape[1] + 1)).max(1, initial=0)
    return count
