"""Rows whose tokens are all equally likely: each is drawn equally often, wherever it lies and whatever the dtype.

Draws are uniform here, so a preference for low ids, for a tile or for a lane has nothing to hide behind.
"""

import numpy as np
import pytest
import torch

from drawlot.testing import chi_square
from tests.statistical.draws import EMPTY, counts_of, law_of, tokens_of

FEW_OF_MANY = torch.full((5003,), EMPTY)
FEW_OF_MANY[::313] = 0.0

ROWS = {
    "16": (torch.zeros(16), 1 << 19, {}),
    "16, bfloat16": (torch.full((16,), -3.1, dtype=torch.bfloat16), 1 << 19, {}),
    "16, float16, cold": (torch.full((16,), 1e4, dtype=torch.float16), 1 << 18, {"temperature": 1e-30}),
    "300 in tiles of 128, 128 and 44": (torch.zeros(300), 1 << 16, {}),
    "300, bfloat16, the first 200": (torch.full((300,), 7.7, dtype=torch.bfloat16), 1 << 16, {"top_k": 200}),
    "16 of 5003": (FEW_OF_MANY, 1 << 15, {}),
}


@pytest.mark.parametrize(("logits", "n", "params"), ROWS.values(), ids=ROWS)
def test_ties_are_drawn_evenly(logits, n, params):
    law = law_of(logits, **params)
    assert np.ptp(law[law > 0]) < 1e-15
    tokens = tokens_of(logits, n, **params)
    result = chi_square(counts_of(tokens, law), law)
    assert result.ok, result
    # One draw in fifty goes to the first id instead: what a rounding that makes ties would do.
    tokens[::50] = np.flatnonzero(law)[0]
    assert not chi_square(counts_of(tokens, law), law).ok
