"""Who wins a row whose cut lies beyond its list: mostly a token of the list does, wherever the cut is.

Else mostly one that is far beyond the cut would, were it kept. How far the cut lies at most is known from maxima of
tiles: without what is surely dropped the list's token wins.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.bracket import LARGEST
from drawlot.kernels.triton.listing import comes_before, load_keys, value_and_token
from drawlot.kernels.triton.lowered import load_lowered, slot_of_lowered
from drawlot.kernels.triton.noise import gumbel
from drawlot.kernels.triton.race import TARGET_TILE, ids_of_tile, race_in_tile, race_of_tile, z_of
from drawlot.kernels.triton.reduce import first_largest, of_fixed, sum_and_smallest, sum_four
from drawlot.kernels.triton.values import MINUS_INF, MINUS_INF_ORDER, TILE, load_values, order_of, value_of

_MARGIN = tl.constexpr(1e-4)
"""More than what rounding adds to a key, or to a share of a mass"""
_NEARLY_ALL = tl.constexpr(0.125)
"""Of its mass, a row's list lacks less if it is worth a look how far beyond the list the cut lies"""
_ROUNDS = tl.constexpr(3)
"""In which it is sought, in fifths each"""


@triton.jit
def keeps_list(listed, total, row_mass, filters, ROOM: tl.constexpr):
    """Whether a list that does not hold all that its row keeps is surely kept as a whole.

    listed: tokens that reach the line; total: mass of the list (int64); row_mass, filters: as for `draw_from_list`.
    """
    top_k, top_p, min_p = filters
    has_no_other = (top_k <= 0) & (min_p == 0) & (top_p < 1)
    return (listed <= ROOM) & has_no_other & (of_fixed(total) < top_p * row_mass * (1 - _MARGIN))


@triton.jit
def race_in_any_tile(
    rows,
    row,
    kind,
    penalties,
    tile,
    cut_order,
    row_max,
    temperature,
    key,
    WIDE: tl.constexpr,
    BY_MASS: tl.constexpr,
):
    """As `race_in_tile`, of values above cut_order, also of a row that is `lowered`, as BY_MASS says that it may be.

    kind: of `kind_of`; penalties: of `load_penalties`.
    """
    if BY_MASS:
        if kind < 0:
            x = load_lowered(rows, row, slot_of_lowered(kind), penalties, ids_of_tile(tile))
        else:
            x = load_values(rows, row, ids_of_tile(tile), ids_of_tile(tile) >= 0)
        token = race_of_tile(tile, x, cut_order, -1, row_max, temperature, key, WIDE)
    else:
        token = race_in_tile(rows, row, tile, cut_order, -1, row_max, temperature, key, WIDE)
    return token


@triton.jit
def wins_surely(
    lists, row, token, tile, rival, own_noise, row_max, temperature, WIDE: tl.constexpr, ROOM: tl.constexpr
):
    """Whether a token wins, whatever is kept beside the list that the row keeps as a whole; its value and its rank.

    token, tile: winner and its tile if all were kept; rival: the largest key of the other tiles then; own_noise: of the
    tile. Where less is kept keys are no larger: the tile has won if what the list has of it beats all others, and so
    has the token if it is of the list.
    """
    value, listed = value_and_token(load_keys(lists, row, tl.arange(0, ROOM)))
    # A token whose value is -inf is not kept, see `lowered.lower_list`.
    is_own = (listed == token) & (value > MINUS_INF)
    mass, own_value, found, _ = sum_four(
        tl.where(listed // TILE == tile, tl.exp(z_of(value, row_max, temperature, WIDE)), 0.0),
        tl.where(is_own, value, 0.0),
        is_own.to(tl.int32),
        is_own.to(tl.int32),
    )
    # The logarithm of 0 is -inf.
    wins, rank = (found > 0) & (tl.log(mass) + own_noise - _MARGIN > rival), tl.zeros([], tl.int32)
    if wins:
        rank = 1 + tl.sum(comes_before(value, listed, own_value, token).to(tl.int32))
    return wins, own_value, rank


@triton.jit
def look_again(
    rows,
    tiles,
    lists,
    row,
    kind,
    penalties,
    keys,
    row_mass,
    top_p,
    row_max,
    temperature,
    key,
    WIDE: tl.constexpr,
    ROOM: tl.constexpr,
    BY_MASS: tl.constexpr,
):
    """As `wins_surely`, once more without what is surely dropped, which mostly is what won; and the token.

    kind, penalties: as for `race_in_any_tile`; keys: [T], of the tiles if all were kept, or what these do not exceed;
    key: what `states.noise_key` returns.
    """
    tile = tl.arange(0, keys.shape[0])
    # Loaded again, lest all rows keep them in registers until here.
    maxima = tl.load(tiles.maxima + row * tiles.stride + tile, mask=tile < tiles.num, other=MINUS_INF)
    tokens = maxima
    if BY_MASS:
        if kind < 0:
            lows = tl.load(tiles.edit_bounds + row * tiles.stride + tile, mask=tile < tiles.num, other=MINUS_INF_ORDER)
            tokens = value_of(lows)
    least, _end = least_kept(lists, row, tokens, row_mass, top_p, row_max, temperature, ROOM)
    wins, token, value, rank = row < 0, tl.full([], -1, tl.int32), row_max, tl.zeros([], tl.int32)
    if least > MINUS_INF:
        keys = tl.where(maxima >= least, keys, MINUS_INF)
        best, _ = first_largest(keys, tile, tile)
        token = race_in_any_tile(
            rows, row, kind, penalties, best, order_of(least) - 1, row_max, temperature, key, WIDE, BY_MASS
        )
        own = best + tl.arange(0, 1)
        own_noise = tl.max(gumbel(own, key[0], key[1], TARGET_TILE, key[2], key[3], WIDE))
        rival = tl.max(tl.where(tile == best, MINUS_INF, keys))
        wins, value, rank = wins_surely(lists, row, token, best, rival, own_noise, row_max, temperature, WIDE, ROOM)
    return wins, token, value, rank


@triton.jit
def least_kept(lists, row, maxima, row_mass, top_p, row_max, temperature, ROOM: tl.constexpr):
    """A value (float32) that all tokens reach which a row keeps, and the lowest of its list; -inf: not known.

    Before a token below it come those of the list, and maxima of tiles that reach it, each a token of its own: if these
    weigh what top_p asks for, the token is dropped. maxima: [T]; row_mass: as for `keeps_list`.
    """
    value, _ = value_and_token(load_keys(lists, row, tl.arange(0, ROOM)))
    values = tl.where(value > MINUS_INF, value, LARGEST)
    # What does not reach the end of the list is not of it.
    of_list, end = sum_and_smallest(tl.exp(z_of(value, row_max, temperature, False)), values)
    need = (top_p * row_mass * (1 + _MARGIN)).to(tl.float32) - of_list
    least = tl.zeros([], tl.float32) + MINUS_INF
    if (need > 0) & (need < _NEARLY_ALL * row_mass):
        mass = tl.where(maxima < end, tl.exp(z_of(maxima, row_max, temperature, False)), 0.0)
        # Were all tiles below it, they would weigh too little.
        first = row_max + temperature.to(tl.float32) * (tl.log(need) - tl.log(tl.full([], maxima.shape[0], tl.float32)))
        low, high, round = first - (end - first) / 4, end, 0
        while round < _ROUNDS:
            step = (high - low) / 5
            one, two, three, four = low + step, low + 2 * step, low + 3 * step, low + 4 * step
            reached = sum_four(
                tl.where(maxima >= one, mass, 0.0),
                tl.where(maxima >= two, mass, 0.0),
                tl.where(maxima >= three, mass, 0.0),
                tl.where(maxima >= four, mass, 0.0),
            )
            pivots = one, two, three, four
            for i in tl.static_range(4):
                enough = reached[i] >= need
                low, least = tl.where(enough, pivots[i], low), tl.where(enough, pivots[i], least)
                high = tl.where(enough, high, tl.minimum(high, pivots[i]))
            round += 1
    return least, end
