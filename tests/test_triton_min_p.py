"""Rows of min_p alone, in Triton's interpreter: a list that reaches its line holds all that they keep, and no more."""

import math

import pytest
import torch

from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, LogprobsWanted

pytest.importorskip("triton")

from drawlot.kernels.triton import from_list, sample
from drawlot.kernels.triton.listing import NO_KEY
from drawlot.kernels.triton.summary import LISTED, WHOLE
from tests.kernel_mutant import KernelMutant
from tests.test_triton_whole_rows import interpreted, params, workspaces_made

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

V = 200 * 128
KEPT = [1, 63, 64, 65, 100, 127, 128, 129, 160]
LEAST, T = 0.05, 0.8


def draw(
    monkeypatch: pytest.MonkeyPatch, kept: list[int], mode: str = "raw_logprobs", num_top: int = 0, **filters: float
) -> tuple[list[int], list[int], int]:
    """Of rows that keep so many tokens each, all in tiles of their own: paths, how many are listed; how many are wrong.

    filters: others than min_p.
    """
    works = workspaces_made(monkeypatch)
    distance = -T * math.log(LEAST)
    generator = torch.Generator().manual_seed(5)
    # Below the line, of the same tiles or of others.
    x = -1.001 * distance - 6 * torch.rand(len(kept), V, generator=generator)
    for row, count in zip(x, kept, strict=True):
        tiles = torch.randperm(V // 128, generator=generator)[:count]
        row[tiles * 128 + torch.randint(128, (count,), generator=generator)] = torch.linspace(
            0, -0.999 * distance, count
        )
    # At any height of the logits.
    x += 100 * torch.randn(len(kept), 1, generator=generator)
    ids = torch.zeros(len(kept), dtype=torch.int64)
    wanted = LogprobsWanted(mode, ids == 0, ids + num_top, ids.unsqueeze(1)[:, :0], num_top)
    rows = params(len(kept), temperature=T, **(filters or {"min_p": LEAST}))
    expected, got = (kernels.sample_rows(x, rows, Edits(), wanted) for kernels in (reference, sample))
    assert expected.logprobs is not None
    assert got.logprobs is not None
    wrong = (got.token_ids != expected.token_ids) | (got.logprobs[2] != expected.logprobs[2])
    wrong |= (got.logprobs[0] != expected.logprobs[0]).any(1)
    torch.testing.assert_close(got.logprobs[1][~wrong], expected.logprobs[1][~wrong], rtol=1e-5, atol=1e-5)
    listed = (works[0].lists.keys != NO_KEY.value).sum(1)
    return works[0].summary.path.tolist(), listed.tolist(), int(wrong.sum())


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_as_many_tokens_as_a_list_holds_are_listed(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, listed, wrong = draw(monkeypatch, KEPT, mode)
    assert wrong == 0
    assert paths == [LISTED.value if count <= 128 else WHOLE.value for count in KEPT]
    assert listed[:7] == KEPT[:7]


@pytest.mark.parametrize("num_top", [1, 5, 70])
def test_a_list_holds_the_top_tokens_that_are_wanted(num_top: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, listed, wrong = draw(monkeypatch, KEPT[:6], num_top=num_top)
    assert (paths, wrong) == ([LISTED.value] * 6, 0)
    assert min(listed) >= num_top


@pytest.mark.parametrize("top_k", [1, 2, 50])
def test_rows_with_top_k_look_for_their_line(top_k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    paths, listed, wrong = draw(monkeypatch, KEPT, top_k=top_k)
    assert (paths, wrong) == ([LISTED.value] * len(KEPT), 0)
    assert top_k <= min(listed) <= max(listed) < 2 * top_k + 13


def test_one_token_without_a_line_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    none = KernelMutant("none for one", from_list.begin_list, "tl.where(need > 0, need, found[2])", "found[2]")
    with none.planted():
        paths, _, _ = draw(monkeypatch, KEPT, top_k=1)
    assert WHOLE.value in paths


SHORTER = KernelMutant("line too high", from_list.below_min_p, "tl.log(min_p", "0.5 * tl.log(min_p")


@pytest.mark.parametrize(
    "mutant",
    [
        KernelMutant("as without", from_list.begin_list, "tl.minimum(line, least), least)", "line, line)"),
        KernelMutant("unsure", from_list.cut_list, "| (line[1] < least)", ""),
        SHORTER,
    ],
    ids=lambda mutant: mutant.name,
)
def test_what_a_shorter_list_lacks_is_read_again(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    with mutant.planted():
        paths, _, wrong = draw(monkeypatch, KEPT)
    assert wrong == 0
    assert WHOLE.value in paths[4:7]


def test_a_shorter_list_that_is_taken_for_all_draws_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_for_all = KernelMutant("all", from_list.cut_list, "(line[1] < least)", "(line[1] < 0)")
    with SHORTER.planted(), taken_for_all.planted():
        _, _, wrong = draw(monkeypatch, [128] * 24)
    assert wrong > 0
