"""Logprobs of drawn or given tokens, and of top tokens."""

from typing import Any

import torch
import triton
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits, LogprobsWanted
from drawlot.kernels.triton.all_tokens import put_many_top_tokens
from drawlot.kernels.triton.arguments import Columns, Drawn, States, Wanted
from drawlot.kernels.triton.columns import columns_kernel
from drawlot.kernels.triton.launch import Launch, pack
from drawlot.kernels.triton.scan import scan_kernel
from drawlot.kernels.triton.state_table import asked_of
from drawlot.kernels.triton.workspace import (
    BLOCK,
    GATHER,
    NUM_WARPS,
    ROOM,
    SCAN_TILES,
    Workspace,
    columns_of,
    overlaps,
    rows_of,
    scan_warps,
    wanted_of,
)


def launch_of_columns(work: Workspace, wanted: Wanted, drawn: Drawn, columns: Columns, mode: str) -> Launch:
    """What fills the columns from what the draw left behind."""
    return Launch(
        columns_kernel,
        lambda n, _: n,
        work.tiles,
        work.lists,
        wanted,
        drawn,
        work.summary,
        columns,
        RAW=mode.startswith("raw"),
        LOGITS=mode.endswith("logits"),
        T=work.tile_block,
        ROOM=ROOM,
        BLOCK=BLOCK,
        TILES=GATHER,
        OVERLAP=overlaps(drawn.status.device),
        launch_pdl=overlaps(drawn.status.device),
        num_warps=NUM_WARPS,
        enable_fp_fusion=False,
    )


def logprobs_of(logits: Tensor, token_ids: Tensor, wanted: LogprobsWanted) -> tuple[Tensor, Tensor, Tensor]:
    """Raw logprobs of given tokens [N] of logits [N, V], nothing drawn: ids [N, C], logprobs [N, C], ranks [N]."""
    n, device = len(logits), logits.device
    columns = columns_of(wanted, n, device)
    if n:
        rows = rows_of(logits, Edits())
        work = Workspace.of(n, rows.num_tiles, device, raw=False, wide=False)
        # A greedy request for each row: summed at T = 1. What is wanted of a row is looked up by its request.
        floats = torch.zeros((3, n), dtype=torch.float64, device=device)
        ints, index = torch.zeros((3, n), dtype=torch.int64, device=device), torch.arange(n, device=device)
        states = States(floats, ints, asked_of(floats, ints, None), n, index, ints[0], None)
        packed = pack(rows), pack(states)
        num_blocks = triton.cdiv(rows.num_tiles, SCAN_TILES)
        shape = {"NUM_BLOCKS": num_blocks, "TILES": SCAN_TILES, "FULL": rows.vocab_size % TILE == 0}
        how: dict[str, Any] = {"EARLY": False, "OVERLAP": False, "num_warps": scan_warps, "enable_fp_fusion": False}
        how |= {"LOWERS": False, "BY_MASS": False, "AHEAD": 0}
        Launch(scan_kernel, lambda n, _: n * num_blocks, work.tiles, 0, **shape, **how)(n, *packed)
        maxima = work.tiles.maxima[:, : rows.num_tiles].double()
        maximum = maxima.amax(1)
        mass = (work.tiles.sums[:, : rows.num_tiles] * (maxima - maximum.unsqueeze(1)).exp()).sum(1)
        work.summary.floats[2], work.summary.floats[3] = maximum, mass.log()
        work.summary.rank.zero_()
        drawn = Drawn(token_ids, torch.zeros(n, dtype=torch.uint8, device=device))
        launch_of_columns(work, wanted_of(wanted), drawn, columns, wanted.mode)(n, *packed)
        put_many_top_tokens(rows, states, wanted, drawn, work.summary, columns)
    return columns[:3]
