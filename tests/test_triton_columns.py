"""Columns of logprobs of rows one by one: nobody beside them leaves something, so that whole rows look for them."""

from typing import Any

import pytest
import torch

from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, LogprobsWanted, SparseBias
from drawlot.kernels.requests import Request, RequestEdits

pytest.importorskip("triton")
import triton
from triton.runtime.errors import InterpreterError

from drawlot.kernels.triton import finish, from_list, ranks, sample, top_of_list, whole_rows
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import params

interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")
pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

V = 17_000
LIKELY = 3 * torch.randn(1, V, generator=torch.Generator().manual_seed(1))
NOT_A_NUMBER = torch.where(torch.arange(V) == 77, torch.nan, LIKELY)
FEW = torch.where(torch.arange(V) % 6000 == 5, LIKELY, -torch.inf)
# The likelier token of two lies in the later tile; the other one is drawn.
TWO = torch.where(torch.arange(V) == 5, 29.9, torch.where(torch.arange(V) == 6005, 30.0, LIKELY))
BIAS = SparseBias(torch.tensor([0]), torch.tensor([9]), torch.tensor([0.5]))
ROWS = {
    "greedy": ({"temperature": 0.0}, LIKELY, Edits()),
    "listed": ({"top_k": 2}, LIKELY, Edits()),
    "edited": ({"top_k": 20}, LIKELY, Edits(bias=BIAS)),
    "whole": ({"top_p": 0.95}, LIKELY / 3, Edits()),
    "unfiltered": ({}, LIKELY, Edits()),
    "unfiltered, warm": ({"temperature": 1.3}, LIKELY, Edits()),
    "unfiltered, flat": ({}, LIKELY / 3, Edits()),
    "unfiltered, peaked": ({"temperature": 0.7}, 4 * LIKELY, Edits()),
    "unfiltered, all equal": ({}, 0 * LIKELY, Edits()),
    "greedy, all equal": ({"temperature": 0.0}, 0 * LIKELY, Edits()),
    "second of two tiles": ({}, TWO, Edits()),
    "greedy, of three tokens": ({"temperature": 0.0}, FEW, Edits()),
    "of three tokens": ({}, FEW, Edits()),
    "bad": ({"top_k": 2}, NOT_A_NUMBER, Edits()),
    "without a token": ({"top_k": 2}, torch.full((1, V), -torch.inf), Edits()),
}


def sample_alone(row: str, num_top: int, mode: str = "raw_logprobs", *, wanted: bool = True) -> None:
    """One row, by both; there are as many columns as a list fills, whatever is asked for."""
    filters, x, edits = ROWS[row]
    asked = LogprobsWanted(mode, torch.tensor([wanted]), torch.tensor([num_top]), torch.zeros(1, 0).long(), 128)
    expected = reference.sample_rows(x, params(1, **filters), edits, asked)
    got = sample.sample_rows(x, params(1, **filters), edits, asked)
    assert torch.equal(got.token_ids, expected.token_ids)
    for of_got, of_expected in zip(got.logprobs, expected.logprobs, strict=True):
        torch.testing.assert_close(of_got, of_expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_top", [0, 3, 30, 90, 120, 128])
@pytest.mark.parametrize("row", ROWS)
def test_columns_of_one_row(row: str, num_top: int) -> None:
    sample_alone(row, num_top)


def one_program_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there are more rows than may have two."""
    monkeypatch.setattr(sample, "rows_aside", lambda device: 0)


@pytest.mark.parametrize("num_top", [3, 30, 90])
@pytest.mark.parametrize("row", [row for row in ROWS if row.startswith(("greedy", "unfiltered", "second", "of three"))])
def test_columns_of_one_row_by_one_program(row: str, num_top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one_program_a_row(monkeypatch)
    sample_alone(row, num_top)


@pytest.mark.parametrize("row", ["listed", "whole", "unfiltered"])
def test_processed_columns_of_one_row(row: str) -> None:
    sample_alone(row, 3, "processed_logprobs")


@pytest.mark.parametrize("row", ROWS)
def test_columns_that_nobody_wants(row: str) -> None:
    sample_alone(row, 0, wanted=False)


LEAVES = "leaves = (is_told | wants_first(all_columns, wants, num_top, ROOM)) == 0"
MUTANTS = [
    ("greedy", 120, KernelMutant("token alone", finish.finish_kernel, LEAVES, "leaves = row < 0")),
    (
        "listed",
        120,
        KernelMutant(
            "few are enough", from_list.draw_from_list, "leaves = (is_told | tells_all) == 0", "leaves = row < 0"
        ),
    ),
    (
        "listed",
        120,
        KernelMutant("few top tokens", from_list.has_top, "result & ((num_top <= listed)", "result & ((num_top > -1)"),
    ),
    (
        "edited",
        90,
        KernelMutant(
            "raw rank alone",
            ranks.count_or_leave_rank,
            "row >= 0, num_top, ROOM)) == 0",
            "row >= 0, num_top, ROOM)) & False",
        ),
    ),
    (
        "edited",
        90,
        KernelMutant(
            "raw tiles of rows edited before", finish.finish_kernel, "rows.edits is not None and", "False and"
        ),
    ),
    (
        "unfiltered, warm",
        0,
        KernelMutant("raw tiles of warm rows", finish.finish_kernel, "| (scale != 1.0) |", "| (row < 0) |"),
    ),
    (
        "bad",
        90,
        KernelMutant(
            "bad and told",
            finish.finish_kernel,
            "decide(tiles, (all_columns is not None) &",
            "decide(tiles, (row < 0) &",
        ),
    ),
    (
        "unfiltered",
        120,
        KernelMutant(
            "other rows",
            whole_rows.whole_rows_kernel,
            "row, end = first.to(tl.int64),",
            "row, end = first.to(tl.int64) + 1,",
        ),
    ),
    (
        "unfiltered, flat",
        120,
        KernelMutant(
            "columns of nobody, where ranks are counted",
            whole_rows.whole_rows_kernel,
            "is_left = tl.load(summary.rank + row) != ALL_COLUMNS",
            "is_left = row < 0",
        ),
    ),
    (
        "second of two tiles",
        30,
        KernelMutant(
            "tiles that are counted first",
            ranks.count_or_leave_rank,
            "before = tl.sum(_count_in_pairs(rows, row, first, last, x, token), 0)",
            "before = tl.sum(num_tiles - num_tiles, 0)",
        ),
    ),
    (
        "unfiltered, flat",
        30,
        KernelMutant("from 0, counted", ranks.ask_for_rank_alone, "ranks + row, 1)", "ranks + row, 0)"),
    ),
    (
        "unfiltered, flat",
        30,
        KernelMutant("rank elsewhere", ranks.count_ranks, "if is_alone:", "if is_alone == 0:"),
    ),
    (
        "greedy, all equal",
        30,
        KernelMutant(
            "leaves nothing",
            top_of_list.put_top_aside,
            "decide(tiles, leaves, ONE_SHARE, OVERLAP)",
            "decide(tiles, row < 0, ONE_SHARE, OVERLAP)",
        ),
    ),
    (
        "unfiltered, all equal",
        30,
        KernelMutant("says it told", top_of_list.put_top_aside, "tl.where(leaves, 0, ALL_COLUMNS)", "ALL_COLUMNS"),
    ),
    (
        "unfiltered, warm",
        30,
        KernelMutant("at another temperature", top_of_list.put_top_aside, "raw_apart(rows, scale, row)", "row < 0"),
    ),
    ("unfiltered", 30, KernelMutant("no first column", top_of_list.put_own, "ids + at, own)", "ids + at, own * 0)")),
    (
        "greedy",
        30,
        KernelMutant("second", finish.finish_kernel, "all_columns.ranks + row, 1)", "all_columns.ranks + row, 2)"),
    ),
]
BY_ONE_PROGRAM = [
    KernelMutant("in no list", top_of_list.put_top, "holds = tl.max((ids == token)", "holds = tl.max((ids == ids)"),
    KernelMutant("no first column", top_of_list.put_top, "if holds == 0:", "if listed < 0:"),
]


@pytest.mark.parametrize(("row", "num_top", "mutant"), MUTANTS, ids=lambda value: getattr(value, "name", None))
def test_wrong_columns_of_one_row_are_seen(row: str, num_top: int, mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        sample_alone(row, num_top)


@pytest.mark.parametrize("mutant", BY_ONE_PROGRAM, ids=lambda mutant: mutant.name)
def test_wrong_columns_by_one_program_are_seen(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    one_program_a_row(monkeypatch)
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError)):
        sample_alone("unfiltered", 30)


@pytest.mark.parametrize(
    ("asks", "expected"),
    [
        ({"temperature": 0.0, "num_top": 5}, True),
        ({"num_top": 96}, True),
        ({"num_top": 97}, False),
        ({"num_top": 0}, False),
        ({"num_top": None}, False),
        ({"num_top": 5, "top_k": 20}, False),
        ({"num_top": 5, "logprob_token_ids": (3,)}, False),
        (
            {"num_top": 5, "edits": RequestEdits((), (), (), 0, {3: 1.0}, 1.0, 0.0, 0.0, (), (), (), looks_back=False)},
            False,
        ),
    ],
)
def test_who_has_rows_with_a_program_for_top_tokens(asks: dict[str, Any], expected: bool) -> None:
    from drawlot.kernels.triton.step_sampler import _has_top_aside

    request = Request(1.0, 1.0, 0.0, 0, 0, 0, None, (), None)
    assert _has_top_aside(request._replace(**asks)) == expected
