"""Rows of top_p whose cut lies beyond their list, in Triton's interpreter: who wins wherever it lies has won."""

import pytest
import torch

from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams

pytest.importorskip("triton")

from drawlot.kernels.triton import sample, sure_winner
from drawlot.kernels.triton.summary import COUNT
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import interpreted, params, workspaces_made

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

V, N = 1280, 96


def draw(monkeypatch: pytest.MonkeyPatch, *, mode: str = "raw_logprobs", which: slice = slice(N)) -> tuple[int, int]:
    """How many of the rows are read whole, and of how many tokens or ranks differ from the reference's."""
    works = workspaces_made(monkeypatch)
    # A list of some 70 tokens weighs between a tenth and nearly all of what is kept.
    scale = torch.linspace(0.8, 2.8, N).unsqueeze(1)
    x = scale * torch.randn(N, V, generator=torch.Generator().manual_seed(3))
    rows = params(N, top_p=0.9)
    top_p = torch.linspace(0.3, 0.99, N, dtype=torch.float64)
    rows = rows._replace(top_p=top_p[torch.randperm(N, generator=torch.Generator().manual_seed(4))])
    x, rows = x[which], RowParams(*(column[which] for column in rows))
    ids = torch.zeros(len(x), dtype=torch.int64)
    wanted = LogprobsWanted(mode, ids == 0, ids, ids.unsqueeze(1)[:, :0], 0)
    expected = reference.sample_rows(x, rows, Edits(), wanted)
    got = sample.sample_rows(x, rows, Edits(), wanted)
    assert got.logprobs is not None
    assert expected.logprobs is not None
    assert got.status.tolist() == expected.status.tolist()
    wrong = (got.token_ids != expected.token_ids) | (got.logprobs[2] != expected.logprobs[2])
    right = ~wrong
    torch.testing.assert_close(got.logprobs[1][right], expected.logprobs[1][right], rtol=1e-5, atol=1e-5)
    return int(works[0].tiles.control[COUNT.value]), int(wrong.sum())


def test_most_win_wherever_the_cut_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    num_whole, wrong = draw(monkeypatch)
    assert wrong == 0
    monkeypatch.undo()
    nobody = KernelMutant("nobody wins", sure_winner.keeps_list, "return (listed <= ROOM)", "return (listed < 0)")
    with nobody.planted():
        num_beyond, wrong = draw(monkeypatch)
    assert wrong == 0
    assert 0 < num_whole < 0.8 * num_beyond


def test_who_asks_for_the_cut_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    num_whole, wrong = draw(monkeypatch, mode="processed_logprobs")
    assert (num_whole > 0, wrong) == (True, 0)


MUTANTS = (
    KernelMutant("no rival", sure_winner.wins_surely, "- _MARGIN > rival", "> MINUS_INF"),
    KernelMutant("all of its tile", sure_winner.wins_surely, "tl.log(mass) + own_noise", "tl.max(keys)"),
    KernelMutant("not of the list", sure_winner.wins_surely, "(own_value > MINUS_INF) &", "(rank > 0) &"),
    KernelMutant("rank by value alone", sure_winner.wins_surely, "rank = 1 +", "rank = 0 +"),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_wrong_winners_are_seen(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutant.planted():
        assert any(draw(monkeypatch, which=slice(first, first + 12))[1] for first in range(0, N, 12))
