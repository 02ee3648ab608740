"""Block shapes, and the scratch memory of a call."""

from functools import cache
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from drawlot.kernels.inputs import TILE, Edits, LogprobsWanted
from drawlot.kernels.triton.arguments import Columns, Lists, Overlay, Rows, Summary, Tiles, Wanted, Whole
from drawlot.kernels.triton.edits import overlay_of
from drawlot.kernels.triton.proposal import RECORD
from drawlot.kernels.triton.ranges import NUM_RANGES, NUM_SUMS
from drawlot.kernels.triton.tensors import adjacent
from drawlot.kernels.triton.weigh_proposals import NUM_COUNTS

SCAN_TILES = 16
"""Tiles that a program of the scan reads"""
ROOM = 128
"""Tokens of a short list"""
BLOCK = 512
"""Groups of four tokens that are read at a time for a short list"""
FINISH_REGISTERS, FEW_REGISTERS = 128, 160
"""So many that two programs of a finish fit a multiprocessor, and that only one does"""
GATHER = 32
"""Tiles that a count of tokens reads at a time"""
WHOLE_TILES, RANK_TILES = 32, 64
"""Tiles that a program reads at a time where it reads a whole row, and where it counts ranks"""
LONG_ROOM = 8192
"""Tokens of a long list, at most"""
MANY_PROGRAMS = 9000
"""Of a scan of half-width logits: what each more takes to be set up early is not worth it; others wait for memory"""
FEW_ROWS = 32
"""That find all of the GPU free: edits are laid over all of them, none is `lowered`"""
ROWS_AT_ONCE = 16
"""Of a large vocabulary, of which a scan's programs all run at once: no edited row begins late"""
ROWS_AHEAD = 8
"""Edited ones among the last, at most, that a scan of more rows reads by programs ahead of all others"""
_ROWS_ASIDE = 16
"""In the interpreter, as for `rows_aside`: tests have fewer rows, and more"""
NUM_WARPS, MANY_WARPS = 8, 4
"""Of a program, and of one that finishes a row of one column, if any, where there are more than run at once"""


def scan_warps(rows: Rows) -> int:
    """Of a program of the scan: so many that each thread loads four times 16 bytes."""
    return rows.logits.dtype.itemsize


def scan_registers(rows: Rows, *, full: bool) -> int | None:
    """Of its threads, at most; None: as many as ptxas likes. What it spills for fewer, rows without edits pay, too.

    full: every tile of a row has 128 tokens.
    """
    if rows.edits is None:
        return None
    # Edits that are laid over rows before, and a bitmask, take more: by so few they would spill many.
    few = rows.edits_of is not None and rows.bitmask is None
    if rows.logits.dtype.itemsize == 4:
        # Twelve programs a multiprocessor, as of scans without edits, and four leave what the finish of a row takes: of
        # 65,536 it has up to `FEW_REGISTERS` a thread.
        return 40 if few else None
    return 64 if full and few else 96


def sets_up_early(rows: Rows) -> bool:
    """Whether a scan of more than `MANY_PROGRAMS` is set up early, which takes each of them some time."""
    return rows.logits.dtype.itemsize == 4


@cache
def overlaps(device: torch.device) -> bool:
    """Whether a kernel may be set up while the one before it runs."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def num_multiprocessors(device: torch.device) -> int:
    """0 in the interpreter."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 0


@cache
def rows_aside(device: torch.device) -> int:
    """For how many rows, at most, each may have two programs: so that all find a place at once."""
    return num_multiprocessors(device) // 2 if device.type == "cuda" else _ROWS_ASIDE


@cache
def programs_together(device: torch.device) -> int:
    """How many programs of at most 128 registers a thread surely run at once; in the interpreter one does."""
    return max(2 * num_multiprocessors(device), 1)


@cache
def programs_beside(device: torch.device) -> int:
    """How many of these surely find a place while rows are being finished: what follows waits for all to begin."""
    return max(num_multiprocessors(device) // 2, 1)


def tile_block(num_tiles: int) -> int:
    """Power of two >= number of tiles, and no less than a lazy race reads at a time."""
    block: int = triton.next_power_of_2(num_tiles)
    return max(block, 32)


def long_room(num_tiles: int) -> int:
    """Tokens of a long list of rows with so many tiles: all of them, if they are few."""
    all_of_them: int = triton.next_power_of_2(num_tiles * TILE)
    return max(min(LONG_ROOM, all_of_them), 2 * ROOM)


class Workspace(NamedTuple):
    """Scratch memory for N rows."""

    tiles: Tiles
    lists: Lists
    summary: Summary
    whole: Whole
    lists_aside: Lists
    """Of programs that tell top tokens beside the draw"""
    tile_block: int
    """Power of two >= number of tiles"""

    @classmethod
    def of(cls, n: int, num_tiles: int, device: torch.device, *, raw: bool, wide: bool) -> "Workspace":
        """Room for n rows; raw: sums of raw logits too; wide: float64 noise."""
        width = tile_block(num_tiles)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        single, double, integer = torch.float32, torch.float64, torch.int32

        def lists(n: int) -> Lists:
            keys, masses = empty(torch.int64, n, ROOM), empty(torch.int64, n, ROOM)
            return Lists(empty(integer, n, width), keys, masses, empty(integer, n, 4), width, ROOM)

        raw_maxima, raw_sums = (empty(single, n, width), empty(single, n, width)) if raw else (None, None)
        return cls(
            Tiles(
                empty(single, n, width),
                empty(single, n, width),
                empty(integer, n, width),
                raw_maxima,
                raw_sums,
                width,
                triton.cdiv(num_tiles, SCAN_TILES) * SCAN_TILES,
                empty(torch.int64, 8),
            ),
            lists(n),
            Summary(empty(double, 4, n), empty(single, n), empty(integer, n), empty(integer, n), empty(integer, n), n),
            Whole(
                empty(integer, n),
                empty(integer, n),
                empty(integer, n),
                empty(single, n),
                empty(single, n),
                empty(single, n),
                empty(torch.int64, n, NUM_SUMS.value),
                empty(integer, n),
                empty(torch.int64, n, long_room(num_tiles)),
                empty(torch.int64, n, NUM_RANGES.value),
                empty(integer, n),
                empty(double, n, 4),
                empty(torch.int64, n, 8),
                empty(torch.int64, n),
                empty(integer, n, RECORD.value),
                empty(torch.int64, n, NUM_COUNTS.value),
                empty(single, n, width),
                empty(double if wide else single, n, width),
            ),
            lists(min(n, rows_aside(device))),
            width,
        )


def rows_of(logits: Tensor, edits: Edits) -> Rows:
    """What the kernels read of logits [N, V]."""
    return edited_rows(logits, logits.shape[1], edits.bitmask, overlay_of(logits, edits))


def edited_rows(logits: Tensor, vocab_size: int, bitmask: Tensor | None, edits: Overlay | None) -> Rows:
    """What the kernels read of logits [N, >= V]; copies only what has columns that are not adjacent."""
    logits = adjacent(logits)
    bitmask_stride = 0
    if bitmask is not None:
        bitmask = adjacent(bitmask)
        bitmask_stride = bitmask.stride(0)
    num_tiles = triton.cdiv(vocab_size, TILE)
    return Rows(logits, logits.stride(0), vocab_size, num_tiles, bitmask, bitmask_stride, edits, None)


def wanted_of(wanted: LogprobsWanted) -> Wanted:
    """The same for kernels."""
    ids = wanted.token_ids.contiguous()
    return Wanted(wanted.wanted.view(torch.uint8), wanted.num_top, ids, ids.shape[1])


def columns_of(wanted: LogprobsWanted, n: int, device: torch.device) -> Columns:
    """Memory for the columns of n rows."""
    shape = n, wanted.columns
    return Columns(
        torch.empty(shape, dtype=torch.int64, device=device),
        torch.empty(shape, dtype=torch.float32, device=device),
        torch.empty(n, dtype=torch.int64, device=device),
        wanted.columns,
    )
