"""From the scan's tiles to a token, one program a row; what a short list cannot decide is left to `whole_rows`."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import put_first_bracket
from drawlot.kernels.triton.from_list import draw_from_list
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.race import race_in_tile, race_of_tiles
from drawlot.kernels.triton.reduce import span, sum_of_masses
from drawlot.kernels.triton.refused import without_refused
from drawlot.kernels.triton.scan import raw_apart
from drawlot.kernels.triton.states import filters_of, noise_key, scale_of, temperature_of
from drawlot.kernels.triton.summary import COUNT, COUNT_OF_RANKS, GREEDY, NO_TOKEN, TILES, WHOLE, put, put_cut
from drawlot.kernels.triton.values import (
    LAST_ID,
    MINUS_INF,
    MINUS_INF_ORDER,
    TILE,
    is_edited,
    load_values,
    order_of,
    value_of,
)
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))
_SKIPPED = tl.constexpr(int(RowStatus.SKIPPED))


@triton.jit
def finish_kernel(
    rows,
    states,
    tiles,
    lists,
    whole,
    wanted,
    drawn,
    summary,
    RAW: tl.constexpr,
    WIDE: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    GATHER: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one row. T: power of two >= number of tiles; ROOM: tokens of a list; GATHER: tiles read at a time."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, T)
    at = row * tiles.stride + tile
    exists = tile < rows.num_tiles
    follow(OVERLAP)
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
    state = tl.load(states.index + row)
    if state < 0:
        put(drawn, summary, row, -1, _SKIPPED, NO_TOKEN, 0, 0.0, 0.0)
        return
    draws = state >= 0
    if tiles.undrawn is not None:
        draws = tl.load(tiles.undrawn + row) == 0
    if tiles.refused is not None:
        refused = tl.load(tiles.refused + row)
        if refused >= 0:
            maxima, sums = without_refused(rows, states, tiles, state, row, refused, tile, maxima, sums)
            tl.debug_barrier()
    temperature = temperature_of(states, state)
    top_k, top_p, min_p = filters_of(states, state)

    orders = order_of(maxima)
    has_token = maxima > MINUS_INF
    # A bad tile is above all others.
    highest, lowest, num_tiles = span(
        tl.where(sums != sums, LAST_ID, orders), tl.where(has_token, orders, LAST_ID), has_token.to(tl.int32)
    )
    if highest == LAST_ID:
        put(drawn, summary, row, -1, _NONFINITE, NO_TOKEN, 0, 0.0, 0.0)
        return
    if num_tiles == 0:
        put(drawn, summary, row, -1, _EMPTY, NO_TOKEN, 0, 0.0, 0.0)
        return

    row_max = value_of(highest)
    if tiles.raw_sums is not None:
        _put_raw_mass(rows, states, tiles, summary, state, row, at, exists, maxima, sums, row_max)
    if temperature == 0:
        best = tl.min(tl.where(orders == highest, tile, LAST_ID))
        ids = best * TILE + tl.arange(0, TILE)
        token = tl.min(tl.where(load_values(rows, row, ids, ids >= 0) == row_max, ids, LAST_ID))
        put_cut(summary, row, MINUS_INF, -1)
        put(drawn, summary, row, token, 0, GREEDY, 1, row_max, log_row_mass(maxima, sums, row_max))
        _ask_for_rank(rows, tiles, whole, wanted, summary, state, row, False, RAW)
        return

    filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
    # A row whose filters keep everything draws as one without filters, to the bit: where its tokens fit, both list.
    done = False
    if (filtered & (top_k <= ROOM)) | (num_tiles <= ROOM):
        done = draw_from_list(
            rows,
            states,
            lists,
            drawn,
            summary,
            state,
            row,
            maxima,
            sums,
            lowest,
            highest,
            num_tiles,
            draws,
            WIDE,
            T,
            ROOM,
            GATHER,
        )
    if done:
        _ask_for_rank(rows, tiles, whole, wanted, summary, state, row, False, RAW)
        return
    if filtered:
        slot = tl.atomic_add(tiles.control + COUNT, 1)
        tl.store(whole.rows + slot, row)
        log_mass = 0.0
        if top_k <= 0:
            shift = tl.where(sums > 0, maxima - row_max, 0.0)
            log_mass = tl.log(sum_of_masses(sums * tl.exp(shift * scale_of(temperature))))
        put_first_bracket(rows, states, whole, state, row, lowest, highest, num_tiles, log_mass)
        tl.store(summary.floats + row, row_max)
        tl.store(summary.path + row, WHOLE)
        tl.store(summary.rank + row, 0)
    else:
        key = noise_key(states, state, row)
        best, mass = race_of_tiles(maxima, sums, row_max, temperature, key, T, WIDE)
        token = race_in_tile(rows, row, best, MINUS_INF_ORDER, -1, row_max, temperature, key, WIDE)
        put_cut(summary, row, MINUS_INF, -1)
        put(drawn, summary, row, token, 0, TILES, 0, row_max, tl.log(mass))
    _ask_for_rank(rows, tiles, whole, wanted, summary, state, row, True, RAW)


@triton.jit
def _ask_for_rank(rows, tiles, whole, wanted, summary, state, row, unknown, RAW: tl.constexpr):
    """Leaves a rank to be counted where it is wanted and not known: edits move tokens of raw logits."""
    if wanted is not None:
        if RAW:
            unknown = unknown | is_edited(rows, row)
        if unknown & (tl.load(wanted.wanted + state) != 0):
            tl.store(whole.rank_rows + tl.atomic_add(tiles.control + COUNT_OF_RANKS, 1), row)
            tl.store(summary.rank + row, 1)


@triton.jit
def log_row_mass(maxima, sums, row_max):
    """float32: log of a row's mass at T = 1, relative to row_max."""
    return tl.log(sum_of_masses(tl.where(sums > 0, sums * tl.exp(maxima - row_max), 0.0)))


@triton.jit
def _put_raw_mass(rows, states, tiles, summary, state, row, at, exists, maxima, sums, row_max):
    """Stores maximum and mass of the raw logits."""
    if raw_apart(rows, states, state, row):
        maxima = tl.load(tiles.raw_maxima + at, mask=exists, other=MINUS_INF)
        sums = tl.load(tiles.raw_sums + at, mask=exists, other=0.0)
        row_max = tl.max(maxima)
    tl.store(summary.floats + 2 * summary.num_rows + row, row_max)
    tl.store(summary.floats + 3 * summary.num_rows + row, log_row_mass(maxima, sums, row_max))
