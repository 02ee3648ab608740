"""What a row with filters keeps, if a short list holds it; if not, the row is left to `whole_rows`."""

import triton
import triton.language as tl

from drawlot.kernels.triton.decided import BOTH_SHARES, decide
from drawlot.kernels.triton.from_list import (
    begin_list,
    cut_list,
    list_row,
    mass_for_top_p,
    may_hold,
    need_of,
    noises_of_list,
)
from drawlot.kernels.triton.listing import survey, value_and_token
from drawlot.kernels.triton.race import z_of
from drawlot.kernels.triton.reduce import of_fixed
from drawlot.kernels.triton.summary import COUNT, LISTED, NO_TOKEN, WHOLE, put_cut
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, kind_of, value_of
from drawlot.kernels.triton.verification.leftover import load_draft_logits
from drawlot.kernels.triton.verification.requests import tile_stream, token_stream
from drawlot.kernels.triton.whole_row import begin_whole_row
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))


@triton.jit
def no_list(ROOM: tl.constexpr, WIDE: tl.constexpr):
    """Of a row without a list: values and ids [ROOM], the drafter's logits there, noise of the tiles and the ids."""
    noise = tl.zeros([ROOM], tl.float64 if WIDE else tl.float32)
    value, token = tl.full([ROOM], float("-inf"), tl.float32), tl.full([ROOM], LAST_ID, tl.int32)
    return value, token, tl.zeros([ROOM], tl.float32), noise, noise


@triton.jit
def cut_row(
    rows,
    drafts,
    tiles,
    lists,
    whole,
    summary,
    row,
    refused,
    line,
    temperature,
    filters,
    maxima,
    sums,
    best_groups,
    key,
    residual,
    usual,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Status, maximum, mass, cut and path of a row, and its list as in `no_list`; stores what logprobs ask for.

    line: of q; filters: of `filters_of`; maxima, sums, best_groups: [T], of the row's tiles; key, residual, usual: as
    for `draw_from_list`. A row whose path is WHOLE is left to be read again.
    """
    top_k, top_p, min_p = filters
    # A bad tile is above all others.
    found = survey(maxima, sums != sums)
    highest, num_tiles = found[0], found[2]
    status = tl.where(highest == LAST_ID, _NONFINITE, tl.where(num_tiles == 0, _EMPTY, 0))
    row_max = tl.where(status == 0, value_of(highest), 0.0)
    path = tl.where(status == 0, WHOLE, NO_TOKEN)
    cut_value, cut_id = tl.full([], float("-inf"), tl.float32), tl.full([], -1, tl.int32)
    mass = tl.full([], 1.0, tl.float32)
    value, token, draft_logits, tile_noise, token_noise = no_list(ROOM, WIDE)
    row_mass = mass_for_top_p(maxima, sums, row_max, temperature, filters)
    if (status == 0) & (may_hold(row_mass, filters, ROOM) | (num_tiles <= ROOM)):
        kind = kind_of(rows, row)
        begun = begin_list(
            rows,
            refused,
            row,
            kind,
            lists,
            (maxima, best_groups, maxima),
            found,
            need_of(filters, T, True),
            temperature,
            filters,
            T,
            ROOM,
            GROUPS,
            False,
        )
        listed, keys = list_row(rows, refused, lists, row, kind, begun, ROOM, GROUPS)
        value, token = value_and_token(keys)
        draft_logits = load_draft_logits(drafts, (line,), token, token < LAST_ID)
        z = z_of(value, row_max, temperature, WIDE)
        # While that comes.
        streams = tile_stream(residual, usual), token_stream(residual, usual)
        tile_noise, token_noise = noises_of_list(token, key, streams[0], streams[1], WIDE)
        reached = begun[0], z_of(value_of(begun[0]), row_max, temperature, WIDE)
        done, rank, num_kept, total = cut_list(
            lists, row, reached, listed, keys, z, tl.exp(z), filters, row_mass, True, ROOM
        )
        if done:
            decide(tiles, False, BOTH_SHARES, False)
            path = path * 0 + LISTED
            last = rank == num_kept - 1
            cut_value = tl.max(tl.where(last, value, MINUS_INF))
            cut_id = tl.max(tl.where(last, token, -1))
            mass = of_fixed(total).to(tl.float32)
            put_cut(summary, row, cut_value, cut_id)
    elif status != 0:
        decide(tiles, False, BOTH_SHARES, False)
    tl.store(summary.path + row, path)
    tl.store(summary.floats + row, row_max)
    tl.store(summary.floats + summary.num_rows + row, tl.log(mass))
    if path == WHOLE:
        begin_whole_row(whole, row, tl.atomic_add(tiles.control + COUNT, 1))
    return status, row_max, mass, cut_value, cut_id, path, (value, token, draft_logits, tile_noise, token_noise)
