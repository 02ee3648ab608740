"""Draws within a short list of a row's best tokens, if the list holds all that the row keeps."""

import triton
import triton.language as tl

from drawlot.kernels.triton.column_values import put_column, result_of
from drawlot.kernels.triton.listing import (
    line_of,
    list_tokens,
    load_groups,
    load_list,
    ranks_of_list,
    select_groups,
    survey,
)
from drawlot.kernels.triton.noise import gumbel
from drawlot.kernels.triton.race import TARGET_TILE, TARGET_TOKEN, z_of
from drawlot.kernels.triton.reduce import FIXED_POINT, sum_by_tile, sum_two, winner_of
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import LISTED, put
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of, order_of

_WITHOUT_TOP_K = tl.constexpr(64)
"""Tokens that the list of a row without top_k holds at least"""
_FEW_TILES = tl.constexpr(64)


@triton.jit
def begin_list(
    rows,
    refused,
    row,
    lists,
    maxima,
    best_groups,
    found,
    filters,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Draws a line that all tokens reach which the row may keep, and begins to load what may reach it.

    refused: as for `load_groups`; maxima, best_groups: [T], of the row's tiles; found: what `survey` says of them;
    filters: of `filters_of`. Returns the line, an order (-LAST_ID: the row has no token below), what `select_groups`
    returns, and what `load_groups` returns of the first.
    """
    top_k, top_p, min_p = filters
    filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
    need = tl.where(top_k > 0, top_k, tl.where(filtered, _WITHOUT_TOP_K, LAST_ID)).to(tl.int32)
    tile = tl.arange(0, T)
    orders = order_of(maxima)
    has_token = maxima > MINUS_INF
    if T <= _FEW_TILES:
        # Fewer tiles than tokens needed: the line is drawn through the tokens themselves.
        ids = ids_of(tile)
        x = load_allowed(rows, refused, row, ids, ids >= 0).reshape(T * TILE)
        token_orders = order_of(x)
        has_value = x > MINUS_INF
        line, _ = line_of(token_orders, has_value, survey(x, x != x), need)
    else:
        line, _ = line_of(orders, has_token, found, need)
    num_alone, num_crowded = select_groups(lists, row, orders, best_groups, line, LAST_ID)
    tl.debug_barrier()
    group, x = load_groups(rows, refused, row, lists, 0, num_alone, num_crowded, False, ROOM, BLOCK)
    return line, num_alone, num_crowded, group, x


@triton.jit
def draw_from_list(
    rows,
    refused,
    lists,
    drawn,
    summary,
    row,
    maxima,
    sums,
    begun,
    row_max,
    temperature,
    filters,
    key,
    draws,
    columns,
    has_column,
    counts,
    undecided,
    raw_log_mass,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    WIDE: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Whether the list held all that the row keeps; if so, its token and summary are stored.

    maxima, sums: float32 [T], of the row's tiles; begun: what `begin_list` returns; filters, key: what `filters_of` and
    `noise_key` of `states` return; draws: otherwise nobody asks for the token, and it is -1; has_column: whether
    columns, if there are any, are to have the token; counts: whether to count the row in `undecided`, if there
    is that, as soon as the list decides it; raw_log_mass: of the raw logits, if they have the same values.
    """
    top_k, top_p, min_p = filters
    line, num_alone, num_crowded, group, x = begun
    listed = list_tokens(rows, refused, row, lists, num_alone, num_crowded, group, x, line, LAST_ID, False, ROOM, BLOCK)
    done = listed <= ROOM
    tl.debug_barrier()
    if done:
        slot = tl.arange(0, ROOM)
        value, token = load_list(lists, row, slot)
        z = z_of(value, row_max, temperature, WIDE)
        mass = tl.exp(z)
        # Early, where other work waits for memory.
        tile = token // TILE
        tile_noise, token_noise = tl.zeros_like(z), tl.zeros_like(z)
        if draws:
            tile_noise = gumbel(tile, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE)
            token_noise = gumbel(token, key[0], key[1], TARGET_TOKEN, key[2], key[3], WIDE)
        rank = ranks_of_list(lists, row, listed, value, token, slot, ROOM)

        # How many tokens top_k and min_p keep, and whether the list shows it.
        num_kept = tl.where(top_k > 0, tl.minimum(top_k, listed), listed).to(tl.int32)
        done = (top_k > 0) | (line == -LAST_ID)
        if min_p > 0:
            above = tl.sum((z >= tl.log(min_p)).to(tl.int32))
            done = done | (above < listed)
            num_kept = tl.maximum(tl.minimum(num_kept, above), 1)
        # As integers, whose sums know no order.
        whole = (mass * FIXED_POINT).to(tl.int64)
        total = tl.sum(tl.where(rank < num_kept, whole, 0))
        if top_p < 1:
            tl.store(lists.masses + row * lists.room + rank, whole)
            limit = top_p * total.to(tl.float64)
            if not done:
                # Without a limit the mass that top_p counts is the row's, unless min_p cuts it below the list's end.
                shift = tl.where(sums > 0, maxima - row_max, 0.0)
                row_mass = tl.sum(sums * tl.exp(shift * scale_of(temperature))).to(tl.float64) * FIXED_POINT
                done = (min_p == 0) & (total >= top_p * row_mass)
                limit = top_p * row_mass
            tl.debug_barrier()
            in_order = tl.load(lists.masses + row * lists.room + slot)
            before = tl.cumsum(in_order, 0) - in_order
            within = ((before.to(tl.float64) < limit) | (slot == 0)) & (slot < num_kept)
            num_kept, total = sum_two(within.to(tl.int32), tl.where(within, in_order, 0))
        kept = rank < num_kept

        if done:
            if undecided is not None:
                if counts:
                    tl.atomic_add(undecided, 1, sem="relaxed")
            last = rank == num_kept - 1
            tl.store(summary.cut_value + row + slot * 0, value, mask=last)
            tl.store(summary.cut_id + row + slot * 0, token, mask=last)
            winner = tl.full([], -1, tl.int32)
            if draws:
                # The last token of a tile has the tile's mass and wins over those before it, whose noise is the same.
                log_masses = tl.log(sum_by_tile(tl.where(kept, mass, 0.0), tile))
                best = winner_of(tl.where(kept, log_masses, MINUS_INF) + tile_noise, tile)
                winner = winner_of(tl.where(kept & (tile == best), z, MINUS_INF) + token_noise, token)
            log_mass = tl.log((total.to(tl.float64) * (1 / FIXED_POINT)).to(z.dtype))
            put(drawn, summary, row, winner, 0, LISTED, row_max, log_mass)
            if columns is None:
                tl.store(summary.rank + row + slot * 0, rank + 1, mask=token == winner)
            else:
                # Unedited: the maximum of the raw logits is the row's.
                logprob = result_of(value, row_max, raw_log_mass if RAW else log_mass, temperature, RAW, LOGITS)
                put_column(columns, row, token, logprob, rank + 1, token == tl.where(has_column, winner, -1))
    return done
