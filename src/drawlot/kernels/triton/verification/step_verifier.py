"""Verifies the drafts of requests in the tables of a `StepSampler`: a step allocates nothing and waits for nothing."""

from collections.abc import Callable, Collection, Hashable
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from drawlot.errors import InputError
from drawlot.kernels.drafts import Method, VerifiedRows
from drawlot.kernels.inputs import TILE, LogprobsWanted
from drawlot.kernels.triton.all_tokens import put_many_top_tokens
from drawlot.kernels.triton.arguments import Columns, Drawn, Overlay, Rows, States
from drawlot.kernels.triton.launch import Launch, compiling_ahead, pack
from drawlot.kernels.triton.logprobs import launch_of_columns
from drawlot.kernels.triton.sample import launches_of_draw
from drawlot.kernels.triton.step_sampler import StepSampler
from drawlot.kernels.triton.tensors import one_a_row, refuse_capture
from drawlot.kernels.triton.verification.arguments import (
    Judged,
    Leftovers,
    Methods,
    SparseLaws,
    Step,
    StepDrafts,
    Verdicts,
    Verified,
)
from drawlot.kernels.triton.verification.laws import law_kernel
from drawlot.kernels.triton.verification.scan import scan_step_kernel
from drawlot.kernels.triton.verification.weighed import settle_weighed_kernel, weigh_kernel
from drawlot.kernels.triton.workspace import (
    BLOCK,
    FEW_REGISTERS,
    FINISH_REGISTERS,
    ROOM,
    SCAN_TILES,
    num_multiprocessors,
    overlaps,
    scan_warps,
    tile_block,
)
from drawlot.outputs import LogitsRows, SparseDraftLogits

WEIGH_TILES = 16
"""Tiles that a program weighs at a time"""
REGISTERS, WEIGH_TOGETHER = 80, 6
"""As many as let three programs of rows run at once on a multiprocessor, and so many that weigh, half as large"""
GROUP = 32
"""Requests whose rows are waited for together, and among which those to be weighed are looked for at a time"""
LAW_WARPS, WEIGH_WARPS, SETTLE_WARPS = 8, 4, 8
"""Warps of a program that finds a law or draws, of one that weighs, and of one that looks what has been weighed"""
SUM_PARTS = 4
"""Into which the scan sums a block of q: the tiles of a part lie in one warp"""
DRAW_TILES = 8
"""Tiles that a draw of what q leaves reads at a time"""


class _Memory(NamedTuple):
    """Scratch and outputs for so many requests and rows."""

    judged: Judged
    leftovers: Leftovers
    verdicts: Verdicts
    verified: Verified
    overlay: Overlay
    """Lays -inf over refused drafts"""

    @classmethod
    def of(
        cls, num_reqs: int, num_rows: int, num_drafts: int, num_tiles: int, device: torch.device, *, wide: bool
    ) -> "_Memory":
        blocks = triton.cdiv(num_tiles, SCAN_TILES)
        num_words, width = num_tiles * 4, tile_block(num_tiles)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        single, double, integer, long = torch.float32, torch.float64, torch.int32, torch.int64
        touched = torch.zeros((num_rows, num_words), dtype=integer, device=device)
        masks_one = empty(integer, num_rows)
        never = torch.full((num_tiles * 128,), -torch.inf, device=device)
        return cls(
            Judged(
                empty(integer, num_rows),
                torch.full((num_rows,), -1, dtype=integer, device=device),
                masks_one,
                touched,
                num_words,
                empty(long, num_rows),
                empty(integer, num_rows),
                empty(single, num_rows),
                empty(double, num_rows),
                empty(single, num_rows),
                empty(single, num_rows),
                empty(single, num_rows, blocks * SUM_PARTS),
                empty(single, num_rows, blocks * SUM_PARTS),
                blocks * SUM_PARTS,
                empty(single, num_rows),
                empty(single, num_rows),
                empty(single, num_rows),
                empty(single, num_rows),
                empty(integer, num_rows),
                empty(integer, num_rows),
                empty(integer, num_rows),
                empty(double, num_rows + num_drafts),
                empty(double, num_rows + num_drafts),
            ),
            Leftovers(
                empty(integer, num_reqs),
                empty(single, num_rows, width),
                empty(double if wide else single, num_rows, width),
                width,
            ),
            Verdicts(empty(integer, 1 + 2 * num_reqs), empty(integer, num_reqs)),
            Verified(
                empty(long, num_reqs, num_drafts + 1),
                empty(integer, num_reqs),
                empty(integer, num_reqs),
                empty(torch.uint8, num_rows),
                empty(long, num_rows),
            ),
            # One line of new values does for all rows.
            Overlay(masks_one, touched, never, num_words, 0),
        )


class _Plan(NamedTuple):
    """The launches of a step."""

    scan: Launch
    laws: Launch
    whole: list[Launch]
    """For requests with filters: rows whose cut no short list holds, and their laws"""
    weighed: list[Launch]
    """For requests of `block` whose drafts have laws"""
    columns: Launch | None


class StepVerifier:
    """Verification for the requests that a `StepSampler` knows."""

    compiling_ahead = staticmethod(compiling_ahead)

    def __init__(
        self,
        steps: StepSampler,
        num_drafts: int,
        methods: Tensor,
        rates: Tensor | None,
        in_use: Callable[[], Collection[int]],
    ) -> None:
        """Make room for steps of all requests.

        Args:
            steps: Knows the requests.
            num_drafts: K, of a request at most.
            methods: int64 [max_num_reqs], a `Method` each, written by the caller.
            rates: float64 [K], of `synthetic`.
            in_use: Which methods requests may have now.
        """
        self._steps = steps
        self._num_drafts = num_drafts
        self._columns = triton.next_power_of_2(num_drafts + 1)
        self._methods = Methods(methods, rates)
        self._in_use = in_use
        self._plans: dict[tuple[int, int, bool, bool], _Plan] = {}
        self._max_reqs = 0
        self._reserve(steps._floats.shape[1])

    @property
    def capture_key(self) -> Hashable:
        """A captured step may be replayed as long as this is what it was at the capture."""
        key = self._steps.capture_key
        return None if key is None else (key, *self._needed())

    def verify(
        self,
        logits: Tensor,
        rows: LogitsRows,
        draft_token_ids: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None,
        draft_lse: Tensor | None,
        bitmask: Tensor | None,
    ) -> VerifiedRows:
        """Shapes as in `RejectionSampler`; the next call overwrites what is returned."""
        steps = self._steps
        steps.apply_staged_writes()
        n, num_reqs = len(logits), len(rows.idx_mapping)
        if num_reqs > self._max_reqs:
            self._reserve(triton.next_power_of_2(num_reqs))
        with torch.cuda.device_of(logits):
            return self._verify(n, num_reqs, logits, rows, draft_token_ids, draft_logits, draft_lse, bitmask)

    def _verify(
        self,
        n: int,
        num_reqs: int,
        logits: Tensor,
        rows: LogitsRows,
        draft_token_ids: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None,
        draft_lse: Tensor | None,
        bitmask: Tensor | None,
    ) -> VerifiedRows:
        steps, columns = self._steps, self._steps._plan().columns
        memory = self._memory
        target, states = steps._rows(logits, bitmask), steps._states(rows, n)
        plain, packed_states = pack(target), pack(states)
        masked = pack(target._replace(overlay=memory.overlay))
        drafts = self._drafts(n, num_reqs, rows, draft_token_ids, draft_logits, draft_lse)
        step = pack(Step(packed_states, drafts))
        width = 1 if drafts.sparse is None else drafts.sparse.width
        plan = self._plan(width, has_laws=draft_logits is not None)
        steps._edits.lay_over(n, plain, steps._edits.edits_of(n, rows))
        blocks = triton.cdiv(steps._num_tiles, SCAN_TILES)
        sums = draft_lse is None and isinstance(draft_logits, Tensor)
        lines = num_reqs * self._num_drafts if sums else 0
        plan.scan((n + lines) * blocks + num_reqs * (self._num_drafts + 1), plain, step)
        plan.laws(num_reqs * (self._num_drafts + 1), plain, step)
        if plan.whole:
            read_whole, laws_left = plan.whole
            read_whole(n, masked, packed_states)
            laws_left(num_reqs * (self._num_drafts + 1), plain, step)
        for launch in plan.weighed:
            launch(num_reqs, plain, step)
        logprobs = None
        if plan.columns is not None and columns is not None:
            plan.columns(n, masked, packed_states)
            cells, count = n * columns.count, columns.count
            ids, values = columns.ids[:cells].view(n, count), columns.logprobs[:cells].view(n, count)
            logprobs = ids, values, columns.ranks[:n]
            self._put_many(target._replace(overlay=memory.overlay), states, Columns(*logprobs, count))
        verified = memory.verified
        return VerifiedRows(
            verified.token_ids[:num_reqs],
            verified.num_sampled[:num_reqs],
            verified.num_accepted[:num_reqs],
            verified.status[:n],
            logprobs,
        )

    def _put_many(self, rows: Rows, states: States, columns: Columns) -> None:
        """The top tokens of requests that want more than a list holds."""
        steps, verified, n = self._steps, self._memory.verified, len(columns.ids)
        max_top = steps._asked().top
        if max_top > ROOM:
            index = states.index.clamp(min=0)
            wanted, num_top = steps._wanted.wanted[index] != 0, steps._wanted.num_top[index]
            asked = LogprobsWanted(steps._mode, wanted, num_top, steps._wanted.token_ids[index], max_top)
            drawn = Drawn(verified.emitted[:n], verified.status[:n])
            put_many_top_tokens(rows, states, asked, drawn, steps._work.summary, columns)

    def _drafts(
        self,
        n: int,
        num_reqs: int,
        rows: LogitsRows,
        token_ids: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None,
        lse: Tensor | None,
    ) -> StepDrafts:
        given = draft_logits if isinstance(draft_logits, SparseDraftLogits) else (draft_logits,)
        for tensor in (token_ids, lse, *given):
            if tensor is not None and tensor.device != self._methods.of_states.device:
                raise InputError(f"drafts: must lie on {self._methods.of_states.device}; got {tensor.device}")
        x: Any = None
        sparse, stride, lines = None, 0, self._num_drafts
        if isinstance(draft_logits, SparseDraftLogits):
            ids, values = (part.contiguous().flatten(0, 1) for part in draft_logits)
            sparse = SparseLaws(ids, values, ids.shape[1])
        elif draft_logits is not None:
            per_state, per_draft, adjacent = draft_logits.stride()
            if adjacent != 1 or per_draft == 0 or per_state % per_draft:
                draft_logits = draft_logits.contiguous()
                per_state, per_draft, _ = draft_logits.stride()
            stride, lines = per_draft, per_state // per_draft
            # As one matrix: how wide its loads are depends on whether each line is aligned.
            num_lines = (len(draft_logits) - 1) * lines + draft_logits.shape[1]
            x = draft_logits.as_strided((num_lines, draft_logits.shape[2]), (stride, 1))
        return StepDrafts(
            token_ids.contiguous(),
            one_a_row(rows.cu_num_logits, num_reqs + 1),
            one_a_row(rows.idx_mapping, num_reqs),
            num_reqs,
            n,
            pack(Rows(x, stride, self._steps._vocab_size, self._steps._num_tiles, None, 0, None, None)),
            sparse,
            lines,
            None if lse is None else lse.contiguous(),
        )

    def _reserve(self, max_reqs: int) -> None:
        """Make room for so many requests."""
        refuse_capture(self._methods.of_states, "it has more requests than any before")
        steps, max_rows = self._steps, max_reqs * (self._num_drafts + 1)
        if steps._max_rows < max_rows:
            steps._reserve_rows(max_rows)
        self._max_reqs = max_reqs
        self._memory = _Memory.of(
            max_reqs, max_rows, self._num_drafts, steps._num_tiles, steps._floats.device, wide=steps._wide
        )
        self._work = steps._work
        self._plans.clear()

    def _needed(self) -> tuple[bool, bool]:
        """Whether live requests may need rows cut, and whether they may need them weighed."""
        return self._steps.has_filters, Method.BLOCK in self._in_use()

    def _plan(self, width: int, *, has_laws: bool) -> _Plan:
        """What a step does for the requests alive; width: of sparse laws."""
        sampler_plan, (cuts, weighs) = self._steps._plan(), self._needed()
        key = sampler_plan.serial, triton.next_power_of_2(width), cuts, weighs and has_laws
        if self._work is not self._steps._work:
            # The sampler's memory has grown.
            self._work = self._steps._work
            self._plans.clear()
        plan = self._plans.get(key)
        if plan is None:
            refuse_capture(self._methods.of_states, "it has not run before with what its requests ask for")
            plan = self._plans[key] = self._new_plan(sampler_plan.columns, *key[1:])
        return plan

    def _new_plan(self, columns: Columns | None, sparse: int, cuts: bool, weighs: bool) -> _Plan:
        steps, (judged, leftovers, verdicts, verified, *_) = self._steps, self._memory
        tiles = self._work.tiles._replace(undrawn=judged.undrawn)
        if columns is None:
            tiles = tiles._replace(raw_maxima=None, raw_sums=None)
        work = self._work._replace(tiles=tiles)
        n, device, wide = steps._max_rows, steps._floats.device, steps._wide
        drawn = Drawn(
            torch.empty(n, dtype=torch.int64, device=device), torch.empty(n, dtype=torch.uint8, device=device)
        )
        overlap = overlaps(device)
        # Noise has the bits of `rng` only without fused multiply-add.
        how: dict[str, Any] = {"OVERLAP": overlap, "enable_fp_fusion": False}
        follow = {**how, "launch_pdl": overlap}
        methods = self._methods
        shape = {"K": self._num_drafts, "COLUMNS": self._columns}
        scan = Launch(
            scan_step_kernel,
            lambda programs, _: programs,
            tiles,
            methods,
            judged,
            leftovers,
            verdicts,
            NUM_BLOCKS=triton.cdiv(steps._num_tiles, SCAN_TILES),
            **shape,
            SPARSE=sparse,
            TILES=SCAN_TILES,
            FULL=steps._vocab_size % TILE == 0,
            PARTS=SUM_PARTS,
            num_warps=scan_warps,
            **how,
        )

        def laws(*, cuts: bool, left: bool) -> Launch:
            return Launch(
                law_kernel,
                lambda programs, _: programs,
                tiles,
                work.lists,
                work.whole,
                methods,
                judged,
                leftovers,
                verdicts,
                drawn,
                work.summary,
                verified,
                PARTS=triton.next_power_of_2(judged.parts),
                GROUPS=BLOCK,
                REQUESTS=GROUP,
                OPEN=weighs,
                CUTS=cuts,
                LEFT=left,
                num_warps=LAW_WARPS,
                maxnreg=FINISH_REGISTERS if cuts else REGISTERS,
                forms=((num_multiprocessors(device), {"maxnreg": FEW_REGISTERS}),),
                WIDE=wide,
                T=work.tile_block,
                ROOM=ROOM,
                TILES=DRAW_TILES,
                **shape,
                **follow,
            )

        whole: list[Launch] = []
        if cuts:
            read_whole = launches_of_draw(work, steps._vocab_size, None, None, steps._mode, drawn, wide=wide)[-1]
            whole = [read_whole, laws(cuts=False, left=True)]
        emitted = Drawn(verified.emitted, verified.status)
        return _Plan(
            scan,
            laws(cuts=cuts, left=False),
            whole,
            self._launches_of_weighed(shape, follow, cuts=cuts) if weighs else [],
            None if columns is None else launch_of_columns(work, steps._wanted, emitted, columns, steps._mode),
        )

    def _launches_of_weighed(self, shape: dict[str, Any], follow: dict[str, Any], *, cuts: bool) -> list[Launch]:
        """Weigh rows of open requests, and settle these."""
        judged, leftovers, verdicts, verified, *_ = self._memory
        num_blocks: int = triton.cdiv(self._steps._num_tiles, WEIGH_TILES)
        num_places = WEIGH_TOGETHER * max(num_multiprocessors(self._methods.of_states.device), 1)

        def num_weighers(num_reqs: int, _: object) -> int:
            # No more than find a place beside those that draw, since who settles is set up when all have begun; and few
            # for few requests, of which about a row each is weighed.
            most: int = max(num_places - 2 * num_reqs, num_places // 2)
            return min(num_reqs * num_blocks, most)

        return [
            Launch(
                weigh_kernel,
                num_weighers,
                judged,
                leftovers,
                verdicts,
                NUM_BLOCKS=num_blocks,
                K=self._num_drafts,
                REQUESTS=GROUP,
                FOLLOWS=cuts,
                TILES=WEIGH_TILES,
                num_warps=WEIGH_WARPS,
                maxnreg=REGISTERS,
                **follow,
            ),
            Launch(
                settle_weighed_kernel,
                lambda num_reqs, _: num_reqs + triton.cdiv(num_reqs, GROUP),
                judged,
                leftovers,
                verdicts,
                verified,
                WIDE=self._steps._wide,
                T=self._work.tile_block,
                REQUESTS=GROUP,
                CUTS=cuts,
                num_warps=SETTLE_WARPS,
                **shape,
                **follow,
            ),
        ]
