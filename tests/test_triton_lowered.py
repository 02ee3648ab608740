"""Rows whose penalties only lower values: scanned raw, edited in their lists, or laid over whole where these fail."""

import os

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

import triton.language as tl

from drawlot import RowStatus, SamplingParams
from drawlot.kernels.requests import Request, RequestEdits
from drawlot.kernels.triton import finish, from_list, lowered, one_read, sample, scan, step_sampler
from drawlot.kernels.triton.lost_mass import MOST_TOUCHED
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import INTERPRETED, Pair, rows_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FEW, MANY = 300, 10_000
"""Of so few tiles a line is drawn through tokens, of 79 through tiles"""
PENALTIES = (
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 3.0, "presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"repetition_penalty": 1.1, "frequency_penalty": 0.4, "presence_penalty": 2.0},
    {"repetition_penalty": 1e38},
)
FILTERS = (
    {"top_k": 50, "top_p": 0.9},
    {"top_k": 1},
    {"top_k": 128, "top_p": 0.99},
    {"top_k": 5, "min_p": 0.05},
    {"top_k": 20},
    {"top_k": 3, "top_p": 0.5, "min_p": 0.2},
)
WANTED = (0, None, 0, 5)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rows are too few, since more take long in the interpreter."""
    monkeypatch.setattr(sample, "FEW_ROWS", 0)


def kinds_of_rows(rng: np.random.Generator, v: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Logits, and tokens that have been seen."""
    x = rng.normal(0, 3, (8, v))
    order = np.argsort(-x, axis=1)
    best_of_groups = np.arange(0, v - v % 4, 4) + x[3, : v - v % 4].reshape(-1, 4).argmax(1)
    few = rng.permutation(v)[:40]
    tied = np.full(v, -4.0)
    tied[rng.permutation(v)[:200]] = 2.0
    return [
        (x[0], few),
        # The best ones, more than are kept, and nearly half of all.
        (x[1], order[1, :30]),
        (x[2], order[2, : v * 2 // 5 : 2]),
        # No tile has an untouched best group; nothing is untouched.
        (x[3], best_of_groups),
        (x[4], np.arange(v)),
        # More reach any line than a list holds.
        (tied, np.flatnonzero(tied > 0)[::3]),
        (np.zeros(v), few),
        (np.sort(x[5]), few),
        (np.round(x[6]), order[6, :60:2]),
        (x[7] - 30.0, order[7, :9]),
    ]


def requests_of(rng: np.random.Generator, pair: Pair, histories: list[np.ndarray], shift: int) -> list[int]:
    """Adds a request for each history, which is prompt and output, and returns positions."""
    positions = []
    for i, seen in enumerate(histories):
        number = i + shift
        seen = rng.permutation(seen)
        params = SamplingParams(
            seed=number,
            temperature=(0.8, 1.5)[number % 2],
            logprobs=WANTED[number % 4] if shift else 0,
            **FILTERS[number % 6],
            **PENALTIES[number % 5],
        )
        half = len(seen) // 2
        pair.add(i, params, seen[:half].tolist(), [*seen[half:], *seen[half::3]])
        positions.append(len(seen) + 1)
    return positions


def compare(v: int, dtype: torch.dtype = torch.float32) -> set[int]:
    """Steps of all kinds of rows by both; signs of their kinds: -1 was drawn from a list of raw values, 1 laid over."""
    rng = np.random.default_rng(4)
    signs: set[int] = set()
    for shift in range(3):
        logits, histories = zip(*kinds_of_rows(rng, v))
        n, pair = len(logits), Pair(len(logits), vocab_size=v)
        positions = requests_of(rng, pair, list(histories), 4 * shift)
        values = torch.from_numpy(np.stack(logits)).to(dtype)
        bitmask = None
        for step in range(2):
            if shift == 2:
                bitmask = torch.from_numpy(rng.integers(-(2**31), 2**31, (n, -(-v // 32))).astype(np.int32))
            out = pair.draw(values, rows_of(range(n), [position + step for position in positions]), bitmask)
            signs |= signs_of(pair, n)
            pair.commit(range(n), out.token_ids.unsqueeze(1), [1] * n)
    return signs


def signs_of(pair: Pair, n: int) -> set[int]:
    """Of the kinds of rows of the last step."""
    return set(pair.triton._steps._edits._overlay.kind[:n].sign().tolist())


@pytest.mark.parametrize("v", [FEW, MANY])
def test_lowered_rows_are_the_cpus(v: int) -> None:
    assert compare(v) == {-1, 1}


def test_lowered_rows_of_half_width_are_the_cpus() -> None:
    assert compare(FEW, torch.bfloat16) == {-1, 1}


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken for wide ones, of which raw tiles are loaded later: those take long in the interpreter."""
    monkeypatch.setattr(finish, "_EARLY_TILES", tl.constexpr(64))


@pytest.mark.usefixtures("wide")
def test_lowered_rows_of_wide_rows_are_the_cpus() -> None:
    assert compare(MANY) == {-1, 1}


def compare_extremes() -> list[int]:
    """Rows whose values penalties make infinite, and bad ones, by both; their status."""
    logits = torch.full((8, FEW), -torch.inf)
    # All seen, all finite, and none once they are tripled; of the next one of them is.
    logits[0, :3] = -3e38
    logits[1, :3] = torch.tensor([-3e38, -1e31, -2e38])
    # The best one is not seen.
    logits[2, :4] = torch.tensor([-3e38, -3e38, -3e38, -3.2e38])
    logits[3, :3] = torch.tensor([1.0, torch.nan, 3.0])
    logits[4, :3] = torch.tensor([1.0, torch.inf, 3.0])
    logits[6:, :3] = torch.tensor([1.0, 2.0, 3.0])
    pair = Pair(7, vocab_size=FEW)
    for row in range(7):
        params = SamplingParams(seed=row, top_k=50, repetition_penalty=3.0, logprobs=(0, 2)[row % 2])
        pair.add(row, params, [0, 1], [2])
    out = pair.draw(logits, rows_of([*range(6), -1, 6], [3] * 8))
    return out.status.tolist()


def test_rows_without_a_finite_value_and_bad_ones() -> None:
    ok, nonfinite, empty = 0, int(RowStatus.NONFINITE), int(RowStatus.EMPTY_SUPPORT)
    expected = [empty, ok, ok, nonfinite, nonfinite, empty, int(RowStatus.SKIPPED), ok]
    assert compare_extremes() == expected


def compare_best_touched() -> None:
    """Rows whose best token has been seen, and is far above what min_p keeps, by both."""
    pair = Pair(24, vocab_size=FEW)
    logits = (-torch.arange(FEW) / 100).repeat(24, 1)
    logits[:, 0], logits[:, 20:40] = 30.0, 25.0
    for row in range(24):
        params = SamplingParams(seed=row, top_k=30, min_p=0.2, repetition_penalty=1.1, logprobs=0)
        pair.add(row, params, [0])
    assert pair.draw(logits, rows_of(range(24), [1] * 24)).token_ids.tolist() == [0] * 24
    assert signs_of(pair, 24) == {-1}


def test_what_min_p_keeps_beside_a_best_token_that_was_seen() -> None:
    compare_best_touched()


def compare_drafts() -> set[int]:
    """Rows behind drafts, which no table has, by both."""
    rng = np.random.default_rng(7)
    pair, drafts = Pair(3, vocab_size=FEW), [[5, 5, 9], [], [7]]
    for row in range(3):
        params = SamplingParams(seed=row, top_k=20, frequency_penalty=2.0, repetition_penalty=2.0, logprobs=0)
        pair.add(row, params, [1, 2], [3])
    logits = torch.from_numpy(rng.normal(0, 1, (7, FEW)).astype(np.float32))
    logits[:, [1, 2, 3, 5, 7, 9]] += 6.0
    pair.draw(logits, rows_of(range(3), [3] * 3, drafts))
    return signs_of(pair, 7)


def test_rows_behind_drafts_are_laid_over() -> None:
    assert compare_drafts() == {-1, 1}


def test_rows_of_few_are_laid_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "FEW_ROWS", 2)
    pair, logits = Pair(3, vocab_size=FEW), torch.arange(3 * FEW).reshape(3, FEW) % 257 / 9
    for row in range(3):
        pair.add(row, SamplingParams(seed=row, top_k=20, repetition_penalty=1.2, logprobs=0), [1, 2])
    for n, sign in ((2, 1), (3, -1)):
        pair.draw(logits[:n], rows_of(range(n), [2] * n))
        assert signs_of(pair, n) == {sign}


def request(
    *, top_k: int = 50, top_p: float = 1.0, min_p: float = 0.0, temperature: float = 1.0, **edits: object
) -> Request:
    of_all = RequestEdits(None, (), (), 0, {}, 1.0, 0.0, 0.0, (), (), (), looks_back=True)
    return Request(temperature, top_p, min_p, top_k, 0, 0, None, (), of_all._replace(**edits))


MANY_TOKENS = tuple(range(MOST_TOUCHED + 1))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (request(repetition=1.2), True),
        (request(frequency=2.0, presence=0.5), True),
        (request(repetition=0.9), False),
        (request(frequency=-0.1, repetition=2.0), False),
        (request(presence=-0.1), False),
        (request(repetition=1e38), True),
        (request(repetition=1.2, top_k=0), False),
        (request(repetition=1.2, top_k=129), False),
        (request(repetition=1.2, top_k=0, top_p=0.9), True),
        (request(repetition=0.9, top_k=0, top_p=0.9), False),
        (request(repetition=1.2, top_k=0, min_p=0.1), False),
        (request(repetition=1.2, top_k=0, top_p=0.9, min_p=0.1), False),
        (request(repetition=1.2, top_k=129, top_p=0.9), False),
        (request(repetition=1.2, top_k=0, top_p=0.9, prompt=MANY_TOKENS[:-1], output=(1, 2)), True),
        (request(repetition=1.2, top_k=0, top_p=0.9, prompt=(1, 2), output=MANY_TOKENS), False),
        (request(repetition=1.2, prompt=MANY_TOKENS), True),
        (request(repetition=1.2, temperature=0.0), False),
        (request(repetition=1.2, bias={3: -1.0}), False),
        (request(repetition=1.2, allowed=(1, 2)), False),
        (request(repetition=1.2, masked=(1, 2)), False),
        (request(repetition=1.2, stop_ids=(1, 2)), False),
        (request(repetition=1.2, bad_words=((1, 2),)), False),
        (request()._replace(edits=None), False),
    ],
)
def test_who_is_lowered(asked: Request, expected: bool) -> None:
    assert step_sampler._is_lowered(asked) is expected


def compare_all() -> None:
    assert compare(FEW) == {-1, 1}
    assert compare(MANY) == {-1, 1}
    test_rows_without_a_finite_value_and_bad_ones()
    test_rows_behind_drafts_are_laid_over()
    compare_best_touched()


WRONG = [
    KernelMutant("touched tokens draw the line", lowered.lows_of, "of_group == 0, maxima", "of_group >= 0, maxima"),
    KernelMutant("another slice", lowered.lows_of, "slice == group // _GROUPS_A_SLICE", "slice == 0"),
    KernelMutant("another group of a slice", lowered.lows_of, "(group % _GROUPS_A_SLICE) * GROUP", "0"),
    KernelMutant(
        "touched tokens draw the line of few", lowered.without_touched, "!= 0, MINUS_INF, x", "< 0, MINUS_INF, x"
    ),
    KernelMutant("drafts forgotten", lowered.may_be_lowered, "== 0", ">= 0"),
    KernelMutant("none is lowered", lowered.may_be_lowered, "== 0", "< 0"),
    KernelMutant("keys of raw values", lowered.lower_list, "key_of(x, token), NO_KEY", "keys, NO_KEY"),
    KernelMutant("counts forgotten", lowered.lower_list, "penalised(x, entry,", "penalised(x, entry & 255,"),
    KernelMutant(
        "the highest untouched one", from_list.draw_from_list, "keys, row_max = lower_list", "keys, _ = lower_list"
    ),
    KernelMutant(
        "a rank among edited ones",
        from_list.draw_from_list,
        "comes_before(raw, token, raw_of",
        "comes_before(value, token, raw_of",
    ),
    KernelMutant("the edited value", from_list.draw_from_list, "                    value = raw\n", ""),
    KernelMutant(
        "no line, no token", finish.finish_kernel, "(kind < 0) & (num_tiles == 0)", "(kind < 0) & (num_tiles < 0)"
    ),
    KernelMutant(
        "a line through nothing",
        finish.finish_kernel,
        "order_of(tl.max(maxima)), row < 0",
        "order_of(tl.max(maxima)), row >= 0",
    ),
    KernelMutant("never laid over", one_read.begin_row, "if kind < 0:", "if kind < -99:"),
    KernelMutant("the raw maximum", one_read.begin_row, "tl.store(summary.floats + row, row_max)", "row_max += 0"),
    KernelMutant("none is empty", one_read._settle, "num == _IS_EMPTY", "num < _IS_EMPTY"),
    KernelMutant("the first tiles alone", scan.lay_row, "first < rows.num_tiles", "first < 32"),
    KernelMutant("still lowered", scan.lay_row, "rows.edits.kind + row, kind", "rows.edits.kind + row, kind - 2"),
]


@INTERPRETED
@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_wrong_lowered_rows_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        compare_all()
