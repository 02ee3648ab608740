"""What a column of logprobs holds: by which law, of which values; and the one column of who asks for no others."""

import triton
import triton.language as tl

from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.summary import ALL_COLUMNS
from drawlot.kernels.triton.values import MINUS_INF, MINUS_INF_ORDER, load_raw, load_values, order_of

_LARGEST = tl.constexpr(3.4028234663852886e38)


@triton.jit
def law_of_row(states, summary, state, row, RAW: tl.constexpr):
    """maximum and log of the mass, temperature (float64), order and id of the last kept token."""
    if RAW:
        maximum, log_mass, temperature, cut_order, cut_id = law_of_raw(
            tl.load(summary.floats + 2 * summary.num_rows + row), tl.load(summary.floats + 3 * summary.num_rows + row)
        )
    else:
        maximum = tl.load(summary.floats + row)
        log_mass = tl.load(summary.floats + summary.num_rows + row)
        temperature = temperature_of(states, state)
        cut_order, cut_id = order_of(tl.load(summary.cut_value + row)), tl.load(summary.cut_id + row)
    return maximum, log_mass, temperature, cut_order, cut_id


@triton.jit
def law_of_raw(maximum, log_mass):
    """As `law_of_row`, of raw logits: no cut, and the temperature says nothing."""
    return maximum, log_mass, maximum * 0.0, tl.full([], MINUS_INF_ORDER, tl.int32), tl.full([], -1, tl.int32)


@triton.jit
def load_as(rows, row, ids, mask, RAW: tl.constexpr):
    """Values of ids, raw or as edited."""
    if RAW:
        x = load_raw(rows, row, ids, mask)
    else:
        x = load_values(rows, row, ids, mask)
    return x


@triton.jit
def result_of(x, maximum, log_mass, temperature, RAW: tl.constexpr, LOGITS: tl.constexpr):
    """float32 logprob, or logit, of tokens of these values; temperature (float64): 0 for a greedy row."""
    x = x.to(tl.float64)
    if not LOGITS:
        x -= maximum
    if not RAW:
        x /= tl.where(temperature == 0, 1.0, temperature)
    if LOGITS:
        x = tl.minimum(tl.maximum(x, -_LARGEST), _LARGEST)
    else:
        x -= log_mass
    return x.to(tl.float32)


@triton.jit
def has_probability(x, ids, law):
    """Which tokens of these values have a probability."""
    _, _, _, cut_order, cut_id = law
    order = order_of(x)
    return (x > MINUS_INF) & ((order > cut_order) | ((order == cut_order) & (ids <= cut_id)))


@triton.jit
def put_column(columns, row, token, logprob, rank, mask):
    """Stores a row's only column and its rank, where the mask holds: scalars, or blocks of which it holds for one."""
    tl.store(columns.ids + row + token * 0, token, mask=mask)
    tl.store(columns.logprobs + row + token * 0, logprob, mask=mask)
    tl.store(columns.ranks + row + token * 0, rank, mask=mask)


@triton.jit
def num_top_of(wanted, state, ROOM: tl.constexpr):
    """How many top tokens a request wants; more than a list holds where it wants others."""
    num_top = tl.load(wanted.num_top + state).to(tl.int32)
    if wanted.num_token_ids > 0:
        first = tl.load(wanted.token_ids + state * wanted.num_token_ids)
        num_top = tl.where(first >= 0, ROOM + 1, num_top)
    return num_top


@triton.jit
def fit_a_list(columns, ROOM: tl.constexpr):
    """Whether a row has no more columns than its drawn token and a list of ROOM tokens fill."""
    return columns.count <= ROOM + 1


@triton.jit
def put_first_column(columns, row, token, logprob, ROOM: tl.constexpr):
    """Stores the columns of a row that wants the first alone, or none (token: -1), if they fit a list; not its rank."""
    first = row * columns.count
    # No wider than a list: more threads may have left.
    others, end = first + 1 + tl.arange(0, ROOM), first + columns.count
    tl.store(columns.ids + others, tl.full([ROOM], -1, tl.int64), mask=others < end)
    tl.store(columns.logprobs + others, tl.full([ROOM], MINUS_INF, tl.float32), mask=others < end)
    tl.store(columns.ids + first, token)
    tl.store(columns.logprobs + first, logprob)


@triton.jit
def wants_first(columns, has_column, num_top, ROOM: tl.constexpr):
    """Whether a row with columns wants the first alone, and `put_first_column` can store it."""
    return has_column & (num_top == 0) & fit_a_list(columns, ROOM)


@triton.jit
def put_result(
    columns, all_columns, summary, row, token, logprob, rank, has_column, is_told, num_top, ROOM: tl.constexpr
):
    """Stores what is known of a row's token: its only column, or the first, if it wants no others; else its rank.

    columns, all_columns, has_column, is_told, num_top: as for `draw_from_list`.
    """
    if columns is not None:
        if has_column:
            put_column(columns, row, token, logprob, rank, row >= 0)
    else:
        if all_columns is not None:
            if wants_first(all_columns, has_column, num_top, ROOM):
                put_first_column(all_columns, row, token, logprob, ROOM)
                tl.store(all_columns.ranks + row, rank)
                is_told = row >= 0
        tl.store(summary.rank + row, tl.where(is_told, ALL_COLUMNS, rank))


@triton.jit
def put_columns(columns, row, token, logprob, rank, num_top, drawn):
    """Stores all columns of a row and its rank, from a list of its best tokens [ROOM], as many as columns or more.

    rank: how many tokens of the list come before each, every number below ROOM once; num_top: how many are wanted;
    drawn: a token of the list.
    """
    ids, logprobs = columns.ids + row * columns.count, columns.logprobs + row * columns.count
    is_top, exists = rank < num_top, rank + 1 < columns.count
    tl.store(ids + 1 + rank, tl.where(is_top, token, -1), mask=exists)
    tl.store(logprobs + 1 + rank, tl.where(is_top, logprob, MINUS_INF), mask=exists)
    is_drawn = token == drawn
    tl.store(ids + token * 0, token, mask=is_drawn)
    tl.store(logprobs + token * 0, logprob, mask=is_drawn)
    tl.store(columns.ranks + row + token * 0, rank + 1, mask=is_drawn)
