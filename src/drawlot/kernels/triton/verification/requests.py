"""What requests ask for, read by the kernels."""

import triton
import triton.language as tl

from drawlot import rng
from drawlot.kernels.drafts import Method
from drawlot.kernels.triton.race import TARGET_TILE, TARGET_TOKEN
from drawlot.kernels.triton.states import filters_of, temperature_of

STANDARD, BLOCK = tl.constexpr(int(Method.STANDARD)), tl.constexpr(int(Method.BLOCK))
COUPLED, SYNTHETIC = tl.constexpr(int(Method.COUPLED)), tl.constexpr(int(Method.SYNTHETIC))
_RESIDUAL_TILE = tl.constexpr(int(rng.Stream.RESIDUAL_TILE))
_RESIDUAL_TOKEN = tl.constexpr(int(rng.Stream.RESIDUAL_TOKEN))
_BONUS_TILE, _BONUS_TOKEN = tl.constexpr(int(rng.Stream.BONUS_TILE)), tl.constexpr(int(rng.Stream.BONUS_TOKEN))


@triton.jit
def rows_of_request(drafts, request):
    """The first row (int64) of a request and how many it has."""
    first = tl.load(drafts.cu_rows + request).to(tl.int64)
    return first, tl.load(drafts.cu_rows + request + 1).to(tl.int64) - first


@triton.jit
def load_drafts(drafts, request, column, num_rows, K: tl.constexpr):
    """Draft ids int64 [M] of columns [M] as given, padding past the request's rows; how many come before padding."""
    mask = (column < K) & (column < num_rows - 1)
    token = tl.load(drafts.token_ids + request * K + column, mask=mask, other=-1)
    return token, tl.min(tl.where(token == -1, column, K))


@triton.jit
def is_filtered(states, state):
    """Whether a cut has to be found."""
    top_k, top_p, min_p = filters_of(states, state)
    return (temperature_of(states, state) != 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))


@triton.jit
def method_of(methods, state):
    """A `Method`."""
    return tl.load(methods.of_states + state)


@triton.jit
def looks_at_q(states, methods, state):
    """Whether the laws of the drafts decide, and what they leave is drawn from."""
    method = method_of(methods, state)
    return (temperature_of(states, state) != 0) & ((method == STANDARD) | (method == BLOCK))


@triton.jit
def is_open(states, methods, drafts, state, num_drafts):
    """Whether what a request's rows leave depends on the drafts before them: of `block`, with laws of the drafts."""
    has_laws = num_drafts < 0
    if drafts.q.logits is not None or drafts.sparse is not None:
        has_laws = num_drafts > 0
    return has_laws & (method_of(methods, state) == BLOCK) & (temperature_of(states, state) != 0)


@triton.jit
def step_key(states, state, first, step_row):
    """What draws of a verified step are keyed by: seed, anchor (position of row 0), choice, row; see `noise_key`."""
    seed = tl.load(states.ints + states.num_states + state)
    choice = tl.load(states.ints + 2 * states.num_states + state)
    return seed, tl.load(states.positions + first), choice, step_row


@triton.jit
def tile_stream(residual, alone):
    """The stream of a race over tiles: of what q leaves, of a request without drafts, or of a row's own law."""
    return tl.where(residual, _RESIDUAL_TILE, tl.where(alone, TARGET_TILE, _BONUS_TILE))


@triton.jit
def token_stream(residual, alone):
    """The stream of the race inside a tile, likewise."""
    return tl.where(residual, _RESIDUAL_TOKEN, tl.where(alone, TARGET_TOKEN, _BONUS_TOKEN))
