"""How many drafts of a request are accepted; block [COLUMNS] has an entry for each of its rows."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.triton.noise import words
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE
from drawlot.kernels.triton.verification.requests import COUPLED, SYNTHETIC, method_of

_ACCEPT = tl.constexpr(int(rng.Stream.ACCEPT))
_WIDE = tl.constexpr(rng._WIDE)
_LARGEST32 = tl.constexpr(1 - 2.0**-24)
_LARGEST64 = tl.constexpr(1 - 2.0**-53)


@triton.jit
def coins(key, WIDE: tl.constexpr):
    """float64 coins of a step's rows, as `rng.coin`; key: as for `race`."""
    seed, anchor, choice, step_row = key
    if WIDE:
        w0, w1, _, _ = words(step_row * 0, seed, anchor, _ACCEPT + _WIDE, choice, step_row, 2)
        bits = (w0.to(tl.uint64) << 21) | (w1.to(tl.uint64) >> 11)
        result = tl.minimum(bits.to(tl.float64) * 2.0**-53 + 2.0**-54, _LARGEST64)
    else:
        w0, _, _, _ = words(step_row * 0, seed, anchor, _ACCEPT, choice, step_row, 4)
        result = tl.minimum(w0.to(tl.float32) * 2.0**-32 + 2.0**-33, _LARGEST32).to(tl.float64)
    return result


@triton.jit
def p_at_drafts(states, judged, state, at, is_draft, draft, cut_value, cut_id):
    """float64: p of each row's draft; 0 without one, or of one that the row does not keep."""
    temperature = temperature_of(states, state)
    temperature = tl.where(temperature == 0, 1.0, temperature)
    maximum = tl.load(judged.maxima + at, mask=is_draft, other=0.0)
    mass = tl.load(judged.masses + at, mask=is_draft, other=1.0)
    x = tl.load(judged.draft_values + at, mask=is_draft, other=MINUS_INF)
    kept = ((x > cut_value) | ((x == cut_value) & (draft <= cut_id))) & (x > MINUS_INF) & (draft >= 0)
    return tl.where(kept, tl.exp((x.to(tl.float64) - maximum) / temperature) / mass, 0.0)


@triton.jit
def accept_by_coins(methods, state, column, n, draft, drawn, ratio, coin):
    """The drafts before the first rejection, by `standard`, `synthetic` or `coupled`; drawn: the rows' own tokens."""
    method = method_of(methods, state)
    # NaN stays NaN, and no coin is below it.
    threshold = tl.where(ratio > 1, 1.0, ratio)
    if methods.rates is not None:
        rate = tl.load(methods.rates + column, mask=column < n, other=0.0)
        threshold = tl.where(method == SYNTHETIC, tl.where(draft >= 0, rate, 0.0), threshold)
    hit = tl.where(method == COUPLED, drawn == draft, coin < threshold)
    return tl.min(tl.where((column < n) & hit, n, column))


@triton.jit
def accept_greedily(rows, judged, first, column, n, draft):
    """The drafts that are their rows' first tokens, and the first token of the row after them."""
    accepted = n * 0
    token = first_token(rows, judged, first)
    hit = (accepted < n) & (token == tl.max(tl.where(column == accepted, draft, -1)))
    while hit:
        accepted += 1
        token = first_token(rows, judged, first + accepted)
        hit = (accepted < n) & (token == tl.max(tl.where(column == accepted, draft, -1)))
    return accepted, token


@triton.jit
def first_token(rows, judged, row):
    """The first token of a row; anything of a bad one."""
    row_max, tile = tl.load(judged.maxima + row), tl.load(judged.best_tiles + row)
    ids = tl.where(tile < rows.num_tiles, tile, 0) * TILE + tl.arange(0, TILE)
    x = load_allowed(rows, tl.load(judged.refused + row), row, ids, ids >= 0)
    return tl.min(tl.where(x == row_max, ids, LAST_ID))


@triton.jit
def accept_block(judged, at, column, n, ratio, p, dense, coin, K: tl.constexpr):
    """Block verification: how many drafts are accepted at least, the rows to be weighed before more is known, and P.

    Column i of P (float64 [COLUMNS]) is of the first i drafts and of row i.
    """
    prefix = tl.where(column == 0, 1.0, tl.zeros_like(ratio))
    last = tl.full([], 1.0, tl.float64)
    coin_before = tl.zeros_like(coin) + 2
    for j in tl.static_range(K):
        product = last * tl.sum(tl.where(column == j, ratio, 0.0))
        last = tl.where(last > 0, tl.where(product > 1, 1.0, product), 0.0)
        prefix = tl.where(column == j + 1, last, prefix)
        coin_before = tl.where(column == j + 1, tl.sum(tl.where(column == j, coin, 0.0)), coin_before)
    within = (column >= 1) & (column <= n)
    # h_i is at most P_i, and h_n is P_n.
    below = within & (coin_before < prefix)
    accepted = tl.zeros([], tl.int32)
    weighed = below & False
    if not dense:
        # Of a point mass all but the draft is left.
        left = prefix * (1 - p)
        rest = left + 1 - prefix
        h = tl.where(column == n, prefix, tl.where(rest == 0, 1.0, left / rest))
        accepted = tl.max(tl.where(within & (coin_before < h), column, 0))
    elif tl.max(tl.where(below & (column == n), 1, 0)) != 0:
        accepted = n + tl.zeros([], tl.int32)
    else:
        # With P_i = 1 the first i drafts are accepted whatever is left, unless their laws are broken.
        fine = tl.load(judged.q_shifts + at, mask=column < n, other=0.0)
        may = below & (column < n)
        accepted = tl.max(tl.where(may & (prefix == 1) & (fine == fine), column, 0))
        weighed = may & (column > accepted)
    return accepted, weighed, prefix
