"""Draws within a short list of a row's best tokens, if the list holds all that the row keeps."""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST
from drawlot.kernels.triton.column_values import (
    fit_a_list,
    put_column,
    put_columns,
    put_first_column,
    result_of,
    wants_first,
)
from drawlot.kernels.triton.decided import decide
from drawlot.kernels.triton.few_threads import leave_but_first
from drawlot.kernels.triton.listing import (
    begin_groups,
    comes_before,
    line_of,
    list_tokens,
    ranks_of_list,
    select_groups,
    survey,
    value_and_token,
)
from drawlot.kernels.triton.lowered import lower_list, slot_of_lowered, without_touched
from drawlot.kernels.triton.noise import gumbel
from drawlot.kernels.triton.pdl import let_next_start
from drawlot.kernels.triton.race import TARGET_TILE, TARGET_TOKEN, z_of
from drawlot.kernels.triton.reduce import (
    FIXED_POINT,
    element_of,
    first_largest,
    of_fixed,
    sum_by_tile,
    total_of,
    winner_of,
)
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import scale_of
from drawlot.kernels.triton.summary import ALL_COLUMNS, LISTED, put
from drawlot.kernels.triton.sure_winner import keeps_list
from drawlot.kernels.triton.values import (
    LAST_ID,
    MINUS_INF,
    TILE,
    ids_of,
    load_raw,
    order_of,
    value_of,
)

_WITHOUT_TOP_K, _OF_MANY_ROWS = tl.constexpr(64), tl.constexpr(96)
"""Tokens that the list of a row without top_k holds at least: more where of so many rows some list lacks a few"""
_MANY_TILES = tl.constexpr(512)
"""Of fewer, lists of 96 tokens or more would often be of more than 128"""
_FEW_TILES = tl.constexpr(64)


@triton.jit
def mass_for_top_p(maxima, sums, row_max, temperature, filters):
    """float32: the mass of a row, where top_p has no other limit; else 0. maxima, sums: [T], of its tiles."""
    top_k, top_p, _min_p = filters
    mass = tl.zeros([], tl.float32)
    if (top_k <= 0) & (top_p < 1):
        shift = tl.where(sums > 0, maxima - row_max, 0.0)
        mass = tl.sum(sums * tl.exp(shift * scale_of(temperature)))
    return mass


@triton.jit
def may_hold(row_mass, filters, ROOM: tl.constexpr):
    """Whether a list may hold what a row keeps: no token weighs more than 1. row_mass: of `mass_for_top_p`."""
    top_k, top_p, min_p = filters
    return (top_k <= ROOM) & ((min_p > 0) | (top_p * row_mass <= ROOM))


@triton.jit
def below_min_p(row_max, temperature, min_p):
    """An order (int32) that all tokens reach which min_p keeps, and hardly any others do.

    Few instructions, where `bracket.min_p_line` searches for the line itself in float64.
    """
    distance = temperature.to(tl.float32) * tl.log(min_p.to(tl.float32))
    # More than rounding takes.
    slack = (tl.abs(row_max) - distance) * 2.0**-18
    return order_of(tl.maximum(row_max + distance - slack, -LARGEST)) - 1


@triton.jit
def need_of(filters, T: tl.constexpr, AT_ONCE: tl.constexpr):
    """int32: so many tokens a list holds at least; without filters all. 0: what reaches min_p's line, and no more.

    T: power of two >= number of tiles; AT_ONCE: rows are few, as for `finish_kernel`.
    """
    top_k, top_p, min_p = filters
    LEAST: tl.constexpr = _WITHOUT_TOP_K if AT_ONCE or T <= _MANY_TILES else _OF_MANY_ROWS
    others = tl.where(min_p > 0, 0, tl.where(top_p < 1, LEAST, LAST_ID))
    return tl.where(top_k > 0, top_k, others).to(tl.int32)


@triton.jit
def begin_list(
    rows,
    refused,
    row,
    kind,
    lists,
    of_tiles,
    found,
    need,
    temperature,
    filters,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    LOWERS: tl.constexpr,
):
    """Draws a line that all tokens reach which the row may keep, and begins to load what may reach it.

    refused: as for `load_allowed`; kind: of `kind_of`, below 0 if the row is `lowered`; of_tiles: [T] maxima, best
    groups, and values of tokens of theirs, mostly the maxima; found: what `survey` says of the latter; need: how many
    tokens reach the line at least; filters: of `filters_of`; LOWERS: kind may be below 0. Returns the line, an order
    (-LAST_ID: the row has no token below), and what `begin_groups` returns.
    """
    top_k, _top_p, min_p = filters
    maxima, best_groups, lows = of_tiles
    tile = tl.arange(0, T)
    if T <= _FEW_TILES:
        # Fewer tiles than tokens needed: the line is drawn through the tokens themselves.
        ids = ids_of(tile)
        x = load_allowed(rows, refused, row, ids, ids >= 0)
        if LOWERS:
            if kind < 0:
                x = without_touched(rows, slot_of_lowered(kind), ids, x)
        x = x.reshape(T * TILE)
        token_orders = order_of(x)
        line, _ = line_of(token_orders, survey(x, x != x), tl.maximum(need, 1))
    else:
        # As many as there are reach the lowest, which is known: no search where none is needed.
        line, _ = line_of(order_of(lows), found, tl.where(need > 0, need, found[2]))
    if (min_p > 0) & (top_k <= 0):
        least = below_min_p(value_of(found[0]), temperature, min_p)
        line = tl.where(need > 0, tl.minimum(line, least), least)
    select_groups(lists, row, order_of(maxima), best_groups, line, LAST_ID)
    num_alone, num_crowded, group, raw, touched, new = begin_groups(rows, row, kind, lists, False, ROOM, BLOCK)
    return line, num_alone, num_crowded, group, raw, touched, new


@triton.jit
def draw_from_list(
    rows,
    lists,
    drawn,
    summary,
    row,
    kind,
    penalties,
    begun,
    row_max,
    temperature,
    filters,
    row_mass,
    reference,
    key,
    columns,
    all_columns,
    has_column,
    num_top,
    is_told,
    asks,
    counts,
    tiles,
    raw_max,
    raw_log_mass,
    bound,
    RAW: tl.constexpr,
    LOGITS: tl.constexpr,
    WIDE: tl.constexpr,
    ROOM: tl.constexpr,
    BLOCK: tl.constexpr,
    SHARES: tl.constexpr,
    OVERLAP: tl.constexpr,
    LOWERS: tl.constexpr,
    BY_MASS: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Whether the list held all that the row keeps, and its token, which is stored then with its summary.

    And whether the row surely keeps the list otherwise; and for who `asks` the token's raw value, and whether its rank
    is told all the same.

    kind, LOWERS: as for `begin_list`; penalties: of `load_penalties`; begun: what `begin_list` returns; filters, key:
    what `filters_of` and `noise_key` of `states` return; row_mass: what `mass_for_top_p` does, relative to a reference;
    has_column: whether columns, if there are any, are to have the token; num_top: how many top tokens all_columns are
    to have; is_told: they have all that they are to have already; asks: the rank among raw values is another one,
    unless the row is `lowered`, or the token above the bound, an order that no touched token exceeds, raw or edited:
    then those before it are as they were; counts: whether to count the row decided as soon as the list decides it;
    raw_max, raw_log_mass: of the raw logits. BY_MASS, AT_ONCE: as for `finish_kernel`.
    """
    # The mass of what is kept, and the cut, are for logprobs of what is kept.
    TELLS_CUT: tl.constexpr = not RAW and (columns is not None or all_columns is not None)
    listed, keys = list_row(rows, None, lists, row, kind, begun, ROOM, BLOCK)
    value, token = value_and_token(keys)
    raw, lowered = value, row < 0
    if LOWERS:
        lowered = kind < 0
    if RAW:
        own = load_raw(rows, row, token, tl.where(asks & (lowered == 0), token, LAST_ID) < LAST_ID)
        raw = tl.where(lowered, value, own)
    if LOWERS:
        if lowered:
            # A touched token may have the highest value.
            keys, row_max = lower_list(
                rows, lists, row, slot_of_lowered(kind), penalties, begun[0], keys, ROOM, BY_MASS
            )
            value, token = value_and_token(keys)
            if BY_MASS:
                row_mass *= tl.exp((reference - row_max) * scale_of(temperature))
    z = z_of(value, row_max, temperature, WIDE)
    mass = tl.exp(z)
    # Made when the row is decided, noise is beside the next kernel's begin. Few rows wait for edited ones, which decide
    # later, so that theirs is made before; the compiler makes either behind the cut, wherever it is written.
    IS_EARLY: tl.constexpr = AT_ONCE and rows.edits is not None
    if IS_EARLY:
        noises = noises_of_list(token, key, TARGET_TILE, TARGET_TOKEN, WIDE)
    line = begun[0], z_of(value_of(begun[0]), row_max, temperature, WIDE)
    done, rank, num_kept, total = cut_list(lists, row, line, listed, keys, z, mass, filters, row_mass, TELLS_CUT, ROOM)
    winner, keeps, raw_of_winner, tells_rank = tl.full([], -1, tl.int32), row < 0, row_max, row < 0
    if done:
        tells_all, leaves, tells_rank = row < 0, row < 0, asks & lowered
        if all_columns is not None:
            is_told = is_told | (tells_rank & wants_first(all_columns, row >= 0, num_top, ROOM))
            tells_all = has_column & has_top(num_top, listed, begun[0], all_columns, RAW, ROOM)
            leaves = (is_told | tells_all) == 0
        if counts | tells_rank:
            decide(tiles, leaves, SHARES, OVERLAP)
        elif asks:
            # What follows takes as long to begin as the rank takes to be told. It waits for the decision.
            let_next_start(OVERLAP)
        if (asks == 0) | tells_rank:
            # Nothing that follows is wider than the list.
            leave_but_first(ROOM)
        if not IS_EARLY:
            noises = noises_of_list(token, key, TARGET_TILE, TARGET_TOKEN, WIDE)
        kept = rank < num_kept
        log_mass = tl.zeros([], z.dtype)
        if TELLS_CUT:
            last = rank == num_kept - 1
            tl.store(summary.cut_value + row + token * 0, value, mask=last)
            tl.store(summary.cut_id + row + token * 0, token, mask=last)
            log_mass = tl.log(of_fixed(total).to(z.dtype))
        if RAW and rows.edits is not None:
            winner, order = race_in_list_with(tl.where(kept, mass, 0.0), z, kept, token, noises, order_of(raw))
            raw_of_winner = value_of(order)
        else:
            winner = race_in_list(tl.where(kept, mass, 0.0), z, kept, token, noises)
        if RAW:
            if asks:
                if lowered:
                    # All tokens are listed that come before it among raw ones.
                    rank = token * 0 + tl.sum(comes_before(raw, token, raw_of_winner, winner).to(tl.int32))
                    value = raw
                elif order_of(raw_of_winner) > bound:
                    tells_rank, tells_first = row >= 0, row >= 0
                    if all_columns is not None:
                        tells_first = wants_first(all_columns, row >= 0, num_top, ROOM)
                        is_told = tells_first
                    decide(tiles, tells_first == 0, SHARES, OVERLAP)
                has_column = tells_rank
        put(drawn, summary, row, winner, 0, LISTED, row_max, log_mass)
        if columns is None and all_columns is None:
            tl.store(summary.rank + row + token * 0, rank + 1, mask=token == winner)
        else:
            if RAW:
                logprob = result_of(value, raw_max, raw_log_mass, temperature, RAW, LOGITS)
            else:
                logprob = result_of(value, row_max, log_mass, temperature, RAW, LOGITS)
            if columns is not None:
                put_column(columns, row, token, logprob, rank + 1, token == tl.where(has_column, winner, -1))
            elif tells_all:
                num_top = tl.minimum(num_top, listed if RAW else num_kept)
                put_columns(all_columns, row, token, logprob, rank, num_top, winner)
                tl.store(summary.rank + row, ALL_COLUMNS)
            else:
                # Who asks for another rank goes on to a barrier. Behind a store at the end of a branch ptxas may leave
                # the threads of a warp apart, and the barrier then counts the warp when the first of them comes.
                is_known = token == tl.where(asks & (tells_rank == 0), -1, winner)
                if tells_rank & is_told:
                    first = result_of(raw_of_winner, raw_max, raw_log_mass, temperature, RAW, LOGITS)
                    put_first_column(all_columns, row, winner, first, ROOM)
                    tl.store(all_columns.ranks + row + token * 0, rank + 1, mask=is_known)
                tl.store(summary.rank + row + token * 0, tl.where(is_told, ALL_COLUMNS, rank + 1), mask=is_known)
    else:
        keeps = keeps_list(listed, total, row_mass, filters, ROOM)
    return done, winner, keeps, raw_of_winner, tells_rank


@triton.jit
def has_top(num_top, listed, line, columns, RAW: tl.constexpr, ROOM: tl.constexpr):
    """Whether a list that holds all that its row keeps has its top tokens; line: that tokens of the list reach."""
    result = (num_top <= ROOM) & fit_a_list(columns, ROOM)
    if RAW:
        result = result & ((num_top <= listed) | (line == -LAST_ID))
    return result


@triton.jit
def list_row(rows, refused, lists, row, kind, begun, ROOM: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens reach the line, and the keys of the list, of which there is more if they are too many.

    refused: as for `load_allowed`; kind: of `kind_of`; begun: what `begin_list` returns.
    """
    line, num_alone, num_crowded, group, raw, touched, new = begun
    begun = num_alone, num_crowded, group, raw, touched, new
    return list_tokens(rows, refused, row, kind, lists, begun, line, LAST_ID, False, ROOM, BLOCK)


@triton.jit
def noises_of_list(token, key, tile_stream, token_stream, WIDE: tl.constexpr):
    """Noise of the tiles of tokens, and of the tokens; key: what `states.noise_key` returns."""
    return (
        gumbel(token // TILE, key[0], key[1], tile_stream, key[2], key[3], WIDE),
        gumbel(token, key[0], key[1], token_stream, key[2], key[3], WIDE),
    )


@triton.jit
def cut_list(
    lists,
    row,
    line,
    listed,
    keys,
    z,
    mass,
    filters,
    row_mass,
    WEIGHS: tl.constexpr,
    ROOM: tl.constexpr,
):
    """Whether a list holds all that its row keeps; ranks of its tokens, how many are kept, and their mass (int64).

    line: that tokens of the list reach, and its z; listed, keys: what `list_row` returns; z, mass: of the tokens;
    row_mass: what `mass_for_top_p` returns; WEIGHS: whether the mass is asked for where the list holds all, else it is
    any; the rest as for `draw_from_list`.
    """
    top_k, top_p, min_p = filters
    slot = tl.arange(0, ROOM)
    has_room, listed = listed <= ROOM, tl.minimum(listed, ROOM)
    rank = ranks_of_list(lists, row, listed, keys, slot, ROOM)

    # How many tokens top_k and min_p keep, and whether the list shows it.
    num_kept = tl.where(top_k > 0, tl.minimum(top_k, listed), listed).to(tl.int32)
    done = (top_k > 0) | (line[0] == -LAST_ID)
    if min_p > 0:
        least = tl.log(min_p)
        above = tl.sum((z >= least).to(tl.int32))
        done = done | (above < listed) | (line[1] < least)
        num_kept = tl.maximum(tl.minimum(num_kept, above), 1)
    # As integers, whose sums know no order.
    whole = (mass * FIXED_POINT).to(tl.int64)
    total = num_kept.to(tl.int64)
    if top_p < 1:
        tl.store(lists.masses + row * lists.room + rank, whole)
        tl.debug_barrier()
        in_order = tl.load(lists.masses + row * lists.room + slot)
        up_to = tl.cumsum(in_order, 0)
        total = element_of(up_to, tl.maximum(num_kept, 1) - 1)
        limit = top_p * total.to(tl.float64)
        if not done:
            # Without a limit the mass that top_p counts is the row's, unless min_p cuts it below the list's end.
            limit = top_p * (row_mass.to(tl.float64) * FIXED_POINT)
            done = (min_p == 0) & (total >= limit)
        before = up_to - in_order
        within = ((before.to(tl.float64) < limit) | (slot == 0)) & (slot < num_kept)
        num_kept = total_of(within.to(tl.int32))
        if WEIGHS:
            total = element_of(up_to, tl.maximum(num_kept, 1) - 1)
    elif WEIGHS:
        total = tl.sum(tl.where(rank < num_kept, whole, 0))
    return done & has_room, rank, num_kept, total


@triton.jit
def race_in_list(weight, z, kept, token, noises):
    """The token of a list that wins: first by its tile's weight, then inside the tile by z.

    weight: of the tokens, 0 where not kept; noises: what `noises_of_list` returns.
    """
    return winner_of(_keys_of_best_tile(weight, z, kept, token, noises), token)


@triton.jit
def race_in_list_with(weight, z, kept, token, noises, payload):
    """As `race_in_list`, and the winner's payload (int32), by the same exchange."""
    return first_largest(_keys_of_best_tile(weight, z, kept, token, noises), token, payload)


@triton.jit
def _keys_of_best_tile(weight, z, kept, token, noises):
    """Keys of the tokens of the tile that wins, -inf of the others."""
    tile = token // TILE
    # The last token of a tile has the tile's mass and wins over those before it, whose noise is the same.
    log_masses = tl.log(sum_by_tile(weight, tile))
    best = winner_of(tl.where(kept, log_masses, MINUS_INF) + noises[0], tile)
    return tl.where(kept & (tile == best), z, MINUS_INF) + noises[1]
