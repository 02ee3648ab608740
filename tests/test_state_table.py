"""Lines that the host stages lie still until a kernel has read them."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
from drawlot.kernels.requests import Request
from drawlot.kernels.triton import state_table
from drawlot.kernels.triton.state_table import ASKED, FIRST_INT, SLOT, StateTable, asked_of

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")
NUM_STATES = 300


def add(table: StateTable, states: range, top_k: int) -> None:
    """Stages requests, told apart by top_k."""
    for state in states:
        table.add_request(state, Request(1.0, 0.5, 0.0, top_k + state, 0, 0, None, (), None), -1, lowered=False)


def late(table: StateTable) -> list[Callable[[], None]]:
    """Kernels that are launched from now on, as if the device had much to do before."""
    waiting, write = [], table._write
    table._write = lambda *args: waiting.append(lambda: write(*args))  # type: ignore[assignment]
    return waiting


def expected(tops: list[tuple[range, int]]) -> torch.Tensor:
    """top_k of all states."""
    wanted = torch.zeros(NUM_STATES, dtype=torch.int64)
    for states, top_k in tops:
        wanted[states.start : states.stop] = top_k + torch.arange(states.start, states.stop)
    return wanted


def test_lines_are_not_staged_where_a_kernel_has_yet_to_read() -> None:
    table = StateTable(NUM_STATES, torch.device("cpu"))
    waiting = late(table)
    writes = [(range(300), 1000), (range(7), 2000), (range(5, 140), 3000), (range(3), 4000)]
    for number, (states, top_k) in enumerate(writes):
        add(table, states, top_k)
        table.apply_staged_writes()
        if number == 2:
            # The device has come to the first one only.
            waiting.pop(0)()
    for write in waiting:
        write()
    assert table.table[FIRST_INT].tolist() == expected(writes).tolist()
    # The first memory was free again for the last lines, so that there are three.
    assert len(table._sent) == 3
    assert all(staging.is_read() for staging in table._sent)


def test_memory_that_is_free_too_early_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above fails if nobody waits."""
    monkeypatch.setattr(state_table._Staging, "is_read", lambda self: True)
    with pytest.raises(AssertionError):
        test_lines_are_not_staged_where_a_kernel_has_yet_to_read()


def test_all_programs_say_that_they_have_read() -> None:
    table = StateTable(NUM_STATES, torch.device("cpu"))
    add(table, range(NUM_STATES), 1)
    table.apply_staged_writes()
    assert table._staging._done.tolist() == [1, 1, 1]
    assert (table.table[SLOT] == -1).all()


def test_what_is_yet_to_be_read_outlives_its_table() -> None:
    def admitted() -> Any:
        table = StateTable(NUM_STATES, torch.device("cpu"))
        waiting = late(table)
        add(table, range(3), 1)
        table.apply_staged_writes()
        table._write = None  # type: ignore[assignment]
        return waiting[0]

    write = admitted()
    gc.collect()
    assert [staging.is_read() for staging in state_table._unread] == [False]
    write()
    StateTable(1, torch.device("cpu"))
    gc.collect()
    assert state_table._unread == []


def test_the_scan_is_told_its_scale_and_what_raw_logprobs_need() -> None:
    """Sums at a scale of their own are only for who wants them: for others they would be work for nothing."""
    temperature, top_k, wanted = [0.8, 0.8, 0.8, 0.0, 1.0], [0, 0, 5, 0, 0], [0, 1, 1, 1, 1]
    floats = torch.tensor([temperature, [1.0] * 5, [0.0] * 5], dtype=torch.float64)
    ints = torch.tensor([top_k, [0] * 5, [0] * 5])
    asked = asked_of(floats, ints, torch.tensor(wanted, dtype=torch.uint8))
    assert asked.to(torch.int32).view(torch.float32).tolist() == [1.25, 1.25, 1.0, 1.0, 1.0]
    # All but the row with top_k need sums of their own, if they are edited.
    assert (asked >> 32).tolist() == [4, 4 + 2, 1, 4 + 1, 4 + 1]


def test_the_scan_is_told_who_edits() -> None:
    table = StateTable(3, torch.device("cpu"))
    for state, slot in ((0, -1), (1, 0), (2, 4000)):
        request = Request(0.8, 1.0, 0.0, 0, 0, 0, 0, (), None)
        table.add_request(state, request, slot, lowered=state == 2)
    table.apply_staged_writes()
    asked = table.table[ASKED]
    assert (asked >> 36).tolist() == [0, 1, 4001]
    assert ((asked >> 35) & 1).tolist() == [0, 0, 1]
    assert (asked.to(torch.int32).view(torch.float32).tolist(), ((asked >> 32) & 3).tolist()) == ([1.25] * 3, [2] * 3)
    table.remove_request(2)
    table.apply_staged_writes()
    assert (asked >> 35).tolist() == [0, 2, 0]
