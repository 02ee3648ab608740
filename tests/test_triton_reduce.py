"""Several reductions of a block at once: as a GPU reduces them, and one by one, as Triton's interpreter does."""

from collections.abc import Callable

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl

from drawlot.kernels.triton import reduce
from tests.kernel_mutant import KernelMutant

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")


@triton.jit
def lowest_kernel(keys, found, N: tl.constexpr):
    first, second = reduce.two_lowest(tl.load(keys + tl.arange(0, N)))
    tl.store(found, first)
    tl.store(found + 1, second)


@triton.jit
def largest_kernel(keys, found, N: tl.constexpr):
    place = tl.arange(0, N)
    first, second, third = reduce.two_largest(tl.load(keys + place), place)
    tl.store(found, first)
    tl.store(found + 1, second)
    tl.store(found + 2, third)


@triton.jit
def highest_kernel(high, low, found, M: tl.constexpr, N: tl.constexpr):
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    first, second = reduce.two_highest(tl.load(high + at), tl.load(low + at), 1)
    tl.store(found + tl.arange(0, M), first)
    tl.store(found + M + tl.arange(0, M), second)


@triton.jit
def merge_pairs_kernel(pairs, found, MERGE: tl.constexpr, N: tl.constexpr):
    at = pairs + tl.arange(0, N)
    first, second = MERGE(tl.load(at), tl.load(at + N), tl.load(at + 2 * N), tl.load(at + 3 * N))
    tl.store(found + tl.arange(0, N), first)
    tl.store(found + N + tl.arange(0, N), second)


@triton.jit
def sum_kernel(masses, found, N: tl.constexpr):
    tl.store(found, reduce.fixed_sum_of_masses(tl.load(masses + tl.arange(0, N))))


@triton.jit
def merge_largest_kernel(keys, found, N: tl.constexpr):
    at, place = keys + tl.arange(0, N), tl.zeros([N], tl.int32)
    one, _, two, _, three = reduce._two_largest(
        tl.load(at),
        place,
        tl.load(at + N),
        place + 1,
        tl.load(at + 2 * N),
        tl.load(at + 3 * N),
        place + 3,
        tl.load(at + 4 * N),
        place + 4,
        tl.load(at + 5 * N),
    )
    tl.store(found + tl.arange(0, N), one)
    tl.store(found + N + tl.arange(0, N), two)
    tl.store(found + 2 * N + tl.arange(0, N), three)


@triton.jit
def merge_best_kernel(keys, tokens, found, A: tl.constexpr, B: tl.constexpr, N: tl.constexpr):
    a, b, place = 2 * A * N + tl.arange(0, N), 2 * B * N + tl.arange(0, N), tl.arange(0, N)
    best = reduce._best_two(
        tl.load(keys + a),
        tl.load(tokens + a),
        tl.load(keys + a + N),
        tl.load(tokens + a + N),
        tl.load(keys + b),
        tl.load(tokens + b),
        tl.load(keys + b + N),
        tl.load(tokens + b + N),
    )
    for i in tl.static_range(4):
        tl.store(found + i * N + place, best[i])


def check_merged_best() -> None:
    # Of few keys, so that many are equal. Of what has one key alone the next is -inf, with the same token.
    generator, n = torch.Generator().manual_seed(4), 64
    tokens = torch.rand(n, 4, generator=generator).argsort(1).int()
    keys = torch.randint(4, (n, 4), generator=generator).float()
    for pair in (slice(0, 2), slice(2, 4)):
        order = (keys[:, pair] * 8 - tokens[:, pair]).argsort(1, descending=True)
        keys[:, pair], tokens[:, pair] = keys[:, pair].gather(1, order), tokens[:, pair].gather(1, order)
    keys[::4, 3], tokens[::4, 3] = float("-inf"), tokens[::4, 2]
    found = torch.zeros(2, 4, n)
    for own, (a, b) in zip(found, ((0, 1), (1, 0))):
        merge_best_kernel[(1,)](keys.T.contiguous(), tokens.T.contiguous(), own, a, b, n)
    assert found[0].equal(found[1])
    order = (keys * 8 - tokens).argsort(1, descending=True)[:, :2]
    assert found[0, ::2].T.equal(keys.gather(1, order))
    assert found[0, 1::2].T.equal(tokens.gather(1, order).float())


def check_merged_lowest() -> None:
    # Of a GPU's threads both sides have a next one; the interpreter takes up one element after the other.
    halves = torch.rand(2, 2, 64, generator=torch.Generator().manual_seed(1)).mul(2**40).long().sort(1).values
    found = torch.zeros(2, 64, dtype=torch.int64)
    merge_pairs_kernel[(1,)](halves, found, reduce._two_lowest, 64)
    assert found.equal(halves.flatten(0, 1).sort(0).values[:2])


def check_merged_highest() -> None:
    # Of few values, so that many are equal.
    halves = torch.randint(6, (2, 2, 64), generator=torch.Generator().manual_seed(3)).float()
    halves = halves.sort(1, descending=True).values.contiguous()
    found = torch.zeros(2, 64)
    merge_pairs_kernel[(1,)](halves, found, reduce._two_highest, 64)
    assert found.equal(halves.flatten(0, 1).sort(0, descending=True).values[:2])


def check_sums() -> None:
    # 512: in one way, the others by words; up to what all tokens of a tile weigh if they are equal.
    for n in (512, 1024, 2048):
        masses = 128 * torch.rand(n, generator=torch.Generator().manual_seed(n))
        masses[::3], masses[1::3] = 128.0, masses[1::3] * 1e-9
        masses[: n // 4] *= 1e-9
        found = torch.zeros(1, dtype=torch.int64)
        sum_kernel[(1,)](masses, found, n)
        # By words four neighbours are one float.
        parts = masses if n < 1024 else masses.view(-1, 2, 2).sum(2).sum(1)
        assert found.item() == int((parts.double() * 2**40).long().sum())


def check_merged_largest() -> None:
    halves = torch.randn(2, 3, 64, generator=torch.Generator().manual_seed(2)).sort(1, descending=True).values
    found = torch.zeros(3, 64)
    merge_largest_kernel[(1,)](halves.contiguous(), found, 64)
    assert found.equal(halves.flatten(0, 1).sort(0, descending=True).values[:3])


@pytest.mark.parametrize("one_by_one", [False, True])
def test_both_ways_find_the_two_lowest(one_by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "_ONE_BY_ONE", tl.constexpr(one_by_one))
    generator = torch.Generator().manual_seed(32)
    for _ in range(20):
        keys, found = torch.randperm(32, generator=generator) - 16, torch.zeros(2, dtype=torch.int64)
        # As where tokens are dropped.
        keys[keys > 0] = 2**63 - 1
        lowest_kernel[(1,)](keys, found, 32)
        assert found.tolist() == keys.sort().values[:2].tolist()


@pytest.mark.parametrize("one_by_one", [False, True])
def test_both_ways_find_the_two_largest_and_the_third(one_by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "_ONE_BY_ONE", tl.constexpr(one_by_one))
    generator = torch.Generator().manual_seed(33)
    for _ in range(20):
        keys, found = torch.randn(32, generator=generator), torch.zeros(3)
        largest_kernel[(1,)](keys, found, 32)
        largest, places = keys.topk(3)
        assert found.tolist() == [*places[:2].tolist(), float(largest[2])]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_both_ways_find_the_two_highest_which_may_be_equal(one_by_one: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduce, "_ONE_BY_ONE", tl.constexpr(one_by_one))
    pairs = torch.randint(9, (2, 64, 8), generator=torch.Generator().manual_seed(34)).float()
    pairs[pairs == 0] = float("-inf")
    (high, low), found = pairs.sort(0, descending=True).values.contiguous(), torch.zeros(2, 64)
    highest_kernel[(1,)](high, low, found, 64, 8)
    assert found.equal(pairs.transpose(1, 2).flatten(0, 1).sort(0, descending=True).values[:2])


def test_masses_are_summed_exactly() -> None:
    check_sums()


@pytest.mark.parametrize("check", [check_merged_lowest, check_merged_highest, check_merged_largest, check_merged_best])
def test_two_sides_are_merged(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        (check_merged_lowest, KernelMutant("its next", reduce._two_lowest, "tl.minimum(a_next, b_next)", "a_next")),
        (check_merged_lowest, KernelMutant("its key", reduce._two_lowest, "tl.maximum(a_key, b_key)", "b_next")),
        (check_merged_highest, KernelMutant("the lower", reduce._two_highest, "tl.minimum(a, b)", "b_next")),
        (check_merged_highest, KernelMutant("b's next", reduce._two_highest, "tl.maximum(a_next, b_next)", "a_next")),
        (check_sums, KernelMutant("middle word", reduce.fixed_sum_of_masses, "<< 21)", "<< 20)")),
        (check_sums, KernelMutant("high word", reduce.fixed_sum_of_masses, "of_thread >> 42", "of_thread >> 43")),
        (
            check_sums,
            KernelMutant("low word", reduce.fixed_sum_of_masses, "low.to(tl.int64) +", "0 * low.to(tl.int64) +"),
        ),
        (check_merged_best, KernelMutant("either wins", reduce._best_two, "(a_key > b_key) |", "(a_key >= b_key) |")),
        (
            check_merged_best,
            KernelMutant("either is next", reduce._best_two, "(loser > after) |", "(loser >= after) |"),
        ),
        (
            check_merged_best,
            KernelMutant("the higher token", reduce._best_two, "(a_token < b_token)", "(a_token > b_token)"),
        ),
        (check_merged_largest, KernelMutant("a third", reduce._two_largest, "tl.maximum(a_third, b_third)", "a_third")),
    ],
    ids=lambda given: given.name if isinstance(given, KernelMutant) else "",
)
def test_wrong_ones_are_seen(check: Callable[[], None], mutant: KernelMutant) -> None:
    with mutant.planted(), pytest.raises(AssertionError):
        check()
