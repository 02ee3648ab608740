"""Rows of top_p whose cut lies beyond their list, in Triton's interpreter: who wins wherever it lies has won."""

import pytest
import torch

from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows

pytest.importorskip("triton")

from drawlot.kernels.triton import likely_cut, proposal, sample, sure_winner
from drawlot.kernels.triton.listing import NO_KEY
from drawlot.kernels.triton.summary import COUNT, COUNT_OF_UNSURE
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import interpreted, params, workspaces_made

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

V, N = 1280, 96
WIDE_V = 40_960
Case = tuple[torch.Tensor, RowParams, LogprobsWanted, SampledRows]
"""Rows, what is asked of them, and what the reference draws"""


def draw(monkeypatch: pytest.MonkeyPatch, *, mode: str = "raw_logprobs", which: slice = slice(N)) -> tuple[int, int]:
    """As `drawn`, of rows whose cuts lie near and far beyond their lists."""
    # A list of some 70 tokens weighs between a tenth and nearly all of what is kept.
    scale = torch.linspace(0.8, 2.8, N).unsqueeze(1)
    x = scale * torch.randn(N, V, generator=torch.Generator().manual_seed(3))
    rows = params(N, top_p=0.9)
    top_p = torch.linspace(0.3, 0.99, N, dtype=torch.float64)
    rows = rows._replace(top_p=top_p[torch.randperm(N, generator=torch.Generator().manual_seed(4))])
    return drawn(monkeypatch, case_of(x[which], RowParams(*(column[which] for column in rows)), mode))


def case_of(x: torch.Tensor, rows: RowParams, mode: str = "raw_logprobs") -> Case:
    """Rows that all want a logprob and a rank."""
    ids = torch.zeros(len(x), dtype=torch.int64)
    wanted = LogprobsWanted(mode, ids == 0, ids, ids.unsqueeze(1)[:, :0], 0)
    return x, rows, wanted, reference.sample_rows(x, rows, Edits(), wanted)


def drawn(monkeypatch: pytest.MonkeyPatch, case: Case) -> tuple[int, int]:
    """How many of the rows are read whole, and of how many tokens or ranks differ from the reference's."""
    x, rows, wanted, expected = case
    with monkeypatch.context() as patched:
        works = workspaces_made(patched)
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
    KernelMutant("all of its list", sure_winner.wins_surely, "listed // TILE == tile", "listed >= 0"),
    KernelMutant("not of the list", sure_winner.wins_surely, "(found > 0) &", "(found >= 0) &"),
    KernelMutant("rank by value alone", sure_winner.wins_surely, "rank = 1 +", "rank = 0 +"),
)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_wrong_winners_are_seen(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutant.planted():
        assert any(draw(monkeypatch, which=slice(first, first + 12))[1] for first in range(0, N, 12))


def exponential_rows(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows [500, WIDE_V] whose values are exponentially distributed, and who wins each if all are kept [500]."""
    x = -1.5 * torch.rand(500, WIDE_V, generator=torch.Generator().manual_seed(seed)).clamp_(min=2**-24).log()
    return x, reference.sample_rows(x, params(500, top_p=1.0), Edits(), None).token_ids


@pytest.fixture(scope="module")
def far_winners() -> Case:
    """Rows that would draw a token far beyond their list if all were kept, and what the reference draws of them.

    They keep about as much as their lists hold, some 66 tokens; most tokens have a tile of their own.
    """
    x, winner = exponential_rows(3)
    which = ((x > x.gather(1, winner.unsqueeze(1))).sum(1) > 80).nonzero().flatten()[:28]
    rows = RowParams(*(column[which] for column in params(500, top_p=0.9)))
    rows = rows._replace(top_p=torch.linspace(0.885, 0.907, len(which), dtype=torch.float64))
    return case_of(x[which], rows)


def test_what_surely_is_not_kept_does_not_win(monkeypatch: pytest.MonkeyPatch, far_winners: Case) -> None:
    num_whole, wrong = drawn(monkeypatch, far_winners)
    assert wrong == 0
    for mutant in (
        KernelMutant("once", sure_winner.least_kept, "_NEARLY_ALL *", "0 *"),
        KernelMutant("all of its tile", sure_winner.look_again, "order_of(least) - 1", "-0x7F800001"),
        KernelMutant("noise of another tile", sure_winner.look_again, "gumbel(own,", "gumbel(own + 1,"),
    ):
        with mutant.planted():
            num_more, wrong = drawn(monkeypatch, far_winners)
        assert wrong == 0
        assert num_whole < num_more


@pytest.mark.parametrize(
    "mutant",
    [
        KernelMutant("tiles of the list, too", sure_winner.least_kept, "maxima < end", "maxima < LARGEST"),
        KernelMutant("a tenth of the need", sure_winner.least_kept, "reached[i] >= need", "reached[i] >= 0.1 * need"),
    ],
    ids=lambda mutant: mutant.name,
)
def test_what_may_be_kept_is_not_dropped(
    mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch, far_winners: Case
) -> None:
    with mutant.planted():
        assert drawn(monkeypatch, far_winners)[1]


@pytest.fixture(scope="module")
def beyond_lists() -> Case:
    """Rows that end just behind the token they would draw if all were kept, which is none of the list, or before it."""
    (x, winner), rows = exponential_rows(5), params(500, top_p=0.9)
    own = x.gather(1, winner.unsqueeze(1))
    mass = ((x - x.amax(1, keepdim=True)).double() / rows.temperature.unsqueeze(1)).exp()
    before, own_mass = (mass * (x > own)).sum(1), mass.gather(1, winner.unsqueeze(1)).squeeze(1)
    rank = (x > own).sum(1)
    which = ((rank > 80) & (rank < 130)).nonzero().flatten()[:12]
    top_p = (before + torch.tensor([0.5, -0.5]).repeat(250) * own_mass) / mass.sum(1)
    rows = RowParams(*(column[which] for column in rows._replace(top_p=top_p)))
    return case_of(x[which], rows)


def num_unsure(monkeypatch: pytest.MonkeyPatch, case: Case) -> int:
    """Of rows that are read whole, and of which no token is wrong, those that no proposal settles."""
    with monkeypatch.context() as patched:
        works = workspaces_made(patched)
        num_whole, wrong = drawn(monkeypatch, case)
    assert num_whole > 0.8 * len(case[0])
    assert wrong == 0
    return int(works[0].tiles.control[COUNT_OF_UNSURE.value])


BAD_GUESS = KernelMutant("keeps nothing", likely_cut.likely_cut, "row_max + temperature * low", "row_max + 0 * low")


def test_rows_propose_by_their_lists(monkeypatch: pytest.MonkeyPatch, beyond_lists: Case) -> None:
    """Not by a sample: one that says that they keep nothing leaves none of them unsure."""
    no_list = KernelMutant("no list", proposal.propose, "row_mass <= ROOM", "row_mass < 0")
    with BAD_GUESS.planted():
        assert num_unsure(monkeypatch, beyond_lists) == 0
        with no_list.planted():
            assert num_unsure(monkeypatch, beyond_lists) > 0.5 * len(beyond_lists[0])


def test_rows_with_too_many_for_a_list_propose_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 8
    x = torch.full((n, WIDE_V), -30.0)
    # Three alike a tile, so that more reach the line than a list has room for.
    x.view(n, -1, 128)[:, :, 5:8] = 1 + 0.5 * torch.rand(
        n, WIDE_V // 128, 1, generator=torch.Generator().manual_seed(3)
    )
    case = case_of(x, params(n, top_p=0.13))
    unsure = num_unsure(monkeypatch, case)
    any_list = KernelMutant("any list", sure_winner.least_kept, "(need > 0) &", "(need > -1e30) &")
    with any_list.planted():
        assert num_unsure(monkeypatch, case) > unsure


def test_lists_of_many_rows_hold_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows with so many tiles that lists of 96 tokens seldom have no room."""
    for few_rows, v, least in ((32, 66_048, 64), (0, 66_048, 96), (0, WIDE_V, 64)):
        x = torch.randn(3, v, generator=torch.Generator().manual_seed(7)) * 5
        with monkeypatch.context() as patched:
            patched.setattr(sample, "FEW_ROWS", few_rows)
            works = workspaces_made(patched)
            got = sample.sample_rows(x, params(3, top_p=0.5), Edits(), None)
        assert (
            got.token_ids.tolist() == reference.sample_rows(x, params(3, top_p=0.5), Edits(), None).token_ids.tolist()
        )
        listed = (works[0].lists.keys != NO_KEY.value).sum(1)
        assert least <= listed.min() <= listed.max() < least + 28
