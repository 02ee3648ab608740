"""Fits the polynomial of `drawlot.rng`: log(1 + f) = f + f^2 Q(f) on [sqrt(1/2) - 1, sqrt(2) - 1].

Lawson's iteration of weighted least squares towards the smallest relative error, then rounding to float32 one
coefficient at a time, from the constant term up, refitting the rest. Prints the coefficients of Q, lowest first.
"""

import argparse

import numpy as np


def fit(degree: int, nodes: int = 4001, rounds: int = 200) -> list[float]:
    """Coefficients of Q, lowest first, each a float32 value."""
    low, high = np.sqrt(0.5) - 1, np.sqrt(2.0) - 1
    angle = np.pi * (np.arange(nodes) + 0.5) / nodes
    f = (low + high) / 2 + (high - low) / 2 * np.cos(angle)
    f = f[np.abs(f) > 1e-4]
    exact = np.log1p(f)
    columns = np.stack([f ** (2 + i) / exact for i in range(degree + 1)], 1)
    wanted = (exact - f) / exact
    fixed: list[float] = []
    for i in range(degree + 1):
        weights = np.ones_like(f)
        rest = wanted - columns[:, :i] @ np.array(fixed, dtype=np.float64)
        for _ in range(rounds):
            scale = np.sqrt(weights)
            solution, *_ = np.linalg.lstsq(columns[:, i:] * scale[:, None], rest * scale, rcond=None)
            error = np.abs(columns[:, i:] @ solution - rest)
            weights = weights * error
            weights /= weights.sum()
        fixed.append(float(np.float32(solution[0])))
    error = np.abs(columns @ np.array(fixed) - wanted).max()
    print(f"degree {degree}: largest relative error {error:.2e} ({error * 2**24:.2f} units of 2^-24)")
    return fixed


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--degree", type=int, default=8, help="degree of Q (default 8)")
    for coefficient in fit(parser.parse_args().degree):
        print(repr(coefficient), float(coefficient).hex())
