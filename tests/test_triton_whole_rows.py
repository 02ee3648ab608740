"""Rows that no short list can cut, in Triton's interpreter: the reference's tokens, wherever the cut lies."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from drawlot.kernels import reference
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SparseBias
from tests.test_backends import NEAR_TIE

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

from drawlot.kernels.triton import sample, weigh_proposals
from drawlot.kernels.triton.arguments import Drawn
from drawlot.kernels.triton.workspace import Workspace, rows_of
from tests import whole_row_mutants
from tests.kernel_mutant import KernelMutant

interpreted = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")
pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

V = 9000
ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "flat": lambda x: x,
    "peaked, in bfloat16": lambda x: (3 * x).bfloat16().float(),
    "an outlier before tokens in order": lambda x: x.sort(descending=True).values + 50.0 * (torch.arange(V) == 0),
    "hundreds equal": lambda x: (2 * x).round() / 2,
    "tiles of one token beside flat ones": lambda x: torch.where(
        torch.arange(V) % 256 < 128, x / 9, 14.5 * (torch.arange(V) % 128 == 0)
    ),
    "infinitely far from the lowest float": lambda x: torch.where(
        torch.arange(V) % 361 == 0, 1e34, torch.where(torch.arange(V) % 11 == 0, 1e4, -torch.inf)
    ),
}
FILTERS: dict[str, dict[str, float]] = {
    "top-p": {"temperature": 1.5, "top_p": 0.95},
    "half": {"temperature": 100.0, "top_p": 0.5},
    "almost all": {"top_p": 1 - 1e-9},
    "top-k": {"top_k": 1000, "temperature": 1.7},
    "top-k and top-p": {"top_k": 1000, "top_p": 0.9, "temperature": 0.7},
    "all but three": {"top_k": V - 3},
    "min-p": {"min_p": 0.01, "temperature": 1.2},
    "min-p and top-p": {"min_p": 0.02, "top_p": 0.9, "temperature": 1.2},
    "min-p and half": {"min_p": 0.02, "top_p": 0.5, "temperature": 0.7},
    "min-p and top-k": {"min_p": 0.05, "top_k": 1000},
    "nearly all": {"top_p": 0.993},
    "nearly all, warm": {"top_k": V - 3, "temperature": 3.0},
}


def params(n: int, **given: float) -> RowParams:
    """Parameters of n rows with seeds of their own."""
    defaults: dict[str, float] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    value = {**defaults, **given}
    zeros = torch.zeros(n, dtype=torch.int64)
    return RowParams(
        torch.full((n,), value["temperature"], dtype=torch.float64),
        torch.full((n,), int(value["top_k"])),
        torch.full((n,), value["top_p"], dtype=torch.float64),
        torch.full((n,), value["min_p"], dtype=torch.float64),
        torch.arange(n) + 11,
        zeros + 5,
        zeros,
        zeros,
    )


def wanted_of_all(n: int, mode: str = "processed_logprobs") -> LogprobsWanted:
    """Each row's token alone; of the processed law it takes the row's cut."""
    zeros = torch.zeros(n, dtype=torch.int64)
    return LogprobsWanted(mode, zeros == 0, zeros, zeros.unsqueeze(1)[:, :0], 0)


# Of raw logprobs, or of none, the token may be known without an exact cut.
MODES = ("processed_logprobs", "raw_logprobs", None)


def compare(x: Tensor, rows: RowParams, *, wide: bool = False, modes: tuple[str | None, ...] = MODES) -> None:
    """Tokens, logprobs and ranks, near-ties apart."""
    from drawlot.kernels.triton import sample_rows

    for mode in modes:
        wanted = None if mode is None else wanted_of_all(len(x), mode)
        exact = reference.sample_rows(x, rows, Edits(), wanted, wide=wide)
        fast = sample_rows(x, rows, Edits(), wanted, wide=wide)
        assert exact.margin is not None
        sure = exact.margin >= NEAR_TIE
        assert bool(sure.any()) or float(rows.top_p[0]) > 1 - 1e-8
        assert fast.status.tolist() == exact.status.tolist()
        assert fast.token_ids[sure].tolist() == exact.token_ids[sure].tolist()
        if mode is not None:
            assert exact.logprobs is not None
            assert fast.logprobs is not None
            assert fast.logprobs[0][sure].tolist() == exact.logprobs[0][sure].tolist()
            assert fast.logprobs[2][sure].tolist() == exact.logprobs[2][sure].tolist()
            torch.testing.assert_close(fast.logprobs[1][sure], exact.logprobs[1][sure], rtol=2e-6, atol=2e-6)


def rows_of_all_kinds(filters: str) -> Tensor:
    noise = torch.randn(len(ROWS), V, generator=torch.Generator().manual_seed(len(filters)))
    return torch.stack([make(row) for make, row in zip(ROWS.values(), noise, strict=True)])


@pytest.mark.parametrize("filters", FILTERS)
def test_whole_rows_are_cut_as_the_reference_cuts_them(filters: str) -> None:
    x = rows_of_all_kinds(filters)
    compare(x, params(len(x), **FILTERS[filters]), wide=filters == "half")


def make_lists_useless(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lists of whole rows, so that their programs read them again and again."""
    from drawlot.kernels.triton import bracket, sample, workspace

    if why == "no room for the list":
        for module in (sample, workspace):
            monkeypatch.setattr(module, "long_room", lambda num_tiles: 256)
    else:
        assert why == "the cut lies elsewhere"
        monkeypatch.setattr(bracket, "_ERRORS", tl.constexpr(-0.5))
        monkeypatch.setattr(bracket, "_LEAST", tl.constexpr(0.0))


def workspaces_made(monkeypatch: pytest.MonkeyPatch) -> list[Workspace]:
    """Those of later calls, which fill the list."""
    made: list[Workspace] = []
    of = Workspace.of

    def spy(*args: Any, **kwargs: Any) -> Workspace:
        made.append(of(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(Workspace, "of", spy)
    return made


def compare_in(
    world: str, monkeypatch: pytest.MonkeyPatch, *, num_rows: int = 48, modes: tuple[str | None, ...] = MODES
) -> None:
    """As `compare`, of rows under filters, whose list may be of no use, or end at values that tokens have."""
    from drawlot.kernels.triton import likely_cut, proposal, whole_rows

    *why, filters = world.split(": ")
    x = rows_of_all_kinds(filters)
    if why == ["few tokens, all equal"]:
        x = torch.zeros(48, 387)
    elif why and why[0].startswith("a low"):
        right = likely_cut.likely_cut

        def elsewhere(*args: Any) -> Any:
            low, likely = right(*args)
            return (low - 9.0, likely) if "very" in world else (likely + 0.5, likely + 1.0)

        monkeypatch.setattr(proposal, "likely_cut", elsewhere)
        monkeypatch.setattr(proposal, "_MOST_DROPPED", tl.constexpr(256))
        # A cut takes much of some tiles, and little of others.
        generator = torch.Generator().manual_seed(33)
        levels = torch.randn(32, 100, generator=generator).repeat_interleave(128, dim=1)
        x = torch.randn(levels.shape, generator=generator) + levels
    elif why == ["many equal"]:
        x = torch.randn(24, V, generator=torch.Generator().manual_seed(3)).round()
    elif why == ["borders that are tokens"]:
        ordered = x.sort(descending=True).values

        def borders(rows: Any, tiles: Any, row: Any, *_: Any) -> Any:
            low, high = (float(ordered[int(row.handle.data.item()), place]) for place in (3000, 400))
            low, high = tl.full([], low, tl.float32), tl.full([], high, tl.float32)
            return low, high, row < 0, row * 0

        monkeypatch.setattr(whole_rows, "sample_bracket", borders)
    elif why:
        make_lists_useless(why[0], monkeypatch)
    x = x[:num_rows]
    compare(x, params(len(x), **FILTERS[filters]), modes=modes)


@pytest.mark.parametrize("world", sorted({mutant.world for mutant in whole_row_mutants.ALL} - set(FILTERS)))
def test_right_kernels_are_right_wherever_the_list_ends(world: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compare_in(world, monkeypatch)


@pytest.mark.parametrize("mutant", whole_row_mutants.ALL, ids=lambda mutant: mutant.name)
def test_wrong_kernels_are_seen(mutant: KernelMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = r"assert|Tensor-likes|OutOfBoundsError"
    # Nothing is proposed where the cut is asked for.
    modes = MODES[1:] if mutant in whole_row_mutants.OF_PROPOSALS else MODES
    # Equal neighbours decide few rows.
    num_rows = 24 if mutant.world == "many equal: half" else 12
    with mutant.planted(), pytest.raises((AssertionError, InterpreterError), match=seen):
        compare_in(mutant.world, monkeypatch, num_rows=num_rows, modes=modes)


@triton.jit
def equals_kernel(rows, row, found, needed_id: tl.constexpr, token: tl.constexpr):
    x, own_x = tl.load(rows.logits + row * rows.stride + needed_id), tl.load(rows.logits + row * rows.stride + token)
    masses, number = weigh_proposals._equals_before(rows, row, (x, needed_id, own_x, token), 1.0, 1.0)
    tl.store(found, masses)
    tl.store(found + 1, number)


def test_equal_neighbours_of_a_token_come_before_it_if_their_ids_are_lower() -> None:
    # Whether so little is forgotten decides one row in hundreds of equal tokens, so each is looked at by itself.
    x = torch.tensor([[0.5, 1, 1, 1, 1, 0.5, 1, 0.5, 1, 1, 0.5]])
    rows, mass = rows_of(x, Edits()), [round(2.0**40 * math.exp(value - 1)) for value in x[0].tolist()]
    for needed, token in itertools.product(range(x.shape[1]), repeat=2):
        found = torch.zeros(2, dtype=torch.int64)
        equals_kernel[(1,)](rows, 0, found, needed, token)
        before = [mass[i] for i in range(needed // 4 * 4, needed) if x[0, i] == x[0, needed]]
        assert abs(int(found[0]) - sum(before)) <= 2.0**40 * 1e-6
        assert int(found[1]) == sum(x[0, i] == x[0, token] for i in range(token // 4 * 4, token))


def test_temperatures_near_the_largest_float_draw_as_the_reference_does() -> None:
    # Values that a cut may have reach beyond float32 then, where steps towards it are infinite.
    from drawlot.kernels.triton import sample_rows

    x = torch.randn(6, 1500, generator=torch.Generator().manual_seed(5))
    rows, wanted = params(6, temperature=1e300, top_p=0.4712), wanted_of_all(6, "raw_logprobs")
    exact = reference.sample_rows(x, rows, Edits(), wanted)
    fast = sample_rows(x, rows, Edits(), wanted)
    assert exact.margin is not None
    assert bool((exact.margin >= NEAR_TIE).all())
    assert fast.token_ids.tolist() == exact.token_ids.tolist()


def test_a_filter_that_keeps_everything_changes_no_bit() -> None:
    from drawlot.kernels.triton import sample_rows

    x = torch.randn(4, V, generator=torch.Generator().manual_seed(5))
    zeros = torch.zeros(4, dtype=torch.int64)
    nothing = torch.zeros((4, 0), dtype=torch.int64)
    wanted = LogprobsWanted("processed_logprobs", torch.ones(4, dtype=torch.bool), zeros, nothing, 0)
    plain = sample_rows(x, params(4, temperature=0.9), Edits(), wanted)
    filtered = sample_rows(x, params(4, temperature=0.9, min_p=1e-300), Edits(), wanted)
    assert plain.logprobs is not None
    assert filtered.logprobs is not None
    assert filtered.token_ids.tolist() == plain.token_ids.tolist()
    assert torch.equal(filtered.logprobs[1], plain.logprobs[1])


@pytest.mark.parametrize("why", ["the cut lies elsewhere", "no room for the list"])
def test_rows_whose_list_is_of_no_use_are_read_again(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from drawlot.kernels.triton import whole_row

    calls = []
    slow_cut = whole_row.slow_cut

    def spy(*args: Any) -> Any:
        calls.append(args)
        return slow_cut(*args)

    monkeypatch.setattr(whole_row, "slow_cut", spy)
    make_lists_useless(why, monkeypatch)
    x = torch.randn(3, V, generator=torch.Generator().manual_seed(3))
    for filters in ("top-p", "top-k", "min-p and top-p", "top-k and top-p"):
        compare(x, params(3, **FILTERS[filters]))
    # Of one limit alone a list has few, for which there is room.
    assert len(calls) >= (5 if why == "the cut lies elsewhere" else 3)


def test_a_sample_says_where_the_cut_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within few tokens of it, and hardly ever elsewhere: of 9 cuts, each missed once in 70,000 times, none is."""
    from drawlot.kernels.triton import sample

    made = workspaces_made(monkeypatch)
    x = torch.randn(3, 20_000, generator=torch.Generator().manual_seed(4))
    for filters, most in (("top-p", 0.12), ("top-k", 0.1), ("min-p and top-p", 0.2)):
        sample.sample_rows(x, params(3, **FILTERS[filters]), Edits(), wanted_of_all(3))
        whole, summary = made[-1].whole, made[-1].summary
        assert bool((whole.low <= summary.cut_value).all())
        assert bool((summary.cut_value < whole.high).all())
        assert float(whole.listed.max()) / 20_000 < most, filters


def test_most_tokens_are_known_before_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of rows without top_k; of 48 that are cut by top_p none is left, where about one in a thousand is."""
    from drawlot.kernels.triton import sample
    from drawlot.kernels.triton.summary import COUNT, COUNT_OF_UNSURE

    made = workspaces_made(monkeypatch)
    n = 24
    x = torch.randn(n, 20_000, generator=torch.Generator().manual_seed(6))
    for filters, unsure in (("top-p", 0), ("min-p", 0), ("top-k", n), ("top-k and top-p", n)):
        sample.sample_rows(x, params(n, **FILTERS[filters]), Edits(), None)
        control = made[-1].tiles.control.tolist()
        assert (control[COUNT.value], control[COUNT_OF_UNSURE.value]) == (n, unsure), filters


@pytest.mark.parametrize("asked", ["nothing", "logprobs", "logprobs of edited rows"])
@pytest.mark.parametrize("vocab_size", [100, V])
def test_each_row_is_decided_once(vocab_size: int, asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # On a GPU whole rows wait for that: a row that is not counted would hang them, one counted twice would be left out.
    from drawlot.kernels.triton import sample
    from drawlot.kernels.triton.summary import COUNT, COUNT_OF_RANKS, UNDECIDED

    works = workspaces_made(monkeypatch)
    kinds: list[dict[str, float]] = [
        {"temperature": 0.0},
        {},
        {"top_k": 20},
        {"top_p": 0.95},
        {"top_p": 0.95, "top_k": 5},
    ]
    # A row of each kind, then a bad one and one without a token of each.
    n = len(kinds)
    parts = [torch.cat(columns) for columns in zip(*(params(1, **kind) for kind in kinds), strict=True)]
    rows = RowParams(*(part.repeat(3) for part in parts))
    x = torch.randn(3 * n, vocab_size, generator=torch.Generator().manual_seed(1))
    x[n : 2 * n, 77], x[2 * n :] = torch.nan, -torch.inf
    ids = torch.zeros(3 * n, dtype=torch.int64)
    edits = Edits(bias=SparseBias(torch.arange(n), ids[:n] + 9, torch.full((n,), 0.5)))
    wanted = LogprobsWanted("raw_logprobs", ids == 0, ids, ids.unsqueeze(1)[:, :0], 0)
    edits, wanted = edits if "edited" in asked else Edits(), None if asked == "nothing" else wanted
    expected = reference.sample_rows(x, rows, edits, wanted)
    got = sample.sample_rows(x, rows, edits, wanted)
    assert got.token_ids.tolist() == expected.token_ids.tolist()
    control = works[0].tiles.control.tolist()
    assert control[UNDECIDED.value] & 0xFFFFFFFF == 0
    # The flat row of top-p; of a short one a token of the list surely wins.
    num_whole = 1 if vocab_size == V else 0
    assert control[COUNT.value] == num_whole
    # No list tells that of a long row without filters, nor raw ones of rows that are read whole.
    ranks = {"nothing": 0, "logprobs": num_whole, "logprobs of edited rows": 2 * num_whole}
    assert control[COUNT_OF_RANKS.value] == ranks[asked]
    # Both leave something, each once.
    assert control[UNDECIDED.value] >> 32 == num_whole * (1 if asked == "nothing" else 2)


def test_few_rows_have_so_many_programs_for_whole_rows_that_all_find_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """What finds none beside rows that are being finished begins when these end, and the next step waits for it."""
    monkeypatch.setattr(sample, "num_multiprocessors", lambda device: 132)
    monkeypatch.setattr(sample, "programs_beside", lambda device: 66)
    monkeypatch.setattr(sample, "programs_together", lambda device: 264)
    work = Workspace.of(2, 1002, torch.device("cpu"), raw=False, wide=False)
    drawn = Drawn(torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.uint8))
    for reads_whole, programs in ((True, [66, 66, 264]), (False, [66, 66, 66])):
        launches = sample.launches_of_draw(
            work, 1002 * 128, None, None, "raw_logprobs", drawn, wide=False, reads_whole=reads_whole
        )
        assert [launches[-1]._grid(n, None) for n in (1, 8, 9)] == programs
