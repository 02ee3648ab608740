"""Rows that a scan reads under a bitmask: compiled where there is a GPU, else interpreted."""

import os

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from drawlot import SamplingParams
from drawlot.kernels.triton.edit_kernels import load_next
from drawlot.kernels.triton.values import grammar_masked_slices, strands_of, words_of
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import INTERPRETED, Pair, V, rows_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def draw_under_a_bitmask() -> None:
    """Rows with edits and without, of which the best token is among the allowed ones, any of the vocabulary."""
    rng = np.random.default_rng(8)
    pair, n = Pair(12), 12
    for row in range(n):
        bias = dict.fromkeys(rng.integers(0, V, 30).tolist(), 2.0) if row % 2 else None
        pair.add(row, SamplingParams(temperature=0.0, logit_bias=bias, logprobs=0), [1])
    bitmask = torch.from_numpy(rng.integers(-(2**31), 2**31, (n, -(-V // 32)), dtype=np.int32))
    # A thread has twice as many tokens of half the width.
    for dtype in (torch.float32, torch.bfloat16):
        logits = torch.from_numpy(rng.normal(0, 1, (n, V)).astype(np.float32)).to(dtype)
        pair.draw(logits, rows_of(range(n), [1] * n), bitmask)


def test_rows_under_a_bitmask() -> None:
    draw_under_a_bitmask()


MASKED = [
    KernelMutant(
        "a bit for a group",
        grammar_masked_slices,
        "* GROUP + tl.arange(0, GROUP)",
        "* GROUP + 0 * tl.arange(0, GROUP)",
    ),
    KernelMutant("the word of the first slice", words_of, "thread * 0 + slice", "thread * 0 + slice * 0"),
    KernelMutant("a thread's strands alike", strands_of, "+ tl.arange(0, SIDE)[", "+ 0 * tl.arange(0, SIDE)["),
    KernelMutant("edited as if allowed", load_next, "ids, mask), x, MINUS_INF)", "ids, mask), x, x)"),
]


@INTERPRETED
@pytest.mark.parametrize("mutant", MASKED, ids=lambda mutant: mutant.name)
def test_wrong_bitmasks_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        draw_under_a_bitmask()
