"""The order in which a scan reads rows, some by programs ahead: compiled where there is a GPU, else interpreted."""

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
from drawlot.kernels.triton import row_order, scan, workspace
from drawlot.kernels.triton.launch import _unpacked
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import INTERPRETED, Pair, V, few_tokens, rows_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

BLOCKS, REQUESTS = 3, 40
AHEAD = workspace.ROWS_AHEAD


def draw_many_rows() -> None:
    """So many that edited ones among the last are read first, by programs ahead if there are up to 32.

    There are more of them than programs ahead have, and what is taken for the request of a row is that of another one.
    """
    rng = np.random.default_rng(6)
    pair = Pair(34)
    for row in range(34):
        bias = {int(rng.integers(V)): 9.0} if row % 3 == 1 else None
        pair.add(row, SamplingParams(seed=row, logit_bias=bias, logprobs=0), [1])
    requests = rng.permutation([*range(34), -1, -1])
    for n in (36, 33, 32, 17):
        pair.draw(few_tokens(rng, n), rows_of(requests[-n:].tolist(), [1] * n))


def test_edited_rows_come_first_among_the_last() -> None:
    draw_many_rows()


def test_rows_ahead_of_many_that_want_no_raw_logprobs() -> None:
    """None of these rows is lowered, however many there are: programs ahead read some of the last 32."""
    rng = np.random.default_rng(7)
    pair = Pair(44, "processed_logprobs")
    for row in range(44):
        penalty = 1.5 if row % 4 else 1.0
        pair.add(row, SamplingParams(seed=row, top_k=20, repetition_penalty=penalty, logprobs=0), [row, 2, 3])
    pair.draw(few_tokens(rng, 44), rows_of(range(44), [3] * 44))


def states_of(n: int) -> tuple:
    """States of n rows, of requests of which one in two is lowered, half of these by mass, and one in four edited."""
    sampler = Sampler(REQUESTS, V, backend="triton")
    for row in range(REQUESTS):
        by_count, by_mass = {"top_k": 5, "repetition_penalty": 1.2}, {"top_p": 0.9, "repetition_penalty": 1.2}
        edits = ({}, {"logit_bias": {1: 1.0}}, by_count, by_mass)[row % 4]
        sampler.add_request(row, SamplingParams(**edits), [1])
    rows = rows_of([*range(REQUESTS), -1, -1][-n:], [1] * n)
    sampler.apply_staged_writes()
    return _unpacked(sampler._steps._packed_states(rows, n))


def kind_of(row: int) -> int:
    """That of the request which is taken for the row's."""
    return min(row, REQUESTS - 1) % 4


@triton.jit
def order_kernel(_rows, states, read, orders, BLOCKS: tl.constexpr, BY_MASS: tl.constexpr):
    """Program: one block of a row of a scan; stores which row it reads."""
    item = tl.program_id(0)
    tl.store(read + item, row_order.row_in_order(states, item, tl.num_programs(0), orders, BLOCKS, BY_MASS))


def compare_order(n: int, orders: int = 2, *, by_mass: bool = False) -> None:
    """Rows as programs of a scan read them: by the requests with their numbers, whose rows they mostly are."""
    read = torch.empty(BLOCKS * n, dtype=torch.int64)
    order_kernel[(BLOCKS * n,)](None, states_of(n), read, orders, BLOCKS, by_mass)
    first, edited = max(n - 32, 0), (1,) if by_mass else (1, 3)
    last = range(first, n)
    if orders > by_mass:
        last = sorted(last, key=lambda row: (kind_of(row) not in edited, row))
    assert read.view(n, BLOCKS).T.tolist() == [[*range(first), *last]] * BLOCKS


@INTERPRETED
@pytest.mark.parametrize("n", [5, 32, 33, 42])
def test_order_of_the_last_rows(n: int) -> None:
    for orders in range(3):
        for by_mass in (False, True):
            compare_order(n, orders, by_mass=by_mass)


@triton.jit
def ahead_kernel(_rows, states, ahead, is_ahead, n, AHEAD: tl.constexpr):
    """All programs: row by row who reads it."""
    for number in range(AHEAD):
        tl.store(ahead + number, row_order.row_ahead(states, n, number))
    for row in range(42):
        if row < n:
            tl.store(is_ahead + row, row_order.is_ahead(states, n, tl.zeros([], tl.int64) + row, AHEAD))


def compare_ahead(n: int) -> None:
    """Which rows programs ahead read, and that their own programs know of it."""
    ahead, is_ahead = torch.zeros(AHEAD, dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
    ahead_kernel[(1,)](None, states_of(n), ahead, is_ahead, n, AHEAD)
    edited = [row for row in range(max(n - 32, 0), n) if kind_of(row) != 0]
    expected = edited[:AHEAD]
    assert ahead.tolist() == [*expected, *[-1] * (AHEAD - len(expected))]
    assert is_ahead.nonzero().flatten().tolist() == expected


@INTERPRETED
@pytest.mark.parametrize("n", [5, 32, 33, 42])
def test_rows_ahead(n: int) -> None:
    compare_ahead(n)


def draw_one_edited_row() -> None:
    """Of 20 rows the last is edited, and so are requests that have none: no row is read that there is not."""
    rng = np.random.default_rng(8)
    pair = Pair(32)
    for row in range(32):
        pair.add(row, SamplingParams(seed=row, logit_bias={5: 9.0} if row >= 19 else None, logprobs=0), [1])
    pair.draw(few_tokens(rng, 20), rows_of(range(20), [1] * 20))


def test_programs_ahead_of_one_edited_row() -> None:
    draw_one_edited_row()


DRAWS = [
    KernelMutant("none after edited rows", row_order.row_in_order, "tl.sum(edited) + place - before", "place"),
    KernelMutant("edited rows where they are", row_order.row_in_order, "!= 0, before,", "!= 0, place,"),
    KernelMutant("nobody reads a row ahead", scan.scan_block, "is_row = row >= 0", "is_row = row < 0"),
    KernelMutant(
        "rows ahead by no program", scan.scan_block, "(item >= 0) & (slot >= 0)", "(item >= -99) & (slot >= 0)"
    ),
    KernelMutant("one row ahead for all", row_order.row_ahead, "== number)", "== 0)"),
    KernelMutant("rows ahead beyond the last program", row_order.is_ahead, "< AHEAD)", "< 32)"),
]


@INTERPRETED
@pytest.mark.parametrize("mutant", DRAWS, ids=lambda mutant: mutant.name)
def test_wrong_orders_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        draw_many_rows()


def compare_all() -> None:
    draw_one_edited_row()
    for n in (5, 42):
        compare_order(n)
        compare_order(n, by_mass=True)
        compare_order(n, 1, by_mass=True)
        compare_ahead(n)


ORDERS = [
    KernelMutant("requests beyond the last row", row_order._edited_of_last, "rows < num_rows", "rows < 99_999"),
    KernelMutant("rows that there are not", row_order._edited, "(slot >= 0) & exists", "(slot >= 0) | exists"),
    KernelMutant("beyond the last row in an order", row_order.row_in_order, "< num_items\n", "< 99_999\n"),
    KernelMutant("lowered rows, too", row_order._edited, "lowered == 0 if BY_MASS", "lowered >= 0 if BY_MASS"),
    KernelMutant("none by mass", row_order._edited, "| needs_sums)", "| (needs_sums == 0))"),
    KernelMutant("an order for nothing", row_order.row_in_order, "orders > BY_MASS", "orders > 0"),
    KernelMutant("requests that there are not", row_order._edited, "states.num_states - 1", "states.num_states"),
    KernelMutant("rows before the last ones", row_order._edited_of_last, "num_rows - _LAST_ROWS, 0)", "0, 0)"),
    KernelMutant("the first of the last rows", row_order.is_ahead, "place >= 0", "place >= 1"),
]


@INTERPRETED
@pytest.mark.parametrize("mutant", ORDERS, ids=lambda mutant: mutant.name)
def test_rows_that_come_first_for_nothing_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        compare_all()
