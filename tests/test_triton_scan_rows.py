"""Rows that a scan reads in another order, or under a bitmask: compiled where there is a GPU, else interpreted."""

import os

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from drawlot import Sampler, SamplingParams
from drawlot.kernels.triton import scan
from drawlot.kernels.triton.edit_kernels import load_next
from drawlot.kernels.triton.launch import _unpacked
from drawlot.kernels.triton.scan import _edited_earlier
from drawlot.kernels.triton.values import grammar_masked_slices, strands_of, words_of
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import INTERPRETED, Pair, V, few_tokens, rows_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def draw_many_rows() -> None:
    """So many that of the last ones edited rows are read first: among them such rows, others, and none.

    What is taken for the request of a row is that of another one.
    """
    rng = np.random.default_rng(6)
    pair = Pair(34)
    for row in range(34):
        bias = {int(rng.integers(V)): 9.0} if row % 3 == 1 else None
        pair.add(row, SamplingParams(seed=row, logit_bias=bias, logprobs=0), [1])
    requests = rng.permutation([*range(34), -1, -1])
    for n in (36, 33):
        pair.draw(few_tokens(rng, n), rows_of(requests[-n:].tolist(), [1] * n))


def test_edited_rows_come_first_among_the_last() -> None:
    draw_many_rows()


@triton.jit
def order_kernel(_rows, states, read, BLOCKS: tl.constexpr, LOWERS: tl.constexpr):
    """Program: one block of a row of a scan; stores which row it reads."""
    tl.store(read + tl.program_id(0), scan._edited_earlier(states, tl.program_id(0), BLOCKS, LOWERS))


def compare_order(n: int, *, lowers: bool) -> None:
    """Rows as programs of a scan read them: by the requests with their numbers, whose rows they mostly are."""
    sampler = Sampler(40, V, backend="triton")
    for row in range(40):
        edits = ({}, {"logit_bias": {1: 1.0}}, {"top_k": 5, "repetition_penalty": 1.2})[row % 3]
        sampler.add_request(row, SamplingParams(**edits), [1])
    rows = rows_of([*range(40), -1, -1][-n:], [1] * n)
    sampler.apply_staged_writes()
    states = _unpacked(sampler._steps._packed_states(rows, n))
    read = torch.empty(3 * n, dtype=torch.int64)
    order_kernel[(3 * n,)](None, states, read, 3, lowers)
    first = n if n <= 8 else max(n - 32, 0)
    late = (0, 2) if lowers else (0,)
    last = sorted(range(first, n), key=lambda row: (min(row, 39) % 3 in late, row))
    assert read.view(n, 3).T.tolist() == [[*range(first), *last]] * 3


@INTERPRETED
@pytest.mark.parametrize("lowers", [False, True])
@pytest.mark.parametrize("n", [8, 9, 32, 33, 42])
def test_order_of_the_last_rows(n: int, lowers: bool) -> None:
    compare_order(n, lowers=lowers)


EDITED_EARLIER = [
    KernelMutant("none after edited rows", _edited_earlier, "tl.sum(edits) + place - before", "place"),
    KernelMutant("edited rows where they are", _edited_earlier, "edits != 0, before,", "edits != 0, place,"),
]


@INTERPRETED
@pytest.mark.parametrize("mutant", EDITED_EARLIER, ids=lambda mutant: mutant.name)
def test_wrong_orders_of_the_last_rows_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        draw_many_rows()


def compare_orders() -> None:
    for n in (8, 9, 42):
        compare_order(n, lowers=True)


ORDERS = [
    KernelMutant("rows that there are not", _edited_earlier, "(slot >= 0) & (", "(slot >= 0) | ("),
    KernelMutant("requests beyond the last row", _edited_earlier, "< tl.num_programs(0))", "< 99_999)"),
    KernelMutant("lowered rows, too", _edited_earlier, "edits & (lowered == 0)", "edits & (lowered >= 0)"),
    KernelMutant("few rows, too", _edited_earlier, "> _ROWS_AT_ONCE * NUM_BLOCKS", "> 0"),
    KernelMutant("requests that there are not", _edited_earlier, "states.num_states - 1", "states.num_states"),
]


@INTERPRETED
@pytest.mark.parametrize("mutant", ORDERS, ids=lambda mutant: mutant.name)
def test_rows_that_come_first_for_nothing_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        compare_orders()


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
