"""Draws within a short list of a row's best tokens, if the list holds all that the row keeps."""

import triton
import triton.language as tl

from drawlot.kernels.triton.listing import clear_list, line_of, list_tokens, load_list, select_tiles
from drawlot.kernels.triton.race import TARGET_TILE, TARGET_TOKEN, race, z_of
from drawlot.kernels.triton.reduce import span, sum_by_tile, total_and_last
from drawlot.kernels.triton.states import filters_of, noise_key, scale_of, temperature_of
from drawlot.kernels.triton.summary import LISTED, put, put_cut
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE, ids_of, load_values, order_of, value_of

_WITHOUT_TOP_K = tl.constexpr(64)
"""Tokens that the list of a row without top_k holds at least"""
_CHUNK = tl.constexpr(32)
_FEW_TILES = tl.constexpr(64)


@triton.jit
def draw_from_list(
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
    WIDE: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    GATHER: tl.constexpr,
):
    """Whether the list held all that the row keeps; if so, its token and summary are stored.

    maxima, sums: float32 [T], of the row's tiles; lowest, highest: orders of its tile maxima; num_tiles: that have one;
    draws: otherwise nobody asks for the token, and it is -1.
    """
    top_k, top_p, min_p = filters_of(states, state)
    temperature = temperature_of(states, state)
    filtered = (top_k > 0) | (top_p < 1) | (min_p > 0)
    need = tl.where(top_k > 0, top_k, tl.where(filtered, _WITHOUT_TOP_K, LAST_ID)).to(tl.int32)
    listed, complete = _list_best(rows, row, lists, maxima, lowest, highest, num_tiles, need, T, ROOM, GATHER)
    done = listed <= ROOM
    if done:
        row_max = value_of(highest)
        slot = tl.arange(0, ROOM)
        value, token = load_list(lists, row, slot)
        z = z_of(value, row_max, temperature, WIDE)
        mass = tl.exp(z)
        tl.store(lists.masses + row * lists.room + slot, mass)
        tl.debug_barrier()
        rank, mass_before = _in_order(lists, row, listed, value, slot, ROOM)

        # How many tokens top_k and min_p keep, and whether the list shows it.
        num_kept = tl.where(top_k > 0, tl.minimum(top_k, listed), listed)
        done = (top_k > 0) | complete
        if min_p > 0:
            above = tl.sum((z >= tl.log(min_p)).to(tl.int64))
            done = done | (above < listed)
            num_kept = tl.maximum(tl.minimum(num_kept, above), 1)
        kept = (slot < listed) & (rank < num_kept)
        if top_p < 1:
            total = tl.sum(tl.where(kept, mass, 0.0)).to(tl.float64)
            if not done:
                # Without a limit the mass that top_p counts is the row's, unless min_p cuts it below the list's end.
                shift = tl.where(sums > 0, maxima - row_max, 0.0)
                row_mass = tl.sum(sums * tl.exp(shift * scale_of(temperature))).to(tl.float64)
                done = (min_p == 0) & (total >= top_p * row_mass)
                total = row_mass
            kept = kept & ((mass_before < top_p * total) | (rank == 0))

        if done:
            total, cut_value, cut_id = total_and_last(mass, kept, rank, value, token)
            winner, own_rank = tl.full([], -1, tl.int32), tl.full([], -1, tl.int32)
            if draws:
                key = noise_key(states, state, row)
                tile = token // TILE
                # The last token of a tile has the tile's mass and wins over those before it, whose noise is the same.
                log_mass = tl.log(sum_by_tile(tl.where(kept, mass, 0.0), tile))
                best, _ = race(tile, tl.where(kept, log_mass, MINUS_INF), tile, key, TARGET_TILE, WIDE)
                inside = tl.where(kept & (tile == best), z, MINUS_INF)
                winner, own_rank = race(token, inside, rank, key, TARGET_TOKEN, WIDE)
            put_cut(summary, row, cut_value, cut_id)
            put(drawn, summary, row, winner, 0, LISTED, own_rank + 1, row_max, tl.log(total))
    return done


@triton.jit
def _in_order(lists, row, listed, value, slot, ROOM: tl.constexpr):
    """How many tokens of the list come before each token of it, int32 [ROOM], and their mass, float64 [ROOM].

    By comparing all pairs, the others along axis 0, where threads add up alone: for so few tokens quicker than putting
    them in order. Equal values stand in the list by id.
    """
    rank = tl.zeros([ROOM], tl.int32)
    mass_before = tl.zeros([ROOM], tl.float64)
    start = 0
    while start < listed:
        other = start + tl.arange(0, _CHUNK)
        other_value, _ = load_list(lists, row, other)
        other_mass = tl.load(lists.masses + row * lists.room + other)
        earlier = other_value[:, None] > value[None, :]
        earlier |= (other_value[:, None] == value[None, :]) & (other[:, None] < slot[None, :])
        rank += tl.sum(earlier.to(tl.int32), 0)
        mass_before += tl.sum(tl.where(earlier, other_mass[:, None], 0.0), 0)
        start += _CHUNK
    return rank, mass_before


@triton.jit
def _list_best(
    rows,
    row,
    lists,
    maxima,
    lowest,
    highest,
    num_tiles,
    need,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    GATHER: tl.constexpr,
):
    """Lists at least `need` of a row's best tokens: how many, more than ROOM if it has no room, and if all are."""
    tile = tl.arange(0, T)
    orders = order_of(maxima)
    has_token = maxima > MINUS_INF
    if T <= _FEW_TILES:
        # Fewer tiles than tokens needed: the line is drawn through the tokens themselves.
        ids = ids_of(tile)
        x = load_values(rows, row, ids, ids >= 0).reshape(T * TILE)
        token_orders = order_of(x)
        has_value = x > MINUS_INF
        _, lowest, num = span(token_orders, tl.where(has_value, token_orders, LAST_ID), has_value.to(tl.int32))
        line, _ = line_of(token_orders, has_value, lowest, highest, num, need)
        selected = has_token & (orders >= line)
        num_selected = tl.sum(selected.to(tl.int32))
    else:
        line, num_selected = line_of(orders, has_token, lowest, highest, num_tiles, need)
        selected = has_token & (orders >= line)
    select_tiles(lists, row, tile, selected)
    clear_list(lists, row, ROOM)
    tl.debug_barrier()
    listed = list_tokens(rows, row, lists, num_selected, line, LAST_ID, False, ROOM, GATHER)
    tl.debug_barrier()
    return listed, line == -LAST_ID
