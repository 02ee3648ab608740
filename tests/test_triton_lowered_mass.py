"""Rows of top_p whose penalties only lower values: scanned raw, what touched tokens lose is weighed beside that."""

import os
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

import triton.language as tl

from drawlot import Sampler, SamplingParams
from drawlot.kernels.triton import (
    edit_kernels,
    edit_tables,
    finish,
    from_list,
    lost_mass,
    lowered,
    one_read,
    sample,
    states,
    step_sampler,
    sure_winner,
)
from drawlot.kernels.triton.summary import COUNT
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import INTERPRETED, Pair, rows_of
from tests.test_triton_lowered import FEW, PENALTIES, kinds_of_rows, signs_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

MANY = 40_000
"""Of so many tiles few more than 64 tokens are listed"""
TOP_P = 0.9, 0.3, 0.99, 0.6
WANTED = (None, 0, None, 5)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows are too few, since more take long in the interpreter."""
    monkeypatch.setattr(sample, "FEW_ROWS", 0)


def compare(v: int, dtype: torch.dtype = torch.bfloat16) -> set[int]:
    """Steps of all kinds of rows by both; signs of their kinds: -1 was drawn from a list of raw values, 1 laid over."""
    rng = np.random.default_rng(5)
    signs: set[int] = set()
    for shift in range(2):
        logits, histories = zip(*kinds_of_rows(rng, v))
        n, pair = len(logits), Pair(len(logits), vocab_size=v)
        for i, seen in enumerate(histories):
            number, tokens = i + 4 * shift, rng.permutation(seen)
            params = SamplingParams(
                seed=number,
                temperature=(0.8, 1.0, 1.5)[number % 3],
                logprobs=WANTED[number % 4] if shift else 0,
                top_p=TOP_P[number % 4],
                **PENALTIES[number % 5],
            )
            half = len(tokens) // 2
            pair.add(i, params, tokens[:half].tolist(), [*tokens[half:], *tokens[half::3]])
        # So that lists of 64 tokens weigh what most rows keep.
        values = torch.from_numpy(np.stack(logits) * (2 if v > FEW else 1)).to(dtype)
        for step in range(2):
            bitmask = None
            if shift == 1:
                bitmask = torch.from_numpy(rng.integers(-(2**31), 2**31, (n, -(-v // 32))).astype(np.int32))
            out = pair.draw(values, rows_of(range(n), [600 + step] * n), bitmask)
            signs |= signs_of(pair, n)
            pair.commit(range(n), out.token_ids.unsqueeze(1), [1] * n)
    return signs


@pytest.mark.parametrize("v", [FEW, MANY])
def test_rows_of_top_p_are_the_cpus(v: int) -> None:
    assert compare(v) == {-1, 1}


def compare_few() -> None:
    compare(FEW)


def compare_long() -> None:
    """Rows of which more tokens are touched than are laid at a time, of them the first and the last ones likely."""
    rng = np.random.default_rng(4)
    pair, logits = Pair(24, vocab_size=4000), rng.normal(-8, 1, (24, 4000))
    likely = np.concatenate((np.arange(5, 55, 5), np.arange(3900, 3950, 5)))
    for row in range(24):
        logits[row, likely], logits[row, likely - 1] = rng.normal(3, 0.5, 20), rng.normal(3, 0.5, 20)
        params = SamplingParams(seed=row, top_p=0.4 + 0.01 * row, presence_penalty=1.0)
        pair.add(row, params, [], [*range(0, 3900, 5), *likely[10:].tolist()])
    pair.draw(torch.from_numpy(logits).to(torch.bfloat16), rows_of(range(24), [800] * 24))
    assert -1 in signs_of(pair, 24)


def test_more_are_touched_than_are_laid_at_a_time() -> None:
    compare_long()


def test_float32_rows_are_laid_over() -> None:
    assert compare(FEW, torch.float32) == {1}


def test_wide_rows_are_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken for wide ones, of which raw tiles are loaded later: those take long in the interpreter."""
    monkeypatch.setattr(finish, "_EARLY_TILES", tl.constexpr(64))
    assert compare(MANY) == {-1, 1}


def compare_histories() -> None:
    """Rows of one law in which other tokens have been seen, some in the output, some more than once, by both."""
    rng = np.random.default_rng(8)
    pair = Pair(12, vocab_size=MANY)
    logits = torch.from_numpy(rng.normal(0, 6, MANY)).to(torch.bfloat16).repeat(12, 1)
    order = (-logits[0]).argsort().tolist()
    for row in range(12):
        params = SamplingParams(seed=row, top_p=0.5, repetition_penalty=1.05, frequency_penalty=0.3)
        pair.add(row, params, order[row : row + 3])
    for step in range(3):
        pair.draw(logits, rows_of(range(12), [3 + 4 * step] * 12))
        assert signs_of(pair, 12) == {-1}
        # Tokens that were seen and that were not, and twice the same.
        tokens = torch.tensor([[order[row], order[20 + step], order[7 + step], order[20 + step]] for row in range(12)])
        pair.commit(range(12), tokens, [4 - row % 2 for row in range(12)])


def test_what_is_emitted_is_weighed_from_then_on() -> None:
    compare_histories()


@INTERPRETED
def test_rows_that_lose_nearly_all_are_laid_over() -> None:
    wide = KernelMutant("any rest", lost_mass.mass_left, "(left * _SHARPEST >= mass)", "(left >= 0)")
    some = [kind < 0 for kind in compare_lost()]
    assert {*some} == {False, True}
    with wide.planted():
        assert sum(kind < 0 for kind in compare_lost()) > sum(some)


def compare_lost() -> list[int]:
    """Rows with one token above all others, which loses more and more, by both; kinds."""
    pair = Pair(16, vocab_size=FEW)
    logits = torch.from_numpy(np.random.default_rng(3).normal(0, 1, (16, FEW))).to(torch.bfloat16)
    logits[:, 7] = 12.0
    for row in range(16):
        params = SamplingParams(seed=row, temperature=0.7, top_p=0.5, presence_penalty=2.0, frequency_penalty=2.0)
        pair.add(row, params, [], [7] * row)
    pair.draw(logits, rows_of(range(16), [20] * 16))
    return pair.triton._steps._edits._overlay.kind[:16].tolist()


def compare_cuts() -> None:
    """Rows of few likely tokens, many of which have been seen, so that other masses keep others, by both."""
    rng = np.random.default_rng(10)
    pair, logits = Pair(96, vocab_size=FEW), rng.normal(-2, 1, (96, FEW))
    for row in range(96):
        likely = rng.permutation(FEW)[:24]
        logits[row, likely] = rng.normal(5, 0.7, 24)
        params = SamplingParams(
            seed=row, temperature=(0.6, 1.6)[row % 2], top_p=0.3 + 0.005 * row, frequency_penalty=0.4, logprobs=None
        )
        pair.add(row, params, [], rng.choice(likely, 12).tolist())
    pair.draw(torch.from_numpy(logits).to(torch.bfloat16), rows_of(range(96), [12] * 96))
    assert -1 in signs_of(pair, 96)


def test_cuts_of_the_mass_that_is_left() -> None:
    compare_cuts()


def compare_beyond_lists() -> None:
    """Flat rows, whose lists weigh little less than is kept, or little more, by both.

    Tokens of theirs that have been seen fall below the end of the list, where others come before them.
    """
    rng = np.random.default_rng(11)
    pair, logits = Pair(96, vocab_size=FEW), rng.normal(0, 0.5, (96, FEW))
    for row in range(96):
        seen = (-logits[row]).argsort()[8:80:2].tolist()
        pair.add(row, SamplingParams(seed=row, top_p=0.25 + 0.002 * row, presence_penalty=0.7), [], seen)
    pair.draw(torch.from_numpy(logits).to(torch.bfloat16), rows_of(range(96), [40] * 96))
    assert signs_of(pair, 96) == {-1, 1}


def test_tokens_that_fall_below_the_end_of_the_list() -> None:
    compare_beyond_lists()


def compare_short_lists() -> int:
    """Rows whose cuts lie near and far beyond their lists, by both; how many are read whole.

    Tiles have several tokens of the list, some of which have been seen, and some of which fall below its end.
    """
    return short_lists(0.8, 3, 1.0) + short_lists(1.2, 2, 0.6)


def short_lists(least: float, step: int, penalty: float) -> int:
    """Of such rows, normal with deviations from the least on, each so-many-th of the best tokens has been seen."""
    n, generator = 192, torch.Generator().manual_seed(3)
    x = (torch.linspace(least, 2.8, n).unsqueeze(1) * torch.randn(n, 1280, generator=generator)).to(torch.bfloat16)
    top_p = torch.linspace(0.3, 0.99, n)[torch.randperm(n, generator=generator)]
    seen = x.argsort(1, descending=True)[:, 1:90:step]
    pair = Pair(n, vocab_size=1280)
    for row in range(n):
        params = SamplingParams(
            seed=row, temperature=0.8, top_p=top_p[row].item(), presence_penalty=penalty, logprobs=(None, 0)[row % 2]
        )
        pair.add(row, params, [], seen[row].tolist())
    pair.draw(x, rows_of(range(n), [40] * n))
    return int(pair.triton._steps._work.tiles.control[COUNT.value])


@INTERPRETED
def test_most_win_wherever_the_cut_lies() -> None:
    num_whole = compare_short_lists()
    nobody = KernelMutant("nobody wins", sure_winner.keeps_list, "return (listed <= ROOM)", "return (listed < 0)")
    with nobody.planted():
        num_beyond = compare_short_lists()
    assert 0 < num_whole < 0.8 * num_beyond


Far = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""Rows, their seeds, what they have seen, and winners if all were kept"""
PENALTY = 2.0


@cache
def far_rows(step: int) -> Far:
    """Rows of exponentially distributed values, of whose best beyond the list each so-many-th has been seen."""
    v, n = 40_960, 320
    x = -1.5 * torch.rand(n, v, generator=torch.Generator().manual_seed(3)).clamp_(min=2**-24).log()
    x = x.to(torch.bfloat16)
    seen = x.argsort(1, descending=True)[:, 75:300:step]
    sampler = Sampler(n, v, backend="torch")
    for row in range(n):
        sampler.add_request(row, SamplingParams(seed=row, frequency_penalty=PENALTY), [], seen[row].tolist())
    return x, torch.arange(n), seen, sampler(x, rows_of(range(n), [200] * n)).token_ids


def compare_rows(rows: Far, top_p: torch.Tensor) -> int:
    """Such rows by both; how many are read whole."""
    x, seeds, seen, _ = rows
    pair = Pair(len(x), vocab_size=x.shape[1])
    for row, seed in enumerate(seeds.tolist()):
        params = SamplingParams(seed=seed, frequency_penalty=PENALTY, top_p=top_p[row].item())
        pair.add(row, params, [], seen[row].tolist())
    pair.draw(x, rows_of(range(len(x)), [200] * len(x)))
    return int(pair.triton._steps._work.tiles.control[COUNT.value])


def mass_up_to_winners(rows: Far) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each row: how many tokens come before the winner, and which share of the mass up to it."""
    x, _, seen, winner = rows
    y = x.double()
    y = y.scatter(1, seen, y.gather(1, seen) - PENALTY)
    weight, own = y.softmax(1), y.gather(1, winner.unsqueeze(1))
    return (y > own).sum(1), torch.where(y >= own, weight, 0.0).sum(1)


def compare_far() -> int:
    """Rows that would draw a token far beyond their list if all were kept, and keep about as much as it holds."""
    rows = far_rows(8)
    before, _ = mass_up_to_winners(rows)
    which = (before > 80).nonzero().flatten()[:24]
    return compare_rows(tuple(part[which] for part in rows), torch.linspace(0.885, 0.907, 24))


def compare_near() -> int:
    """Rows that draw a token a little beyond their list, which is among the last that they keep."""
    rows = far_rows(2)
    before, mass = mass_up_to_winners(rows)
    which = ((before > 66) & (before < 130)).nonzero().flatten()[:24]
    return compare_rows(tuple(part[which] for part in rows), mass[which] + 1e-3)


@INTERPRETED
def test_what_surely_is_not_kept_does_not_win() -> None:
    num_whole = compare_far()
    once = KernelMutant("once", sure_winner.least_kept, "_NEARLY_ALL *", "0 *")
    with once.planted():
        assert num_whole < compare_far()


def test_what_may_be_kept_is_not_dropped() -> None:
    assert compare_near() > 0


def compare_many_touched() -> None:
    """Requests that touch more tokens than their lists hold, one from the beginning, one later, by both."""
    pair = Pair(3, vocab_size=FEW)
    params = SamplingParams(seed=4, top_p=0.8, repetition_penalty=1.5)
    for row, seen in enumerate(([1, 2], range(9), [*range(8), 3, 3])):
        pair.add(row, params, list(seen))
    logits = torch.from_numpy(np.random.default_rng(6).normal(0, 2, (3, FEW))).to(torch.bfloat16)
    for step, lowered_rows in enumerate(([0, 2], [0], [0], [])):
        pair.draw(logits, rows_of(range(3), [10 + 3 * step] * 3))
        kinds = pair.triton._steps._edits._overlay.kind[:3].tolist()
        assert [row for row in range(3) if kinds[row] < 0] == lowered_rows
        first = 20 + 3 * step
        pair.commit(range(3), torch.tensor([[first, first + 1, first + 2]] * 3), [3, 1, 1])


def few_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of touched tokens hold eight."""
    for module in (edit_tables, step_sampler):
        monkeypatch.setattr(module, "MOST_TOUCHED", 8)


def test_requests_that_touch_too_many_are_laid_over(monkeypatch: pytest.MonkeyPatch) -> None:
    few_touched(monkeypatch)
    compare_many_touched()


def compare_others() -> None:
    """A row with top_k, which needs no list of what it touches, and stays lowered however much that is, by both."""
    pair, logits = Pair(1, vocab_size=FEW), (torch.arange(FEW).reshape(1, FEW) % 257 / 9).to(torch.bfloat16)
    pair.add(0, SamplingParams(seed=1, top_k=20, repetition_penalty=1.2), range(8))
    for step in range(2):
        pair.draw(logits, rows_of([0], [8 + step]))
        assert signs_of(pair, 1) == {-1}
        pair.commit([0], torch.tensor([[20]]), [1])


@INTERPRETED
def test_others_stay_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    few_touched(monkeypatch)
    compare_others()
    all_of_them = KernelMutant("others, too", states.without_list, "& _NEEDS_SUMS) != 0", "& _NEEDS_SUMS) >= 0")
    with all_of_them.planted(), pytest.raises(AssertionError):
        compare_others()


def test_tables_grow() -> None:
    """More requests than there are slots at first: lists move with the rest."""
    pair = Pair(7, vocab_size=MANY)
    logits = torch.from_numpy(np.random.default_rng(2).normal(0, 6, (7, MANY))).to(torch.bfloat16)
    for row in range(7):
        best = logits[row].argsort(descending=True)[: 3 + row].tolist()
        pair.add(row, SamplingParams(seed=row, top_p=0.5, repetition_penalty=1.03), best)
    pair.draw(logits, rows_of(range(7), [9] * 7))
    assert signs_of(pair, 7) == {-1}


WRONG = [
    (
        KernelMutant("all of their mass", lost_mass._weighed, "tl.exp((lower - reference) * scale)", "0.0"),
        compare_cuts,
    ),
    (KernelMutant("at T = 1", lost_mass.weigh_lost, "row, slot, scale)", "row, slot, 1.0)"), compare_cuts),
    (KernelMutant("the first ones alone", lost_mass._weighed, "lost += tl.sum", "lost = tl.sum"), compare_long),
    (
        KernelMutant(
            "relative to another token",
            from_list.draw_from_list,
            "tl.exp((reference - row_max)",
            "tl.exp(0 * (reference - row_max)",
        ),
        compare_cuts,
    ),
    (
        KernelMutant("below the line, too", lowered.lower_list, "tl.where(order_of(x) < line, MINUS_INF, x)", "x + 0"),
        compare_beyond_lists,
    ),
    (
        KernelMutant("not listed", edit_kernels.commit_kernel, "num_touched += tl.sum(is_new)", "num_touched += 0"),
        compare_histories,
    ),
    (
        KernelMutant("listed twice", edit_kernels.commit_kernel, "mask=valid) == 0)", "mask=valid) >= 0)"),
        compare_histories,
    ),
    (
        KernelMutant(
            "never too many", edit_kernels.commit_kernel, "num_touched > tables.most_touched", "num_touched < 0"
        ),
        compare_many_touched,
    ),
    (
        KernelMutant("laid over at T = 1", one_read.begin_row, "tl.where(top_k > 0, 1.0,", "tl.where(top_k >= 0, 1.0,"),
        compare_lost,
    ),
    (
        KernelMutant(
            "no noise of tiles",
            finish.finish_kernel,
            "            if filtered:\n                store_noises",
            "            if filtered == 0:\n                store_noises",
        ),
        compare_short_lists,
    ),
    (
        KernelMutant("raw values race", sure_winner.race_in_any_tile, "if kind < 0:", "if kind < -99:"),
        compare_short_lists,
    ),
    (KernelMutant("dropped ones win", sure_winner.wins_surely, " & (value > MINUS_INF)", ""), compare_short_lists),
    (KernelMutant("touched maxima", sure_winner.look_again, "if kind < 0:", "if kind < -99:"), compare_near),
]


@INTERPRETED
@pytest.mark.parametrize(("mutant", "compared"), WRONG, ids=lambda each: getattr(each, "name", ""))
def test_wrong_masses_are_seen(
    mutant: KernelMutant, compared: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    if compared is compare_many_touched:
        few_touched(monkeypatch)
    with mutant.planted(), pytest.raises(AssertionError):
        compared()
