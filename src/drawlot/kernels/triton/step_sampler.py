"""Draws for requests in tables on the device, in memory of its own: a step allocates nothing and waits for nothing."""

from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import count, product
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from drawlot.errors import InputError
from drawlot.kernels.inputs import TILE, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.requests import Request, RequestEdits
from drawlot.kernels.triton.all_tokens import put_many_top_tokens
from drawlot.kernels.triton.arguments import Columns, Drawn, Rows, States, Wanted
from drawlot.kernels.triton.edit_tables import EditSlots
from drawlot.kernels.triton.launch import Launch, Packed, Template, compiling_ahead, rows_are_aligned
from drawlot.kernels.triton.lost_mass import MOST_TOUCHED
from drawlot.kernels.triton.sample import launches_of_draw
from drawlot.kernels.triton.state_table import ASKED, FIRST_INT, NUM_TOP, SLOT, WANTED, StateTable
from drawlot.kernels.triton.summary import GREEDY, LISTED, NO_TOKEN, TILES, WHOLE
from drawlot.kernels.triton.tensors import adjacent, int64_a_row, refuse_capture, upload
from drawlot.kernels.triton.top_of_list import MOST_TOP
from drawlot.kernels.triton.workspace import ROOM, Workspace, edited_rows
from drawlot.outputs import LogitsRows
from drawlot.params import MAX_LOGPROB_TOKEN_IDS

_PATHS = {
    path.value: name
    for path, name in (
        (NO_TOKEN, "no token"),
        (GREEDY, "greedy"),
        (LISTED, "list"),
        (TILES, "tiles"),
        (WHOLE, "read again"),
    )
}


class _Plan(NamedTuple):
    """The launches of a step and what they write to."""

    serial: int
    launches: list[Launch]
    drawn: Drawn
    columns: Columns | None
    outputs: dict[int, SampledRows]
    """By number of rows"""


class _Kind(NamedTuple):
    """Of a plan: what the requests alive ask for."""

    num_columns: int
    reads_whole: bool
    top_aside: bool
    orders: int


class _Most(NamedTuple):
    """What a request asks for, or all that are alive at most."""

    top: int
    """Top tokens"""
    columns: int
    """Of logprobs; 0: nobody wants any"""


class StepSampler:
    """See `requests.StepSampler`."""

    def __init__(
        self, max_num_reqs: int, vocab_size: int, device: torch.device, logprobs_mode: str, *, wide: bool
    ) -> None:
        """Room for max_num_reqs requests, and for as many rows of a step until one has more."""
        self._vocab_size = vocab_size
        self._num_tiles = triton.cdiv(vocab_size, TILE)
        self._mode = logprobs_mode
        self._wide = wide
        self._numbers = StateTable(max_num_reqs, device)
        table = self._numbers.table
        self._device = table.device
        self._on_device = torch.cuda.device_of(table)
        self._floats, self._ints = table[:FIRST_INT].view(torch.float64), table[FIRST_INT:]
        self._edits = EditSlots(table[SLOT], table[ASKED], vocab_size)
        self._wanted = Wanted(table[WANTED], table[NUM_TOP], table.new_empty((max_num_reqs, 0)), 0)
        # Of live requests that want logprobs: what each asks for, and how many ask for that.
        self._asks: dict[int, _Most] = {}
        self._num_asking: Counter[_Most] = Counter()
        self._most: _Most | None = None
        self._with_ids: set[int] = set()
        self._filtered: set[int] = set()
        self._read_whole: set[int] = set()
        self._top_aside: set[int] = set()
        # What each request with edits asks of the order of rows, see `row_order.row_in_order`.
        self._orders: dict[int, int] = {}
        self._serials = count()
        self._plans: dict[_Kind, _Plan] = {}
        self._templates: dict[Hashable, Template] = {}
        place = self._numbers.table[ASKED]
        self._states_template = Template(self._states_of(place, place), "index", "positions")
        self._reserve_rows(max_num_reqs)

    def add_request(self, req_idx: int, request: Request) -> None:
        """Take in a request; its row is free."""
        slot = self._edits.add_request(req_idx, request.edits, self._max_rows)
        lowered = _is_lowered(request)
        self._numbers.add_request(req_idx, request, slot, lowered=lowered)
        if request.edits is not None and not (lowered and request.top_k > 0):
            self._orders[req_idx] = 1 if lowered else 2
        if _is_filtered(request):
            self._filtered.add(req_idx)
        if _is_read_whole(request):
            self._read_whole.add(req_idx)
        if _has_top_aside(request):
            self._top_aside.add(req_idx)
        ids = request.logprob_token_ids
        if request.num_top is not None:
            asked = self._asks[req_idx] = _Most(request.num_top, 1 + max(request.num_top, len(ids)))
            if not self._num_asking[asked]:
                self._most = None
            self._num_asking[asked] += 1
        if ids:
            self._with_ids.add(req_idx)
            self._write_token_ids(req_idx, ids)

    def remove_request(self, req_idx: int) -> None:
        """Forget a request."""
        self._numbers.remove_request(req_idx)
        self._edits.remove_request(req_idx)
        asked = self._asks.pop(req_idx, None)
        if asked is not None:
            self._num_asking[asked] -= 1
            if not self._num_asking[asked]:
                del self._num_asking[asked]
                self._most = None
        if req_idx in self._with_ids:
            self._with_ids.remove(req_idx)
            self._wanted.token_ids[req_idx].fill_(-1)
        self._filtered.discard(req_idx)
        self._read_whole.discard(req_idx)
        self._top_aside.discard(req_idx)
        self._orders.pop(req_idx, None)

    def apply_staged_writes(self) -> None:
        """Bring added requests to the device."""
        if self._numbers.has_staged_writes:
            with self._on_device:
                self._numbers.apply_staged_writes()

    @property
    def has_filters(self) -> bool:
        """Whether a live request has top_k, top_p or min_p."""
        return bool(self._filtered)

    @property
    def capture_key(self) -> Hashable:
        """A captured step may be replayed as long as this is what it was at the capture."""
        # Whole rows put in order take much memory, which every capture would keep.
        many = self._asked().top > ROOM
        return None if many else (self._plan().serial, self._edits.capture_key)

    def row_params(self, state_rows: Tensor, positions: Tensor) -> RowParams:
        """The parameters of requests, once their writes are applied."""
        index = state_rows.clamp(min=0)
        temperature, top_p, min_p = self._floats[:, index]
        top_k, seed, choice = self._ints[:3, index]
        return RowParams(temperature, top_k, top_p, min_p, seed, positions, choice, torch.zeros_like(positions))

    def sample(self, logits: Tensor, rows: LogitsRows, bitmask: Tensor | None) -> SampledRows:
        """Draw a token for each row of logits [N, >= V]; the next call overwrites what is returned."""
        n = len(logits)
        with self._on_device:
            self._numbers.apply_staged_writes()
            if n > self._max_rows:
                self._reserve_rows(triton.next_power_of_2(n))
            plan = self._plan()
            outputs = plan.outputs.get(n)
            if outputs is None:
                outputs = plan.outputs[n] = _first(n, plan)
            if n:
                self._draw(plan, outputs, rows, logits, bitmask)
        return outputs

    def row_paths(self, num_rows: int) -> list[str]:
        """How rows of the last step were drawn; waits for the device."""
        if not 0 <= num_rows <= self._max_rows:
            raise InputError(f"num_rows: must be in [0, {self._max_rows}], the most rows of any step; got {num_rows}")
        return [_PATHS[path] for path in self._work.summary.path[:num_rows].tolist()]

    def commit(self, idx_mapping: Tensor, token_ids: Tensor, num_sampled: Tensor) -> None:
        """Remember what was emitted; shapes as in `Sampler.commit`."""
        self.apply_staged_writes()
        with self._on_device:
            self._edits.commit(idx_mapping, token_ids, num_sampled)

    def warm_up(self, logits: Tensor, bitmask: Tensor | None) -> None:
        """Compile all that steps with such logits need, by steps of one row; no request is alive."""
        with compiling_ahead():
            self._run_all(logits, bitmask)
        self._run_all(logits, bitmask)

    def _run_all(self, logits: Tensor, bitmask: Tensor | None) -> None:
        """Steps with every launch that a step may have."""
        zero, one = (torch.full((1,), number, dtype=torch.int64, device=self._floats.device) for number in (0, 1))
        rows = LogitsRows(zero, zero, zero, zero, zero, zero)
        edits = RequestEdits((0,), (), (), 0, {}, 1.0, 0.0, 0.0, (), (), ((0, 0),), looks_back=True)
        for request_edits, num_top in product((None, edits), (None, 0, 1)):
            self.add_request(0, Request(0.0, 1.0, 0.0, 0, 0, 0, num_top, (), request_edits))
            for mask in (None,) if bitmask is None else (None, bitmask[:1]):
                self.sample(logits[:1], rows, mask)
            self.commit(zero, zero.unsqueeze(1), one)
            self.remove_request(0)

    def _rows(self, logits: Tensor, bitmask: Tensor | None) -> Rows:
        logits, bitmask = self._readable(logits, bitmask)
        return edited_rows(logits, self._vocab_size, bitmask, self._edits.overlay)

    def _readable(self, logits: Tensor, bitmask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Both, copied where columns are not adjacent."""
        for name, tensor in (("logits", logits), ("allowed_bitmask", bitmask)):
            if tensor is not None and tensor.device != self._device:
                raise InputError(f"{name}: must lie on {self._device}; got {tensor.device}")
        return adjacent(logits), None if bitmask is None else adjacent(bitmask)

    def _packed_rows(self, logits: Tensor, bitmask: Tensor | None, edits: Packed | None) -> Packed:
        """What `_rows` makes of them, packed; whatever makes a difference but for their places is in the key."""
        logits, bitmask = self._readable(logits, bitmask)
        of_bitmask = None if bitmask is None else (bitmask.stride(0), rows_are_aligned(bitmask))
        of_edits = None if edits is None else (edits.kind, self._edits.capture_key)
        key = logits.dtype, logits.stride(0), rows_are_aligned(logits), of_bitmask, of_edits
        template = self._templates.get(key)
        if template is None:
            rows = self._rows(logits, bitmask)._replace(edits_of=edits)
            template = self._templates[key] = Template(rows, "logits", "bitmask", "edits_of")
        return template.packed(logits, bitmask, edits)

    def _states(self, rows: LogitsRows, n: int) -> States:
        return self._states_of(int64_a_row(rows.expanded_idx_mapping, n), int64_a_row(rows.positions, n))

    def _states_of(self, index: Tensor, positions: Tensor) -> States:
        asked = self._numbers.table[ASKED]
        return States(self._floats, self._ints, asked, len(asked), index, positions, None)

    def _packed_states(self, rows: LogitsRows, n: int) -> Packed:
        """What `_states` makes of them, packed."""
        columns = rows.expanded_idx_mapping, rows.positions
        return self._states_template.packed(*[int64_a_row(column, n) for column in columns])

    def _draw(
        self, plan: _Plan, outputs: SampledRows, of_step: LogitsRows, logits: Tensor, bitmask: Tensor | None
    ) -> None:
        n = len(outputs.token_ids)
        edits = self._edits.edits_of(n, of_step)
        rows, states = self._packed_rows(logits, bitmask, edits), self._packed_states(of_step, n)
        self._edits.find_bad_words(n, rows, edits)
        for launch in plan.launches:
            launch(n, rows, states)
        max_top = self._asked().top
        if max_top > ROOM and outputs.logprobs is not None:
            index = of_step.expanded_idx_mapping.clamp(min=0)
            wanted, num_top = self._wanted.wanted[index] != 0, self._wanted.num_top[index]
            put_many_top_tokens(
                rows.argument(),
                states.argument(),
                LogprobsWanted(self._mode, wanted, num_top, self._wanted.token_ids[index], max_top),
                Drawn(outputs.token_ids, outputs.status),
                self._work.summary,
                Columns(*outputs.logprobs, outputs.logprobs[0].shape[1]),
            )

    def _reserve_rows(self, max_rows: int) -> None:
        """Make room for steps of so many rows."""
        refuse_capture(self._floats, "it has more rows than any before")
        self._max_rows = max_rows
        device, raw = self._floats.device, self._mode.startswith("raw")
        work = Workspace.of(max_rows, self._num_tiles, device, raw=raw, wide=self._wide)
        if raw:
            bounds = torch.empty_like(work.tiles.best_groups)
            work = work._replace(tiles=work.tiles._replace(edit_bounds=bounds))
        # Nothing was drawn yet, see `row_paths`.
        work.summary.path.fill_(NO_TOKEN.value)
        self._work = work
        self._edits.reserve_rows(max_rows)
        self._plans.clear()

    def _plan(self) -> _Plan:
        """What a step does for the requests alive."""
        kind = _Kind(
            self._asked().columns, bool(self._read_whole), bool(self._top_aside), max(self._orders.values(), default=0)
        )
        plan = self._plans.get(kind)
        if plan is None:
            refuse_capture(self._floats, "it has not run before with what its requests ask for")
            if kind.num_columns > 1 + ROOM:
                # Columns for the vocabulary are not kept for later.
                self._plans = {other: kept for other, kept in self._plans.items() if other.num_columns <= 1 + ROOM}
            plan = self._plans[kind] = self._new_plan(kind)
        return plan

    def _asked(self) -> _Most:
        """What live requests ask for, found anew where one has come or gone that wants logprobs."""
        if self._most is None:
            each = self._num_asking
            self._most = _Most(
                max((asked.top for asked in each), default=0), max((asked.columns for asked in each), default=0)
            )
        return self._most

    def _new_plan(self, kind: _Kind) -> _Plan:
        num_columns, reads_whole, top_aside, orders = kind
        how: dict[str, Any] = {"wide": self._wide, "reads_whole": reads_whole, "top_aside": top_aside, "orders": orders}
        n, work, device = self._max_rows, self._work, self._floats.device
        drawn = Drawn(
            torch.empty(n, dtype=torch.int64, device=device), torch.empty(n, dtype=torch.uint8, device=device)
        )
        if num_columns == 0:
            work = work._replace(tiles=work.tiles._replace(raw_maxima=None, raw_sums=None))
            launches = launches_of_draw(work, self._vocab_size, None, None, self._mode, drawn, **how)
            return _Plan(next(self._serials), launches, drawn, None, {})
        columns = Columns(
            torch.empty(n * num_columns, dtype=torch.int64, device=device),
            torch.empty(n * num_columns, dtype=torch.float32, device=device),
            torch.empty(n, dtype=torch.int64, device=device),
            num_columns,
        )
        launches = launches_of_draw(work, self._vocab_size, self._wanted, columns, self._mode, drawn, **how)
        return _Plan(next(self._serials), launches, drawn, columns, {})

    def _write_token_ids(self, req_idx: int, ids: Sequence[int]) -> None:
        if self._wanted.num_token_ids == 0:
            shape = self._floats.shape[1], MAX_LOGPROB_TOKEN_IDS
            table = self._wanted.token_ids.new_full(shape, -1)
            self._wanted = self._wanted._replace(token_ids=table, num_token_ids=MAX_LOGPROB_TOKEN_IDS)
            self._plans.clear()
        self._wanted.token_ids[req_idx, : len(ids)] = upload(torch.tensor(ids), self._floats.device)


def _is_filtered(request: Request) -> bool:
    return request.temperature > 0 and (request.top_k > 0 or request.top_p < 1 or request.min_p > 0)


def _is_lowered(request: Request) -> bool:
    """Whether rows of a request are as `lowered` says, and may draw from a list."""
    edits = request.edits
    if edits is None or request.temperature == 0:
        return False
    by_count = 0 < request.top_k <= ROOM
    by_mass = request.top_k == 0 and request.top_p < 1 and request.min_p == 0
    if not by_count and (not by_mass or len({*edits.prompt, *edits.output}) > MOST_TOUCHED):
        return False
    no_others = edits.allowed is None and not (edits.masked or edits.stop_ids or edits.bias or edits.bad_words)
    penalties = edits.repetition - 1, edits.frequency, edits.presence
    return no_others and min(penalties) >= 0


def _is_read_whole(request: Request) -> bool:
    """Whether rows of a request are read again as a rule: no list holds what they keep, or tells their logprobs."""
    if request.logprob_token_ids or (request.num_top or 0) > ROOM:
        return True
    if request.temperature == 0 or 0 < request.top_k <= ROOM:
        return False
    return request.num_top is not None or _is_filtered(request)


def _has_top_aside(request: Request) -> bool:
    """Whether rows of a request want top tokens of raw logits that their draw does not need."""
    if request.edits is not None or request.logprob_token_ids or not 0 < (request.num_top or 0) <= MOST_TOP.value:
        return False
    return not _is_filtered(request)


def _first(n: int, plan: _Plan) -> SampledRows:
    """The outputs of n rows."""
    logprobs = None
    if plan.columns is not None:
        ids, values, ranks, num_columns = plan.columns
        cells = n * num_columns
        logprobs = ids[:cells].view(n, num_columns), values[:cells].view(n, num_columns), ranks[:n]
    return SampledRows(plan.drawn.token_ids[:n], plan.drawn.status[:n], logprobs)
