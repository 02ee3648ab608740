"""Triton's interpreter, as tests have it: nothing outside a kernel's tensors, no order of programs, no endless wait."""

import pytest
import torch

pytest.importorskip("triton")
import triton
import triton.language as tl
from triton.runtime.errors import InterpreterError

pytestmark = pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter")


@triton.jit
def _copy(source, target, first, n, BLOCK: tl.constexpr):
    ids = first + tl.arange(0, BLOCK)
    tl.store(target + ids, tl.load(source + ids, mask=ids < n), mask=ids < n)


@triton.jit
def _add(target, place):
    tl.atomic_add(target + place, 1)


@triton.jit
def _swap(target, place):
    tl.atomic_cas(target + place, 0, 7)


@triton.jit
def _wait(count, values, VOLATILE: tl.constexpr):
    reached = 0
    while reached < 1:
        reached = tl.load(values, volatile=True) if VOLATILE else tl.atomic_add(count, 0)


@pytest.mark.parametrize(("first", "n"), [(0, 5), (0, 6), (-1, 4), (-9, 0), (4, 5)])
def test_a_neighbour_is_not_touched(first: int, n: int) -> None:
    whole = torch.arange(12)
    with pytest.raises(InterpreterError, match="OutOfBoundsError"):
        _copy[(1,)](torch.arange(12)[4:], whole[4:8], first, n, BLOCK=8)
    with pytest.raises(InterpreterError, match="OutOfBoundsError"):
        _copy[(1,)](torch.arange(12)[4:8], whole[4:], first, n, BLOCK=8)
    assert whole.equal(torch.arange(12))


@pytest.mark.parametrize(("first", "n"), [(0, 4), (0, 0), (4, 4), (9, 4)])
def test_masked_lanes_may_lie_anywhere(first: int, n: int) -> None:
    whole = torch.zeros(12, dtype=torch.int64)
    _copy[(1,)](torch.ones(12, dtype=torch.int64)[4:8], whole[4:8], first, n, BLOCK=8)
    assert whole.sum() == max(n - first, 0)
    _copy[(1,)](whole[:0], whole[:0], 0, 0, BLOCK=8)


def test_rows_apart_and_counters() -> None:
    rows, count = torch.zeros(3, 5)[:, :2], torch.zeros(2, dtype=torch.int32)
    _copy[(1,)](rows, rows, 0, 8, BLOCK=8)
    _add[(1,)](count, 1)
    for target, place in ((count, 2), (count[:1], 1), (count[:0], 0)):
        with pytest.raises(InterpreterError, match="OutOfBoundsError"):
            _add[(1,)](target, place)
        with pytest.raises(InterpreterError, match="OutOfBoundsError"):
            _swap[(1,)](target, place)
    assert count.tolist() == [0, 1]
    _swap[(1,)](count, 0)
    assert count.tolist() == [7, 1]


@triton.jit
def _arrive(count, places):
    tl.store(places + tl.program_id(0), tl.atomic_add(count, 1))


def test_programs_run_in_another_order_each_time() -> None:
    orders = set()
    for _ in range(5):
        places = torch.full((8,), -1)
        _arrive[(8,)](torch.zeros(1, dtype=torch.int64), places)
        assert sorted(places.tolist()) == list(range(8))
        orders.add(tuple(places.tolist()))
    assert len(orders) > 1


@pytest.mark.parametrize("volatile", [False, True])
def test_what_never_comes_is_not_waited_for(volatile: bool) -> None:
    _wait[(3,)](torch.ones(1, dtype=torch.int32), torch.ones(1, dtype=torch.int32), VOLATILE=volatile)
    with pytest.raises(InterpreterError, match="EndlessWaitError"):
        _wait[(3,)](torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32), VOLATILE=volatile)


@triton.jit
def _with_numbers(floats, ints):
    lanes = tl.arange(0, 2)
    x, i = tl.load(floats + lanes), tl.load(ints + lanes)
    tl.store(floats + 2 + lanes, x * -0.0)
    tl.store(floats + 4 + lanes, x * 0.0)
    tl.store(floats + 6 + lanes, i / 2)
    tl.store(ints + 2 + lanes, i + True)
    tl.store(ints + 4 + lanes, i + 1)
    tl.store(ints + 6 + lanes, i + 1.5)


def test_equal_numbers_of_other_types_and_signs_are_told_apart() -> None:
    for _ in range(2):
        floats, ints = torch.ones(8), torch.tensor([2, 3, 0, 0, 0, 0, 0, 0])
        _with_numbers[(1,)](floats, ints)
        assert floats[2:6].signbit().tolist() == [True, True, False, False]
        assert floats[6:].tolist() == [1.0, 1.5]
        assert ints.tolist() == [2, 3, 3, 4, 3, 4, 3, 4]
