"""Launches: the scan, the finish of each row, whole reads for rows that need them and what logprobs are left."""

from typing import Any

import torch
import triton
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.triton.all_tokens import put_many_top_tokens
from drawlot.kernels.triton.arguments import Columns, Drawn, Rows, States, Wanted
from drawlot.kernels.triton.finish import finish_kernel
from drawlot.kernels.triton.launch import Launch, pack
from drawlot.kernels.triton.scan import scan_kernel
from drawlot.kernels.triton.state_table import asked_of
from drawlot.kernels.triton.whole_rows import whole_rows_kernel
from drawlot.kernels.triton.workspace import (
    BLOCK,
    FEW_REGISTERS,
    FEW_ROWS,
    FINISH_REGISTERS,
    MANY_PROGRAMS,
    MANY_WARPS,
    NUM_WARPS,
    RANK_TILES,
    ROOM,
    ROWS_AHEAD,
    ROWS_AT_ONCE,
    SCAN_TILES,
    WHOLE_TILES,
    Workspace,
    columns_of,
    long_room,
    num_multiprocessors,
    overlaps,
    programs_beside,
    programs_together,
    rows_aside,
    rows_of,
    scan_registers,
    scan_warps,
    sets_up_early,
    wanted_of,
)

_NO_CALL = -1
"""As many rows as no call has"""
_PROCESSORS_A_ROW = 16
"""Where each row has so many, few programs read whole rows no later than all that run at once"""


def sample_rows(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    n, device = len(logits), logits.device
    drawn = Drawn(torch.empty(n, dtype=torch.int64, device=device), torch.empty(n, dtype=torch.uint8, device=device))
    columns = None if wanted is None else columns_of(wanted, n, device)
    if n:
        rows = rows_of(logits, edits)
        raw = wanted is not None and wanted.mode.startswith("raw")
        work = Workspace.of(n, rows.num_tiles, device, raw=raw, wide=wide)
        asked = None if wanted is None else wanted_of(wanted)
        states = _states(params, logits.shape[1], None if asked is None else asked.wanted)
        packed = pack(rows), pack(states)
        mode = "raw_logprobs" if wanted is None else wanted.mode
        for launch in launches_of_draw(work, rows.vocab_size, asked, columns, mode, drawn, wide=wide):
            launch(n, *packed)
        if wanted is not None and columns is not None:
            put_many_top_tokens(rows, states, wanted, drawn, work.summary, columns)
    return SampledRows(drawn.token_ids, drawn.status, None if columns is None else columns[:3])


def launches_of_draw(
    work: Workspace,
    vocab_size: int,
    wanted: Wanted | None,
    columns: Columns | None,
    mode: str,
    drawn: Drawn,
    *,
    wide: bool,
    reads_whole: bool = True,
    top_aside: bool = True,
    orders: int = 2,
) -> list[Launch]:
    """What draws the tokens of rows; each launch is given the rows and their states.

    Args:
        work: Scratch.
        vocab_size: Of a row.
        wanted: Which rows want logprobs; None: nobody does.
        columns: Where they go. A drawn token's only column is filled by the way.
        mode: Of the logprobs.
        drawn: Where tokens and status go.
        wide: Float64 noise.
        reads_whole: Some rows are read again as a rule, not by chance alone.
        top_aside: Some rows want top tokens that their draw does not need; if not, few rows are no slower for it.
        orders: As for `row_order.row_in_order`.
    """
    device = drawn.status.device
    num_tiles, processors = triton.cdiv(vocab_size, TILE), num_multiprocessors(device)
    num_blocks, full = triton.cdiv(num_tiles, SCAN_TILES), vocab_size % TILE == 0
    whole_tiles, rank_tiles = min(WHOLE_TILES, work.tile_block), min(RANK_TILES, work.tile_block)
    few_programs = programs_beside(device)
    num_programs = programs_together(device) if reads_whole else few_programs
    raw = work.tiles.raw_sums is not None
    only_column = columns if columns is not None and columns.count == 1 else None
    all_columns = columns if only_column is None else None
    logits = mode.endswith("logits")
    # Noise has the bits of `rng` only without fused multiply-add.
    how: dict[str, Any] = {"OVERLAP": overlaps(device), "enable_fp_fusion": False}
    follow = {**how, "launch_pdl": how["OVERLAP"]}
    # Raw ones are told beside the draw. Who has none compiles it all the same: another batch may.
    aside = (rows_aside(device) if top_aside else _NO_CALL) if raw and columns is not None and not only_column else 0

    early: dict[str, Any] = {"EARLY": how["OVERLAP"], "launch_pdl": how["OVERLAP"]}
    at_once: dict[str, Any] = {"num_warps": NUM_WARPS, "maxnreg": FEW_REGISTERS, "AT_ONCE": True}
    most_early = MANY_PROGRAMS // num_blocks
    few_early = min(FEW_ROWS, most_early)

    def is_early(rows: Rows) -> bool:
        return bool(how["OVERLAP"]) and sets_up_early(rows)

    def lowers(rows: Rows) -> bool:
        return work.tiles.edit_bounds is not None and rows.edits_of is not None

    def rows_ahead(rows: Rows) -> int:
        return 0 if rows.edits_of is None else ROWS_AHEAD

    def by_mass(rows: Rows) -> bool:
        return lowers(rows) and rows.logits.dtype.itemsize == 2

    lays = {"LOWERS": False, "BY_MASS": False}
    lays_ahead = {**lays, "AHEAD": rows_ahead}
    return [
        Launch(
            scan_kernel,
            lambda n, option: (n + option("AHEAD")) * num_blocks + n * option("BY_MASS"),
            work.tiles,
            orders,
            NUM_BLOCKS=num_blocks,
            TILES=SCAN_TILES,
            FULL=full,
            num_warps=scan_warps,
            maxnreg=lambda rows: scan_registers(rows, full=full),
            enable_fp_fusion=False,
            # Of many programs none is set up early.
            EARLY=is_early,
            OVERLAP=how["OVERLAP"],
            launch_pdl=is_early,
            LOWERS=lowers,
            BY_MASS=by_mass,
            AHEAD=lambda rows: 0 if lowers(rows) else rows_ahead(rows),
            forms=(
                (min(ROWS_AT_ONCE, few_early), {**early, **lays, "AHEAD": 0}),
                (few_early, {**early, **lays_ahead}),
                (most_early, early) if most_early > FEW_ROWS else (FEW_ROWS, lays_ahead),
            ),
        ),
        Launch(
            finish_kernel,
            lambda n, _: 2 * n if n <= aside else n,
            work.tiles,
            work.lists,
            work.lists_aside,
            work.whole,
            wanted,
            only_column,
            all_columns,
            drawn,
            work.summary,
            RAW=raw,
            LOGITS=logits,
            WIDE=wide,
            T=work.tile_block,
            ROOM=ROOM,
            BLOCK=BLOCK,
            ASIDE=False,
            LOWERS=lowers,
            BY_MASS=by_mass,
            AT_ONCE=False,
            maxnreg=FINISH_REGISTERS,
            # Rows that find a place at once have more warps; by fewer, several columns spill registers.
            num_warps=MANY_WARPS if all_columns is None else NUM_WARPS,
            forms=(
                (min(aside, FEW_ROWS), {**at_once, **lays, "ASIDE": True}),
                (aside, {**at_once, "ASIDE": True}),
                (FEW_ROWS, {**at_once, **lays}),
                (processors, at_once),
                (2 * processors, {"num_warps": NUM_WARPS}),
            ),
            **follow,
        ),
        Launch(
            whole_rows_kernel,
            # The next step waits for those that find no place beside rows that are being finished.
            lambda n, _: num_programs if n > processors // _PROCESSORS_A_ROW else few_programs,
            work.tiles,
            work.lists,
            work.whole,
            wanted,
            only_column,
            all_columns,
            drawn,
            work.summary,
            triton.cdiv(num_tiles, whole_tiles),
            triton.cdiv(num_tiles, rank_tiles),
            RAW=raw,
            LOGITS=logits,
            WIDE=wide,
            T=work.tile_block,
            TILES=whole_tiles,
            RANK_TILES=rank_tiles,
            ROOM=long_room(num_tiles),
            LIST_ROOM=ROOM,
            BLOCK=BLOCK,
            # Verification needs laws of rows; processed logprobs are told relative to what is kept.
            CUT=work.tiles.undrawn is not None or (wanted is not None and not raw),
            maxnreg=128,
            num_warps=NUM_WARPS,
            **follow,
        ),
    ]


def _states(params: RowParams, vocab_size: int, wanted: Tensor | None) -> States:
    """Tables of one request a row; a top_k that keeps everything is off, as in `sampling.states.row_numbers`."""
    n = len(params.seed)
    floats = torch.stack((params.temperature, params.top_p, params.min_p))
    top_k = params.top_k.masked_fill(params.top_k >= vocab_size, 0)
    ints = torch.stack((top_k, params.seed, params.choice))
    index = torch.arange(n, device=floats.device)
    positions, step_rows = params.position.contiguous(), params.row.contiguous()
    return States(floats, ints, asked_of(floats, ints, wanted), n, index, positions, step_rows)
