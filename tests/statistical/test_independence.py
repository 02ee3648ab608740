"""Draws that must not know of each other: 16 x 16 tables of pairs, uniform and independent.

Each pair of calls differs in one part of the key. A million pairs see a coupling of one pair in a hundred; the
planted bugs, which lose that part of the key, show in 2^16.
"""

from functools import partial

import numpy as np
import pytest
import torch

from drawlot import functional, rng
from drawlot.rng import Stream
from drawlot.testing import chi_square, independence
from tests.statistical.draws import EMPTY, pair_table, tokens_of

EVEN = torch.zeros(16)
PAIRS = 1 << 20
BASE = {"seed": 2024, "first": 0, "choice": 0}

CHANGES = {
    "position": {"first": 1},
    "position, beyond 2^32": {"first": 2**32},
    "seed": {"seed": 2025},
    "seed, high word": {"seed": 2024 + 2**32},
    "choice": {"choice": 1},
}


def tokens_at(n, seed, first, choice):
    """Tokens at every second position: a batch of 2 n rows would hold both members of each neighbouring pair."""
    return tokens_of(EVEN, n, positions=torch.arange(first, first + 2 * n, 2), seed=seed, choice=choice)


@pytest.fixture(scope="module")
def base():
    return tokens_at(PAIRS, **BASE)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_keys_that_differ_in_one_part_draw_independently(base, change):
    other = tokens_at(PAIRS, **{**BASE, **change})
    table = pair_table(base, other)
    result = independence(table)
    assert result.ok, result
    assert chi_square(table, np.full(256, 1 / 256)).ok
    coupled = np.where(np.arange(PAIRS) % 100 == 0, base, other)
    assert not independence(pair_table(base, coupled)).ok


def loses_low_bit_of_position(right, seed, position, *rest):
    return right(seed, position >> np.uint64(1), *rest)


def loses_high_word_of_position(right, seed, position, *rest):
    return right(seed, position & np.uint64(2**32 - 1), *rest)


def loses_low_bit_of_seed(right, seed, *rest):
    return right(seed >> np.uint64(1), *rest)


def loses_high_word_of_seed(right, seed, *rest):
    return right(seed & np.uint64(2**32 - 1), *rest)


def ignores_choice(right, seed, position, stream, block, choice, row):
    return right(seed, position, stream, block, choice * np.uint64(0), row)


@pytest.mark.parametrize(
    ("bug", "change"),
    [
        (loses_low_bit_of_position, "position"),
        (loses_high_word_of_position, "position, beyond 2^32"),
        (loses_low_bit_of_seed, "seed"),
        (loses_high_word_of_seed, "seed, high word"),
        (ignores_choice, "choice"),
    ],
)
def test_a_part_lost_from_the_key_is_seen(monkeypatch, bug, change):
    monkeypatch.setattr(rng, "words", partial(bug, rng.words))
    table = pair_table(tokens_at(1 << 16, **BASE), tokens_at(1 << 16, **{**BASE, **CHANGES[change]}))
    assert not independence(table).ok


def test_noise_keyed_by_batch_row_is_seen(monkeypatch):
    monkeypatch.setattr(functional, "_positions", lambda positions, *_: torch.arange(len(positions)))
    assert not independence(pair_table(tokens_at(1 << 16, **BASE), tokens_at(1 << 16, **{**BASE, "first": 1}))).ok


# 16 tiles whose first 16 tokens are live: the ids of tiles 0 .. 15 and of the tokens of tile 0 are the same numbers.
TILES = torch.full((16, 128), EMPTY)
TILES[:, :16] = 0.0


def tile_and_lane_table(n):
    return pair_table(*np.divmod(tokens_of(TILES.flatten(), n), 128))


def test_the_tile_says_nothing_about_the_token_inside():
    table = tile_and_lane_table(1 << 19)
    result = independence(table)
    assert result.ok, result
    assert chi_square(table, np.full(256, 1 / 256)).ok


def test_a_stream_shared_by_tiles_and_tokens_is_seen(monkeypatch):
    def share_a_stream(right, seed, position, stream, *rest):
        return right(seed, position, Stream.TARGET_TILE, *rest)

    monkeypatch.setattr(rng, "words", partial(share_a_stream, rng.words))
    assert not independence(tile_and_lane_table(1 << 15)).ok


def test_both_widths_of_noise_draw_independently(base):
    n = PAIRS // 4
    wide = tokens_of(EVEN, n, positions=torch.arange(0, 2 * n, 2), fp64=True)
    assert independence(pair_table(base[:n], wide)).ok
