"""Noise and tokens of fixed points, bit for bit, as tests/golden/make.py once wrote them.

The noise is the contract. The tokens are provisional until the GPU backend has landed: see the rule of the race in
docs/semantics.md, section 2.
"""

import json

import numpy as np
import pytest

from tests.golden import make

NOISE = json.loads((make.HERE / "noise.json").read_text())
TOKENS = json.loads((make.HERE / "tokens.json").read_text())


def as_numpy(number):
    return np.array([number & (2**64 - 1)], np.uint64)


@pytest.mark.parametrize("convert", [as_numpy, make.as_torch])
def test_noise_is_what_it_was(convert):
    assert len(NOISE) >= 200
    for *point, narrow, wide in NOISE:
        assert make.noise(point, convert) == (narrow, wide), point


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize("row", TOKENS, ids=lambda row: str(row["case"]))
def test_tokens_are_what_they_were(row, backend):
    assert make.draw(row, backend) == row["token"]


def test_the_tokens_tell_the_cases_apart():
    assert len({(row["vocab_size"], row["token"]) for row in TOKENS}) > len(TOKENS) // 2
