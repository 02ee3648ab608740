"""Columns of logprobs of rows one by one: nobody beside them leaves something, so that whole rows look for them."""

import pytest
import torch

from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, LogprobsWanted, SparseBias

pytest.importorskip("triton")
import triton
from triton.runtime.errors import InterpreterError

from drawlot.kernels.triton import finish, from_list, ranks, sample, whole_rows
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import params

interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")
pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

V = 9000
LIKELY = 3 * torch.randn(1, V, generator=torch.Generator().manual_seed(1))
NOT_A_NUMBER = torch.where(torch.arange(V) == 77, torch.nan, LIKELY)
BIAS = SparseBias(torch.tensor([0]), torch.tensor([9]), torch.tensor([0.5]))
ROWS = {
    "greedy": ({"temperature": 0.0}, LIKELY, Edits()),
    "listed": ({"top_k": 2}, LIKELY, Edits()),
    "edited": ({"top_k": 20}, LIKELY, Edits(bias=BIAS)),
    "whole": ({"top_p": 0.95}, LIKELY / 3, Edits()),
    "unfiltered": ({}, LIKELY, Edits()),
    "bad": ({"top_k": 2}, NOT_A_NUMBER, Edits()),
    "without a token": ({"top_k": 2}, torch.full((1, V), -torch.inf), Edits()),
}


def sample_alone(row: str, num_top: int, mode: str = "raw_logprobs", *, wanted: bool = True) -> None:
    """One row, by both; there are columns for 90 top tokens, whatever is asked for."""
    filters, x, edits = ROWS[row]
    asked = LogprobsWanted(mode, torch.tensor([wanted]), torch.tensor([num_top]), torch.zeros(1, 0).long(), 90)
    expected = reference.sample_rows(x, params(1, **filters), edits, asked)
    got = sample.sample_rows(x, params(1, **filters), edits, asked)
    assert torch.equal(got.token_ids, expected.token_ids)
    for of_got, of_expected in zip(got.logprobs, expected.logprobs, strict=True):
        torch.testing.assert_close(of_got, of_expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("num_top", [0, 3, 90])
@pytest.mark.parametrize("row", ROWS)
def test_columns_of_one_row(row: str, num_top: int) -> None:
    sample_alone(row, num_top)


@pytest.mark.parametrize("row", ["listed", "whole", "unfiltered"])
def test_processed_columns_of_one_row(row: str) -> None:
    sample_alone(row, 3, "processed_logprobs")


@pytest.mark.parametrize("row", ROWS)
def test_columns_that_nobody_wants(row: str) -> None:
    sample_alone(row, 0, wanted=False)


MUTANTS = {
    "greedy": KernelMutant(
        "token alone",
        finish.finish_kernel,
        "leaves = (is_told | wants_first(all_columns, wants, num_top, ROOM)) == 0",
        "leaves = row < 0",
    ),
    "listed": KernelMutant(
        "few are enough", from_list.draw_from_list, "leaves = (is_told | tells_all) == 0", "leaves = row < 0"
    ),
    "edited": KernelMutant(
        "raw rank alone",
        ranks.rank_by_raw,
        "leaves = wants_first(all_columns, row >= 0, num_top, ROOM) == 0",
        "leaves = row < 0",
    ),
    "bad": KernelMutant(
        "bad and told", finish.finish_kernel, "decide(tiles, (all_columns is not None) &", "decide(tiles, (row < 0) &"
    ),
    "unfiltered": KernelMutant(
        "other rows",
        whole_rows.whole_rows_kernel,
        "row, end = first.to(tl.int64), tl",
        "row, end = first.to(tl.int64) + 1, tl",
    ),
}


@pytest.mark.parametrize("row", MUTANTS)
def test_columns_that_are_not_left_are_seen(row: str) -> None:
    with MUTANTS[row].planted(), pytest.raises((AssertionError, InterpreterError)):
        sample_alone(row, 90)
