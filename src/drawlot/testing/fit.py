"""Chi-square tests with a stated false-alarm rate: of counts against a law, and of a table against independence."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FALSE_ALARM_RATE = 1e-9
"""A correct sampler fails a test this often, as far as counts are normal; `LEAST_EXPECTED` keeps it below ten times."""

LEAST_EXPECTED = 100.0
"""Bins are merged until each expects this many."""

Floats = NDArray[np.float64]


class Fit(NamedTuple):
    """The outcome of a test."""

    statistic: float
    """chi-square; infinite where a bin of probability 0 was hit"""
    low: float
    """A smaller statistic is too good to be true: noise that was used twice"""
    high: float
    """A larger one is no chance"""
    bins: int
    """after merging"""

    @property
    def ok(self) -> bool:
        """The counts are what the law gives."""
        return self.low <= self.statistic <= self.high


def chi_square(counts: ArrayLike, probabilities: ArrayLike, rate: float = FALSE_ALARM_RATE) -> Fit:
    """Test counts against a law that is known beforehand.

    Bins are merged by what they expect, never by what was counted: the least probable first, until each expects at
    least `LEAST_EXPECTED`. A count in a bin of probability 0 fails at once.

    >>> chi_square([2500, 2480, 5020, 0], [0.25, 0.25, 0.5, 0]).ok
    True
    >>> chi_square([2500, 2480, 5019, 1], [0.25, 0.25, 0.5, 0]).ok
    False

    Args:
        counts: Of each bin.
        probabilities: Of each bin; they sum to 1.
        rate: Of false alarms, both ends together.
    """
    observed, law = np.asarray(counts, np.float64).ravel(), np.asarray(probabilities, np.float64).ravel()
    if observed.shape != law.shape or (law < 0).any() or abs(law.sum() - 1) > 1e-9:
        raise ValueError("probabilities: must sum to 1, one for each count")
    if observed[law == 0].any():
        return Fit(np.inf, 0.0, 0.0, 0)
    observed, expected = _merged(observed[law > 0], law[law > 0] * observed.sum())
    return _fit(observed, expected, len(expected) - 1, rate)


def independence(table: ArrayLike, rate: float = FALSE_ALARM_RATE) -> Fit:
    """Test whether the two columns that `table` [A, B] counts pairs of are independent, whatever their laws.

    Raises:
        ValueError: A cell expects less than `LEAST_EXPECTED`.
    """
    observed = np.asarray(table, np.float64)
    expected = observed.sum(1, keepdims=True) * observed.sum(0, keepdims=True) / observed.sum()
    if expected.min() < LEAST_EXPECTED:
        raise ValueError(f"table: a cell expects {expected.min():.1f} pairs, fewer than {LEAST_EXPECTED:.0f}")
    rows, columns = observed.shape
    return _fit(observed, expected, (rows - 1) * (columns - 1), rate)


def _merged(observed: Floats, expected: Floats) -> tuple[Floats, Floats]:
    order = np.argsort(expected, kind="stable")
    observed, expected = observed[order], expected[order]
    starts, held = [0], 0.0
    for i, e in enumerate(expected):
        if held >= LEAST_EXPECTED:
            starts.append(i)
            held = 0.0
        held += e
    if held < LEAST_EXPECTED and len(starts) > 1:
        starts.pop()
    return np.add.reduceat(observed, starts), np.add.reduceat(expected, starts)


def _fit(observed: Floats, expected: Floats, freedom: int, rate: float) -> Fit:
    from scipy.stats import chi2

    statistic = float(((observed - expected) ** 2 / expected).sum())
    # Few counts can be exactly what is expected by chance: too good is not told from good.
    low = float(chi2.ppf(rate / 2, freedom)) if freedom >= 8 else 0.0
    high = float(chi2.isf(rate / 2, freedom)) if freedom else np.inf
    return Fit(statistic, low, high, observed.size)
