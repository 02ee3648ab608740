"""The numbers of requests in permanent places on the device, and how the host writes them."""

from collections import deque

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
# whether it wants logprobs, how many top tokens, its slot among requests with edits (-1: none). One more row follows
# from others: what the scan needs to know, in one number.
FIRST_INT, WANTED, NUM_TOP, SLOT, NUM_FIELDS = 3, 6, 7, 8, 9
ASKED = NUM_FIELDS
_BITS_OF_ONE = 0x3F800000
_TOP_K, _WANTED = tl.constexpr(FIRST_INT), tl.constexpr(WANTED)
_BLOCK, _FIELDS = 128, tl.constexpr(triton.next_power_of_2(NUM_FIELDS))


class StateTable:
    """One column a request. The host stages writes; one kernel, which reads the host's memory, writes the table."""

    def __init__(self, max_num_reqs: int, device: torch.device) -> None:
        self.table = torch.zeros((NUM_FIELDS + 1, max_num_reqs), dtype=torch.int64, device=device)
        self.table[SLOT] = -1
        self.table[ASKED] = _BITS_OF_ONE
        self._packed = pack(self.table)
        self._write = Launch(write_kernel, lambda n: n, max_num_reqs, NUM_FIELDS=NUM_FIELDS, BLOCK=_BLOCK)
        self._sent: deque[_Staging] = deque()
        self._start_staging()

    def add_request(self, req_idx: int, request: Request, slot: int) -> None:
        """Stage the numbers of a request."""
        column = self._column(req_idx)
        column[:FIRST_INT].view(np.float64)[:] = request.temperature, request.top_p, request.min_p
        wanted = request.num_top is not None
        column[FIRST_INT:] = request.top_k, request.seed, request.choice, wanted, request.num_top or 0, slot

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
        self._staging.lines[0, 0] = count
        self._write(triton.cdiv(count, _BLOCK), self._staging.packed, self._packed)
        self._staging.send()
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


class _Staging:
    """Memory of the host that kernels read: the number of lines, then lines of a state and its fields."""

    def __init__(self, table: Tensor) -> None:
        shape = table.shape[1] + 1, 1 + NUM_FIELDS
        self._memory = torch.zeros(shape, dtype=torch.int64, pin_memory=table.is_cuda)
        self.lines: NDArray[np.int64] = self._memory.numpy()
        self.packed = pack(self._memory)
        self._event = torch.cuda.Event() if table.is_cuda else None

    def send(self) -> None:
        """To be called once the kernel that reads it is launched."""
        if self._event is not None:
            self._event.record()

    def is_read(self) -> bool:
        """Whether the device has no more to do with it."""
        return self._event is None or self._event.query()


@triton.jit
def write_kernel(staging, table, num_states, NUM_FIELDS: tl.constexpr, BLOCK: tl.constexpr):
    """Program: BLOCK staged columns, which are lines of the staging memory. num_states: columns of the table."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # All at once, the number of lines too: the host's memory is far away.
    count, exists = tl.load(staging), at < num_states
    line = staging + (1 + at) * (1 + NUM_FIELDS)
    state = tl.load(line, mask=exists, other=0)
    field = tl.arange(0, _FIELDS)[None, :]
    numbers = tl.load(line[:, None] + 1 + field, mask=exists[:, None] & (field < NUM_FIELDS), other=0)
    temperature = tl.load(line + 1, mask=exists, other=0).to(tl.float64, bitcast=True)
    top_k = tl.load(line + 1 + _TOP_K, mask=exists, other=0)
    wanted = tl.load(line + 1 + _WANTED, mask=exists, other=0)
    # A sampler may be gone before this runs, and its memory another's: then nothing is written outside of the table.
    is_staged = (at < count) & (state >= 0) & (state < num_states)
    tl.store(table + field * num_states + state[:, None], numbers, mask=is_staged[:, None] & (field < NUM_FIELDS))
    asked = table + NUM_FIELDS * num_states
    tl.store(asked + state, bits_for_scan(temperature, top_k, wanted), mask=is_staged)


def asked_of(floats: Tensor, ints: Tensor, wanted: Tensor | None) -> Tensor:
    """`States.asked` for tables that no `StateTable` writes; wanted: uint8 [S], None: nobody wants logprobs."""
    count = floats.shape[1]
    asked = ints.new_empty(count)
    launch = Launch(asked_kernel, lambda n: triton.cdiv(n, _BLOCK), wanted, asked, count, BLOCK=_BLOCK)
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
    tl.store(asked + at, bits_for_scan(temperature, top_k, wants), mask=at < count)
