"""Tokens drawn through the whole product follow the processed distribution: chi-square against laws known beforehand.

Fixed seeds; with another seed each test would cry wolf once in 10^9 (see drawlot.testing). The laws are designed: in a
random softmax most mistakes would move little mass. What the sample sizes can see is shown by mistakes made on purpose:
each law also fails with one draw in a hundred led astray, and against the law of a likely mistake.
"""

import numpy as np
import pytest

from drawlot import rng
from drawlot.rng import Stream
from drawlot.testing import chi_square
from tests.statistical.draws import EMPTY, counts_of, law_of, tokens_of

N = 1 << 22

COUNTS = np.log(np.arange(1.0, 17.0))
LADDER = -0.7 * np.arange(16)
OPPOSITE = LADDER[::-1].copy()
NEAR_TIES = np.array([0.0, 1e-6, 0.0, -1e-6] * 4)
STEEP = np.array([0.0, -1.0, -2.0, -3.0] * 4)

# The live ids lie on both sides of every border between tiles of 128.
BORDERS = np.full(300, EMPTY)
BORDERS[[0, 127, 128, 255, 299]] = np.log([1.0, 2.0, 3.0, 4.0, 5.0])
# Tiles of unlike mass, whose filtered-out tokens would tip the race between the tiles.
CROWDED = np.full(300, -3.0)
CROWDED[[0, 127, 128, 255, 299]] = np.log([1.0, 2.0, 3.0, 4.0, 5.0])

LAWS = {
    "counts": (COUNTS, {}),
    "ladder": (LADDER, {}),
    "opposite ladder": (OPPOSITE, {}),
    "near ties": (NEAR_TIES, {}),
    "top-k within near ties": (NEAR_TIES, {"top_k": 6}),
    "cold": (COUNTS, {"temperature": 0.5}),
    "hot": (LADDER, {"temperature": 3.0}),
    "top-k": (COUNTS, {"top_k": 11}),
    "top-k within a tie": (STEEP, {"top_k": 6}),
    "top-p": (COUNTS, {"top_p": 0.77}),
    "min-p": (COUNTS, {"min_p": 0.3}),
    "all filters": (LADDER, {"temperature": 2.0, "top_k": 9, "top_p": 0.95, "min_p": 0.08}),
    "tile borders": (BORDERS, {}),
    "filtered at tile borders": (CROWDED, {"top_k": 4}),
}


@pytest.mark.parametrize(("logits", "params"), LAWS.values(), ids=LAWS)
def test_draws_follow_their_law(logits, params):
    law = law_of(logits, **params)
    counts = counts_of(tokens_of(logits, N if len(logits) == 16 else N // 16, **params), law)
    result = chi_square(counts, law)
    assert result.ok, result
    assert not chi_square(leaked(counts, law), law).ok


def leaked(counts, law):
    """A hundredth of the draws goes to the least likely token instead."""
    counts = counts - counts // 100
    counts[np.where(law > 0, law, 2).argmin()] += counts.sum() // 99
    return counts


def test_four_million_draws_follow_their_law():
    law = law_of(COUNTS)
    counts = counts_of(tokens_of(COUNTS, 1 << 22, seed=-1, start=2**40), law)
    result = chi_square(counts, law)
    assert result.ok, result
    assert not chi_square(counts, 0.99 * law + 0.01 / 16).ok
    assert not chi_square(counts, law_of(COUNTS, temperature=1.01)).ok


def test_draws_with_float64_noise_follow_their_law():
    law = law_of(COUNTS)
    result = chi_square(counts_of(tokens_of(COUNTS, 1 << 20, fp64=True), law), law)
    assert result.ok, result


def tokens_race_with_the_stream_of_tiles(patch):
    words = rng.words
    patch.setattr(rng, "words", lambda seed, position, stream, *rest: words(seed, position, Stream.TARGET_TILE, *rest))


def four_tokens_share_a_word(patch):
    words = rng.words
    patch.setattr(rng, "words", lambda *args: (words(*args)[0],) * 4)


def noise_is_rounded_to_eighths(patch):
    for name in ("gumbel", "rough_gumbel"):
        noise = getattr(rng, name)
        patch.setattr(rng, name, lambda uniform, noise=noise: np.round(noise(uniform) * 8) / 8)


@pytest.mark.parametrize(
    ("bug", "law"),
    [
        (tokens_race_with_the_stream_of_tiles, "tile borders"),
        (four_tokens_share_a_word, "counts"),
        (noise_is_rounded_to_eighths, "near ties"),
    ],
)
def test_a_bug_planted_in_the_noise_fails_a_law(monkeypatch, bug, law):
    logits, params = LAWS[law]
    law = law_of(logits, **params)
    bug(monkeypatch)
    assert not chi_square(counts_of(tokens_of(logits, 1 << 17, **params), law), law).ok


def tiles_race_with_unkept_mass(logits, params):
    """The law if the first race saw all tokens of a tile, and only the second one what is kept."""
    unfiltered, kept = law_of(logits), law_of(logits, **params)
    tile = np.arange(len(logits)) // 128
    of_tile = np.bincount(tile, unfiltered) * (np.bincount(tile, kept) > 0)
    law = kept * (of_tile / np.bincount(tile, kept).clip(1e-300))[tile]
    return law / law.sum()


WRONG_LAWS = {
    "tiles race with unkept mass": ("filtered at tile borders", tiles_race_with_unkept_mass),
    "k is one more": ("top-k", lambda logits, p: law_of(logits, top_k=p["top_k"] + 1)),
    "k is one less within a tie": ("top-k within a tie", lambda logits, p: law_of(logits, top_k=p["top_k"] - 1)),
    "ties go to higher ids": ("top-k within a tie", lambda logits, p: law_of(logits[::-1].copy(), **p)[::-1]),
    "the token that crosses p is dropped": ("top-p", lambda logits, p: law_of(logits, top_p=p["top_p"] - 0.06)),
    "temperature is squared": ("hot", lambda logits, p: law_of(logits, temperature=p["temperature"] ** 2)),
    "min-p sees logits before temperature": ("all filters", lambda logits, p: law_of(logits, **{**p, "min_p": 0.2})),
}


@pytest.mark.parametrize(("name", "wrong"), WRONG_LAWS.values(), ids=WRONG_LAWS)
def test_the_laws_of_likely_mistakes_are_told_apart(name, wrong):
    """Were the code wrong in this way and the law right, the same distance would show."""
    logits, params = LAWS[name]
    counts = counts_of(tokens_of(logits, 1 << 15, **params), logits)
    assert chi_square(counts, law_of(logits, **params)).ok
    assert not chi_square(counts, wrong(logits, params)).ok
