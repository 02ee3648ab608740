"""Rare tokens, without a single draw: the win probability of a race of two, summed over the words of the noise.

A token `gap` nats behind wins if -log(E_lead) < z + G for its own key z + G, rounded to float32 as in the race. The
leader's E_lead is exponential to a part in 2^24, so that this has probability exp(-exp(-(z + G))); its mean over the
2^32 words of G must be 1 / (1 + e^gap). The words that matter are the lowest, about 2^32 e^-gap of them.
"""

import numpy as np
import pytest

from drawlot import rng

GAPS = np.linspace(0, 20.5, 206)
LISTED = 1 << 24  # words summed one by one; more are sampled at the midpoints of a stride
NEGLIGIBLE = 16.0  # words beyond win with less than e^-16


def gumbel(words):
    return rng.gumbel(rng.uniform32(words.astype(np.uint64)))


def gumbel_of_24_bits(words):
    return rng.gumbel(((words >> 8).astype(np.float32) + 0.5) * np.float32(2**-24))


def gumbel_from_the_wrong_end(words):
    """-log(-log(u)) wins near u = 1, where float32 is coarse."""
    u = 1 - rng.uniform32(words).astype(np.float64)
    return -np.log(-np.log(np.minimum(u.astype(np.float32), np.float32(1 - 2**-24))))


def gumbel_of_31_bits(words):
    """As `tl.rand` makes its uniforms, which may be 0: that is moved to the smallest float32, and the cap with it."""
    u = (words >> 1).astype(np.float32) * np.float32(2**-31)
    return rng.gumbel(np.maximum(u, np.float32(2**-126)))


def win_ratios(transform, gaps):
    """The win probability at each gap over the exact one, for a transform from words to noise."""
    most = min(LISTED, words_needed(gaps[0]))
    lowest = np.concatenate([transform(np.arange(at, min(at + 2**20, most))) for at in range(0, most, 2**20)])
    return np.array([win_probability(transform, lowest, gap) * (1 + np.exp(gap)) for gap in gaps])


def words_needed(gap):
    return int(min(2.0**32, 2.0**32 * NEGLIGIBLE / np.exp(gap)))


def win_probability(transform, lowest, gap):
    needed = words_needed(gap)
    if needed <= LISTED:
        noise, stride = lowest[:needed], 1
    else:
        stride = needed >> 20
        noise = transform(np.arange(stride // 2, needed, stride))
    keys = np.float32(-gap) + noise.astype(np.float32)
    return np.exp(-np.exp(-keys.astype(np.float64))).sum() * stride / 2**32


def test_a_token_wins_as_often_as_it_should_however_rare():
    error = np.abs(win_ratios(gumbel, GAPS) - 1)
    assert error.max() < 0.002
    assert error[GAPS < 16].max() < 2e-6


@pytest.mark.parametrize("mutant", [gumbel_of_24_bits, gumbel_from_the_wrong_end, gumbel_of_31_bits])
def test_coarser_noise_is_seen(mutant):
    assert np.abs(win_ratios(mutant, GAPS[GAPS > 16]) - 1).max() > 0.1
