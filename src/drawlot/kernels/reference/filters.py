"""Stages 3 and 4: temperature, and the filters that keep a prefix of the order (value desc, id asc)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE


class Kept(NamedTuple):
    """The kept set of one row."""

    ids: NDArray[np.int64]
    """The kept ids in order: value descending, then id ascending"""
    z: NDArray[np.float64]
    """(value - maximum) / T of each kept id; their softmax is the processed distribution"""
    margin: float
    """How close a filter came to deciding otherwise, relative"""


def in_order(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """The ids that can be drawn at all, in the order (value desc, id asc)."""
    ids = np.flatnonzero(values > -np.inf)
    return ids[np.argsort(-values[ids].astype(np.float64), kind="stable")]


def kept_set(values: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float) -> Kept:
    """The first max(1, min(n_k, n_m, n_p)) tokens of the order, or at temperature 0 the first; some value is finite."""
    ids = in_order(values)
    if temperature == 0:
        return Kept(ids[:1], np.zeros(1), np.inf)
    x = values[ids].astype(np.float64)
    z = (x - x[0]) / max(temperature, SMALLEST_TEMPERATURE)
    n_k = min(top_k, len(ids)) if top_k > 0 else len(ids)
    n_m, margin = len(ids), np.inf
    if min_p > 0:
        line = np.log(min_p)
        n_m = int((z >= line).sum())
        margin = np.abs(z - line).min() / max(1.0, abs(line))
    n = min(n_k, n_m)
    if top_p < 1:
        mass = np.cumsum(np.exp(z[:n]))
        target = top_p * mass[-1]
        # the first n with mass >= target: the token that crosses p is kept
        n = int(np.argmax(mass >= target)) + 1
        margin = min(margin, np.abs(mass - target).min() / target)
    n = max(1, n)
    return Kept(ids[:n], z[:n], float(margin))
