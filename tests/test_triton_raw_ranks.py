"""Ranks among raw logits of tokens that short lists of edited values have told."""

import os

import numpy as np
import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
import triton.language as tl

from drawlot import LogitsRows, Sampler, SamplingParams
from drawlot.kernels.triton import finish, from_list, ranks, scan
from tests.kernel_mutant import KernelMutant
from tests.sampler_pair import rows_of

# The interpreter computes in NumPy, which warns where a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="for Triton's interpreter")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")

V, N, LIKELY = 10_000, 24, 40
"""79 tiles: the line of a list is drawn through these"""
EDITS = (
    {"repetition_penalty": 1.3},
    {"frequency_penalty": 0.5, "presence_penalty": 0.5},
    {"presence_penalty": -1.0},
    {"repetition_penalty": 1.1, "logit_bias": {7: 3.0, 9000: 15.0, 300: -2.0}},
    {"allowed_token_ids": list(range(0, V, 2)), "frequency_penalty": 0.3},
    {"repetition_penalty": 3.0},
)


def likely_rows(rng: np.random.Generator) -> tuple[np.ndarray, list[np.ndarray]]:
    """Logits of which few are likely, many tied, in a few tiles or in many; and histories that have many of these.

    Three histories in eight have none of them: what is drawn is mostly above all that it touches.
    """
    logits = rng.normal(-6, 1, (N, V)).round(1)
    histories = []
    for i, row in enumerate(logits):
        num_far = 3 if i < N // 2 else LIKELY // 2
        near, far = rng.permutation(512)[: LIKELY - num_far], rng.permutation(V)[:num_far]
        likely = np.concatenate((near, far))
        row[likely] = rng.normal(3, 1, LIKELY).round(1)
        known = likely if i * 5 % 8 < 5 else np.setdiff1d(np.arange(V), likely)
        histories.append(rng.permutation(known)[: rng.integers(2, LIKELY - 5)])
    return logits.astype(np.float32), histories


def compare(*columns: int) -> None:
    """The same draws by the GPU backend and by the CPU's, of requests that want so many top tokens in turn."""
    rng = np.random.default_rng(3)
    logits, histories = likely_rows(rng)
    index, nothing = torch.arange(N), torch.zeros(N, dtype=torch.int64)
    rows = LogitsRows(index, index, nothing, nothing + 30, nothing, torch.arange(N + 1, dtype=torch.int32))
    drawn = []
    for backend, device in (("triton", DEVICE), ("torch", torch.device("cpu"))):
        sampler = Sampler(N, V, device=device, backend=backend)
        for i, history in enumerate(histories):
            filters = ({"top_k": 50, "top_p": 0.98}, {"top_k": 20}, {"top_k": 40}, {})[i % 4]
            params = SamplingParams(
                seed=i, temperature=1.5, logprobs=columns[i // 6 % len(columns)], **filters, **EDITS[i % len(EDITS)]
            )
            sampler.add_request(i, params, history[::2].tolist(), history[1::2].tolist())
        out = sampler(torch.from_numpy(logits).to(device), LogitsRows(*(field.to(device) for field in rows[:6])))
        drawn.append((out.token_ids.cpu(), *(column.cpu() for column in out.logprobs[:3])))
    (tokens, ids, logprobs, ranks), (right_tokens, right_ids, right_logprobs, right_ranks) = drawn
    assert tokens.tolist() == right_tokens.tolist()
    assert ranks.tolist() == right_ranks.tolist(), (ranks != right_ranks).nonzero().flatten().tolist()
    assert ids.tolist() == right_ids.tolist()
    torch.testing.assert_close(logprobs, right_logprobs, rtol=2e-6, atol=2e-6)


def draw_past_two_penalised() -> None:
    """Two neighbours are penalised, of which the first was the best token: what is drawn is the second of the row."""
    logits = torch.full((1, V), -6.0, device=DEVICE)
    logits[0, [0, 1, 200]] = torch.tensor([10.0, 1.0, 5.0], device=DEVICE)
    sampler = Sampler(1, V, device=DEVICE, backend="triton")
    sampler.add_request(0, SamplingParams(top_k=1, seed=0, logprobs=0, repetition_penalty=3.0), [0, 1])
    out = sampler(logits, rows_of([0], [2]))
    assert (out.token_ids.tolist(), out.logprobs.selected_token_ranks.tolist()) == ([200], [2])


def test_a_rank_past_two_penalised() -> None:
    draw_past_two_penalised()


@pytest.mark.parametrize("columns", [(0,), (2,), (0, 2)])
def test_ranks_are_the_references(columns: tuple[int, ...]) -> None:
    compare(*columns)


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken for wide ones, of which raw tiles are loaded later: those take long in the interpreter."""
    monkeypatch.setattr(finish, "_EARLY_TILES", tl.constexpr(64))


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("columns", [(0,), (0, 2)])
def test_ranks_of_wide_rows_are_the_references(columns: tuple[int, ...]) -> None:
    compare(*columns)


WRONG = [
    KernelMutant(
        "edited values",
        ranks._count_in_pairs,
        "(first < LAST_ID)[:, None], True)",
        "(first < LAST_ID)[:, None], False)",
    ),
    KernelMutant(
        "edited values of the last",
        ranks._count_in_pairs,
        "(last > first)[:, None], True)",
        "(last > first)[:, None], False)",
    ),
    KernelMutant("one tile twice", ranks._count_in_pairs, "(last > first)[:, None]", "(last >= first)[:, None]"),
    KernelMutant("two tiles of a line", ranks.count_or_leave_rank, "while most > 2:", "while most > 99:"),
    KernelMutant("the edited value", from_list.draw_from_list, "noises, order_of(raw)", "noises, order_of(value)"),
    KernelMutant(
        "the edited value without a list", ranks.count_or_leave_rank, "own, own >= 0, True)", "own, own >= 0, False)"
    ),
    KernelMutant("too few tiles", ranks.may_have_before, "maxima >= x", "maxima >= x + 1.0"),
    KernelMutant("raw tiles of edited rows", finish.finish_kernel, "((edit_slot >= 0) | (scale", "((row < 0) | (scale"),
    KernelMutant("the list's for all", from_list.draw_from_list, "order_of(raw_of_winner) > bound", "row >= 0"),
    KernelMutant("not above raw ones", scan._edited, "tl.maximum(before, value)", "value"),
    KernelMutant("not above edited ones", scan._edited, "tl.maximum(before, value)", "before"),
    KernelMutant(
        "not above the first of a strand",
        scan._edited,
        "tl.maximum(highest, tl.maximum(before, value))",
        "tl.maximum(before, value)",
    ),
    KernelMutant("counted with itself", ranks._is_before, "tl.where(ids < token,", "tl.where(ids <= token,"),
]


WRONG_IF_WIDE = [
    KernelMutant("raw tiles forgotten", finish.finish_kernel, "raw_log_mass, raw_maxima = raw_law(", "_, _ = raw_law("),
    KernelMutant("the lowest bound", finish.finish_kernel, "tl.max(bounds)", "tl.min(bounds)"),
]


def compare_all() -> None:
    draw_past_two_penalised()
    compare(0)
    compare(0, 2)


@INTERPRETED
@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.name)
def test_wrong_ranks_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        compare_all()


@INTERPRETED
@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("mutant", WRONG_IF_WIDE, ids=lambda mutant: mutant.name)
def test_wrong_ranks_of_wide_rows_are_seen(mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        compare_all()
