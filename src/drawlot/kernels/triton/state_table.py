"""The numbers of requests in permanent places on the device, and how the host writes them."""

import weakref
from collections import deque
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.requests import Request
from drawlot.kernels.triton.launch import Launch, pack
from drawlot.kernels.triton.states import bits_for_scan
from drawlot.kernels.triton.tensors import refuse_capture

# Fields of a request, one row of the table each: temperature, top_p, min_p (the bits of float64), top_k, seed, choice,
# whether it wants logprobs, how many top tokens, its slot among requests with edits (-1: none), whether these are as
# `lowered` says. One more row follows from others: what the scan needs to know, in one number.
FIRST_INT, WANTED, NUM_TOP, SLOT, LOWERED, NUM_FIELDS = 3, 6, 7, 8, 9, 10
ASKED = NUM_FIELDS
_BITS_OF_ONE = 0x3F800000
_TOP_K, _WANTED, _SLOT, _IS_LOWERED = (tl.constexpr(field) for field in (FIRST_INT, WANTED, SLOT, LOWERED))
_BLOCK, _FIELDS = 128, tl.constexpr(triton.next_power_of_2(NUM_FIELDS))


class StateTable:
    """One column a request. The host stages writes; one kernel, which reads the host's memory, writes the table."""

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        self.table = torch.zeros((NUM_FIELDS + 1, max_num_reqs), dtype=torch.int64, device=device)
        self.table[SLOT] = -1
        self.table[ASKED] = _BITS_OF_ONE
        self._packed = pack(self.table)
        self._write = Launch(
            write_kernel, lambda n, _: _num_writers(n), max_num_reqs, NUM_FIELDS=NUM_FIELDS, BLOCK=_BLOCK
        )
        self._sent: deque[_Staging] = deque()
        weakref.finalize(self, _keep_unread, self._sent)
        self._start_staging()

    def add_request(self, req_idx: int, request: Request, slot: int, *, lowered: bool) -> None:
        """Stage the numbers of a request."""
        column = self._column(req_idx)
        column[:FIRST_INT].view(np.float64)[:] = request.temperature, request.top_p, request.min_p
        wanted = request.num_top is not None
        ints = request.top_k, request.seed, request.choice, wanted, request.num_top or 0, slot, lowered
        column[FIRST_INT:] = ints

    def remove_request(self, req_idx: int) -> None:
        """Stage that the place is free: whatever may still be done there, it edits nothing."""
        column = self._column(req_idx)
        column[:] = 0
        column[SLOT] = -1

    @property
    def has_staged_writes(self) -> bool:
        """Whether the device has yet to be told something."""
        return bool(self._line_of)

    def apply_staged_writes(self) -> None:
        """Bring what was staged to the device.

        Raises:
            InputError: The stream is being captured; a graph would repeat the writes for ever.
        """
        count = len(self._line_of)
        if count == 0:
            return
        refuse_capture(self.table, "writes are staged: call apply_staged_writes() before the capture")
        self._staging.send(count)
        self._write(count, self._staging.packed, self._packed)
        self._sent.append(self._staging)
        self._start_staging()

    def _start_staging(self) -> None:
        if self._sent and self._sent[0].is_read():
            self._staging = self._sent.popleft()
        else:
            # More memory, rather than a wait.
            self._staging = _Staging(self.table)
        self._line_of: dict[int, int] = {}

    def _column(self, req_idx: int) -> NDArray[np.int64]:
        """Where the fields of a state are staged; the last ones to be written count."""
        line = self._line_of.setdefault(req_idx, 1 + len(self._line_of))
        self._staging.lines[line, 0] = req_idx
        return self._staging.lines[line, 1:]


def _num_writers(count: int) -> int:
    """Programs that write so many staged columns."""
    return -(-count // _BLOCK)


class Staging(NamedTuple):
    """What `write_kernel` reads, in memory of the host."""

    lines: Tensor
    """int64 [1 + S, 1 + NUM_FIELDS]: the number of lines that count; then a state and its fields each"""
    done: Tensor
    """int64 [programs]: 1 where one has read its lines"""


class _Staging:
    """Memory of the host that kernels read, and in which they say that they have; an event takes the host longer."""

    def __init__(self, table: Tensor) -> None:
        num_states = table.shape[1]

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64, pin_memory=table.is_cuda)

        staging = Staging(zeros(1 + num_states, 1 + NUM_FIELDS), zeros(_num_writers(num_states)))
        self.lines: NDArray[np.int64] = staging.lines.numpy()
        self._done: NDArray[np.int64] = staging.done.numpy()
        self._num_writers = 0
        self.packed = pack(staging)

    def send(self, count: int) -> None:
        """To be called before the kernel that reads so many lines is launched."""
        self.lines[0, 0], self._num_writers = count, _num_writers(count)
        self._done[:] = 0

    def is_read(self) -> bool:
        """Whether the device has no more to do with it."""
        return 0 not in self._done[: self._num_writers].tolist()


_unread: list[_Staging] = []


def _keep_unread(sent: deque[_Staging]) -> None:
    """Of a table that is gone: nobody else is given memory that a kernel has yet to read and to write `done` in."""
    _unread[:] = [staging for staging in (*_unread, *sent) if not staging.is_read()]


@triton.jit
def write_kernel(staging, table, num_states, NUM_FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """Program: BLOCK staged columns, which are lines of `Staging`. num_states: columns of the table."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # All at once, the number of lines too: the host's memory is far away.
    count, exists = tl.load(staging.lines), at < num_states
    line = staging.lines + (1 + at) * (1 + NUM_FIELDS)
    state = tl.load(line, mask=exists, other=0)
    field = tl.arange(0, _FIELDS)[None, :]
    numbers = tl.load(line[:, None] + 1 + field, mask=exists[:, None] & (field < NUM_FIELDS), other=0)
    temperature = tl.load(line + 1, mask=exists, other=0).to(tl.float64, bitcast=True)
    top_k = tl.load(line + 1 + _TOP_K, mask=exists, other=0)
    wanted = tl.load(line + 1 + _WANTED, mask=exists, other=0)
    slot = tl.load(line + 1 + _SLOT, mask=exists, other=-1)
    lowered = tl.load(line + 1 + _IS_LOWERED, mask=exists, other=0)
    # Whatever the host's memory holds, nothing is written outside of the table.
    is_staged = (at < count) & (state >= 0) & (state < num_states)
    tl.store(table + field * num_states + state[:, None], numbers, mask=is_staged[:, None] & (field < NUM_FIELDS))
    asked = table + NUM_FIELDS * num_states
    tl.store(asked + state, bits_for_scan(temperature, top_k, wanted, slot, lowered), mask=is_staged)
    # What a thread stores it has read: behind the barrier nobody waits for a line, and the host may write there.
    tl.debug_barrier()
    tl.store(staging.done + tl.program_id(0), 1)


def asked_of(floats: Tensor, ints: Tensor, wanted: Tensor | None) -> Tensor:
    """`States.asked` for tables that no `StateTable` writes; wanted: uint8 [S], None: nobody wants logprobs.

    No request owns a slot.
    """
    count = floats.shape[1]
    asked = ints.new_empty(count)
    launch = Launch(asked_kernel, lambda n, _: triton.cdiv(n, _BLOCK), wanted, asked, count, BLOCK=_BLOCK)
    launch(count, pack(floats), pack(ints))
    return asked


@triton.jit
def asked_kernel(floats, ints, wanted, asked, count, BLOCK: tl.constexpr):
    """Program: BLOCK requests."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    temperature = tl.load(floats + at, mask=at < count, other=0.0)
    top_k = tl.load(ints + at, mask=at < count, other=0)
    wants = top_k * 0
    if wanted is not None:
        wants = tl.load(wanted + at, mask=at < count, other=0).to(tl.int64)
    tl.store(asked + at, bits_for_scan(temperature, top_k, wants, top_k * 0 - 1, top_k * 0), mask=at < count)
