"""Acceptance at given rates, whatever the laws: for benchmarks, never lossless."""

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.reference.verification.step import Step


def thresholds(step: Step) -> NDArray[np.float64]:
    """[n]: the rate of each draft, given that those before it are accepted; 0 if a constraint refuses it."""
    return np.array([rate if d >= 0 else 0.0 for d, rate in zip(step.drafts, step.rates)])
