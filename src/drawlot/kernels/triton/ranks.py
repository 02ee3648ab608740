"""Ranks of drawn tokens that no list tells: what comes before them is counted in whole rows."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import law_of_row, load_as, result_of
from drawlot.kernels.triton.listing import comes_before
from drawlot.kernels.triton.reduce import total_of
from drawlot.kernels.triton.values import MINUS_INF, TILE, ids_of, is_edited


@triton.jit
def count_ranks(
    rows,
    states,
    tiles,
    columns,
    drawn,
    summary,
    row,
    part,
    stop,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    TILES: tl.constexpr,
):
    """Adds to the drawn token's rank what comes before it in some parts; who has the first part stores its column."""
    token = tl.load(drawn.token_ids + row).to(tl.int32)
    own = token + tl.arange(0, 1)
    own_x = tl.max(load_as(rows, row, own, own >= 0, RAW))
    # Tiles below the token are not read, unless their maxima are of other values.
    line = own_x
    if RAW:
        if is_edited(rows, row):
            line = tl.full([], float("-inf"), tl.float32)
    if columns is not None:
        if part == 0:
            state = tl.load(states.index + row)
            maximum, log_mass, temperature, _, _ = law_of_row(states, summary, state, row, RAW)
            tl.store(columns.ids + row, token)
            tl.store(columns.logprobs + row, result_of(own_x, maximum, log_mass, temperature, RAW, LOGITS))
    num_before = tl.zeros([], tl.int32)
    while part < stop:
        tile = part * TILES + tl.arange(0, TILES)
        maxima = tl.load(tiles.maxima + row * tiles.stride + tile, mask=tile < rows.num_tiles, other=MINUS_INF)
        reaches = (tile < rows.num_tiles) & (maxima >= line)
        ids = ids_of(tile)
        x = load_as(rows, row, ids, reaches[:, None], RAW)
        before = comes_before(x, ids, own_x, token) & (x > MINUS_INF)
        num_before += total_of(before.to(tl.int32).reshape(TILES * TILE))
        part += 1
    if columns is None:
        tl.atomic_add(summary.rank + row, num_before)
    else:
        tl.atomic_add(columns.ranks + row, num_before.to(tl.int64))
