"""Who wins a row whose cut lies beyond its list: mostly a token of the list does, wherever the cut is."""

import triton
import triton.language as tl

from drawlot.kernels.triton.listing import comes_before, load_keys, value_and_token
from drawlot.kernels.triton.race import z_of
from drawlot.kernels.triton.reduce import of_fixed
from drawlot.kernels.triton.values import MINUS_INF, TILE

_MARGIN = tl.constexpr(1e-4)
"""More than what rounding adds to a key, or to a share of a mass"""


@triton.jit
def keeps_list(listed, total, row_mass, filters, ROOM: tl.constexpr):
    """Whether a list that does not hold all that its row keeps is surely kept as a whole.

    listed: tokens that reach the line; total: mass of the list (int64); row_mass, filters: as for `draw_from_list`.
    """
    top_k, top_p, min_p = filters
    has_no_other = (top_k <= 0) & (min_p == 0) & (top_p < 1)
    return (listed <= ROOM) & has_no_other & (of_fixed(total) < top_p * row_mass * (1 - _MARGIN))


@triton.jit
def wins_surely(lists, row, token, tile, keys, noise, row_max, temperature, WIDE: tl.constexpr, ROOM: tl.constexpr):
    """Whether a token wins, whatever is kept beside the list that the row keeps as a whole; its value and its rank.

    token, tile: winner and its tile if all were kept; keys, noise: [T], of the tiles then. Where less is kept keys are
    no larger: the tile has won if what the list has of it beats all others, and so has the token if it is of the list.
    """
    value, listed = value_and_token(load_keys(lists, row, tl.arange(0, ROOM)))
    tiles = tl.arange(0, keys.shape[0])
    rival = tl.max(tl.where(tiles == tile, MINUS_INF, keys))
    own_noise = tl.max(tl.where(tiles == tile, noise, MINUS_INF))
    mass = tl.sum(tl.where(listed // TILE == tile, tl.exp(z_of(value, row_max, temperature, WIDE)), 0.0))
    own_value = tl.max(tl.where(listed == token, value, MINUS_INF))
    rank = 1 + tl.sum(comes_before(value, listed, own_value, token).to(tl.int32))
    # The logarithm of 0 is -inf.
    wins = (own_value > MINUS_INF) & (tl.log(mass) + own_noise - _MARGIN > rival)
    return wins, own_value, rank
