"""What each row makes of itself: its law, whether it accepts its draft, and the token that it draws if not.

The last row of a request to know looks what the request emits: no launch has to begin for that.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.refused import load_allowed, without_refused
from drawlot.kernels.triton.scan import LOG2_E, raw_apart
from drawlot.kernels.triton.states import scale_of, temperature_of
from drawlot.kernels.triton.summary import WHOLE
from drawlot.kernels.triton.together import count_up, is_last
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE
from drawlot.kernels.triton.verification.acceptance import accepts, coin_of, ratio_of_draft
from drawlot.kernels.triton.verification.draw import draw
from drawlot.kernels.triton.verification.judge import law_of
from drawlot.kernels.triton.verification.requests import (
    BLOCK,
    COUPLED,
    is_open,
    load_drafts,
    looks_at_q,
    method_of,
    needs_finish,
    rows_of_request,
    step_key,
    tile_stream,
)
from drawlot.kernels.triton.verification.settle import settle, skip_request, skip_rows_after
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))


@triton.jit
def law_kernel(
    rows,
    step,
    tiles,
    lists,
    whole,
    methods,
    judged,
    leftovers,
    verdicts,
    drawn,
    summary,
    verified,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    PARTS: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    OPEN: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one row that a request may have. drawn, summary: of the finish, where it cuts the rows or draws.

    COLUMNS, T, PARTS: powers of two > K, >= tiles, >= parts of a law; ROOM: of a list; TILES: read at a time; OPEN:
    whether requests may be open, see `is_open`.
    """
    program = tl.program_id(0)
    request, column = (program // (K + 1)).to(tl.int64), program % (K + 1)
    states = step.states
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    row = first + column
    if (column >= num_rows) | (state < 0):
        follow(OVERLAP)
        if OPEN:
            tl.atomic_add(leftovers.known, 1, sem="relaxed")
        if column == 0:
            skip_request(step.drafts, summary, verified, request, first, num_rows, K, COLUMNS)
        return

    # Noise and coin are a matter of the request alone: they are made while the scan still runs.
    temperature, method = temperature_of(states, state), method_of(methods, state)
    finished = needs_finish(states, methods, state)
    _, given = load_drafts(step.drafts, request, tl.arange(0, COLUMNS), num_rows, K)
    waits = is_open(states, methods, step.drafts, state, given)
    residual, alone = (column < given) & looks_at_q(states, methods, state), given == 0
    key = step_key(states, state, first, column)
    coin = coin_of(key, WIDE)
    stream = tile_stream(residual, alone)
    divisor = tl.where(temperature == 0, 1.0, temperature)
    scale, per_temperature = scale_of(divisor), 1.0 / divisor
    noises, tile = leftovers.noises + row * leftovers.width, tl.arange(0, T)
    noise = tl.zeros([T], tl.float64 if WIDE else tl.float32)
    makes_noise = (temperature != 0) & (finished == 0)
    if OPEN:
        makes_noise = makes_noise & (waits == 0)
    if makes_noise:
        noise = gumbel_of_range(0, T, key[0], key[1], stream, key[2], key[3], WIDE)
        tl.store(noises + tile, noise)
    follow(OVERLAP)

    at, exists = row * tiles.stride + tile, tile < rows.num_tiles
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    draft, x = tl.load(judged.drafts + row), tl.load(judged.draft_values + row)
    line, refused = tl.load(judged.lines + row), tl.load(judged.refused + row)
    cut_value, cut_id = tl.full([], float("-inf"), tl.float32), tl.full([], -1, tl.int32)
    token, path = tl.full([], -1, tl.int32), tl.full([], -1, tl.int32)
    if finished:
        status, row_max, mass, cut_value, cut_id, path = _law_of_finish(drawn, summary, row)
        sums = tl.zeros_like(maxima)
        if (method == COUPLED) | alone:
            token = tl.load(drawn.token_ids + row).to(tl.int32)
        elif path == WHOLE:
            sums = tl.load(whole.kept_sums + row * T + tile, mask=exists, other=0.0)
            if waits == 0:
                noise = gumbel_of_range(0, T, key[0], key[1], stream, key[2], key[3], WIDE)
                tl.store(noises + tile, noise)
    else:
        sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
        if tiles.raw_sums is not None:
            _put_raw_law(rows, states, tiles, summary, state, row, at, exists, maxima, sums)
        if refused >= 0:
            maxima, sums, _best_groups = without_refused(
                rows, states, tiles, state, row, refused, tile, maxima, sums, tile
            )
        status, row_max, mass = _put_law_of_tiles(summary, row, maxima, sums, scale)
        if temperature == 0:
            token = _first_token(rows, refused, row, row_max, tl.min(tl.where(maxima == row_max, tile, LAST_ID)))

    q, q_shift, q_factor = _finish_draft_law(step.drafts, judged, row, line, PARTS)
    ratio = ratio_of_draft(x, draft, row_max, mass, q, per_temperature, cut_value, cut_id)
    hit = accepts(methods, method, temperature, column, draft, token, ratio, coin)
    tl.store(verified.status + row, status)
    tl.store(summary.rank + row, 0)
    tl.store(judged.hits + row, hit.to(tl.int32))
    if method == BLOCK:
        has_law = (line < 0) | (q_shift == q_shift)
        tl.store(judged.ratios + row, tl.where(status != 0, -1.0, tl.where(has_law, ratio, float("nan"))))
        tl.store(judged.coins + row, coin)
    if OPEN:
        if waits:
            tl.store(verdicts.num_drafts + request, given, mask=column == 0)
            tl.store(judged.tokens + row, -2)
            tl.store(leftovers.masses + row * leftovers.width + tile, -1.0)
            tl.store(judged.maxima + row, row_max)
            tl.store(judged.scales + row, scale * LOG2_E)
            tl.store(judged.per_masses + row, 1.0 / mass)
            tl.store(judged.cut_values + row, cut_value)
            tl.store(judged.cut_ids + row, cut_id)
            count_up(leftovers.known)
        else:
            tl.atomic_add(leftovers.known, 1, sem="relaxed")

    if column == 0:
        skip_rows_after(step.drafts, summary, verified, request, first + num_rows)

    # By `block` a draft that its row accepts may be the one that is not.
    draws = (hit == 0) | (column == given) | (method == BLOCK)
    if (waits == 0) & draws & (column <= given) & (token < 0) & (temperature != 0) & (status == 0):
        one = tl.full([], 1.0, tl.float32)
        law = line, draft, q_shift, q_factor, cut_value, cut_id, row_max, scale * LOG2_E, 1.0 / mass, one
        # The noise is read back.
        tl.debug_barrier()
        token = draw(
            rows,
            step.drafts,
            lists,
            refused,
            law,
            path,
            temperature,
            row,
            key,
            maxima,
            sums,
            noise,
            noises,
            residual,
            alone,
            WIDE,
            ROOM,
            T,
            TILES,
        )
    if waits == 0:
        tl.store(judged.tokens + row, token)
        if is_last(verdicts.arrivals + request, num_rows):
            by_block = (method == BLOCK) & (temperature != 0)
            settle(judged, verified, request, first, num_rows, given, by_block, K, COLUMNS)


@triton.jit
def _law_of_finish(drawn, summary, row):
    """Status, maximum, mass, cut and path of a row that the finish has cut or drawn for."""
    status = tl.load(drawn.status + row).to(tl.int32)
    row_max = tl.load(summary.floats + row).to(tl.float32)
    mass = tl.exp(tl.load(summary.floats + summary.num_rows + row).to(tl.float32))
    cut_value, cut_id = tl.load(summary.cut_value + row), tl.load(summary.cut_id + row)
    return status, row_max, mass, cut_value, cut_id, tl.load(summary.path + row)


@triton.jit
def _put_law_of_tiles(summary, row, maxima, sums, scale):
    """Status, maximum and mass of a row that is not cut; stores what logprobs ask for."""
    row_max, mass = _maximum_and_mass(maxima, sums, scale)
    status = tl.where(mass != mass, _NONFINITE, tl.where(row_max == MINUS_INF, _EMPTY, 0))
    tl.store(summary.floats + row, row_max)
    tl.store(summary.floats + summary.num_rows + row, tl.log(mass))
    tl.store(summary.cut_value + row, float("-inf"))
    tl.store(summary.cut_id + row, -1)
    return status, row_max, mass


@triton.jit
def _put_raw_law(rows, states, tiles, summary, state, row, at, exists, maxima, sums):
    """Stores maximum and mass of the raw logits, a refused draft among them."""
    if raw_apart(rows, states, state, row):
        maxima = tl.load(tiles.raw_maxima + at, mask=exists, other=MINUS_INF)
        sums = tl.load(tiles.raw_sums + at, mask=exists, other=0.0)
    row_max, mass = _maximum_and_mass(maxima, sums, 1.0)
    tl.store(summary.floats + 2 * summary.num_rows + row, row_max)
    tl.store(summary.floats + 3 * summary.num_rows + row, tl.log(mass))


@triton.jit
def _maximum_and_mass(maxima, sums, scale):
    """float32 of tiles [T]; the mass is NaN for a row with a bad tile, even one without a token."""
    maximum = tl.max(maxima)
    shift = maxima - tl.where(maximum == MINUS_INF, 0.0, maximum)
    return maximum, tl.sum(sums * tl.exp2(shift * (scale * LOG2_E)))


@triton.jit
def _first_token(rows, refused, row, row_max, tile):
    """The first token with a row's maximum, in the first tile that has it; anything of a bad row."""
    ids = tl.where(tile < rows.num_tiles, tile, 0) * TILE + tl.arange(0, TILE)
    x = load_allowed(rows, refused, row, ids, ids >= 0)
    return tl.min(tl.where(x == row_max, ids, LAST_ID))


@triton.jit
def _finish_draft_law(drafts, judged, row, line, PARTS: tl.constexpr):
    """q at a row's draft, float64, and its law's shift and factor: what `judge_row` left open is stored."""
    q, shift, factor = tl.load(judged.q_at_draft + row), tl.load(judged.q_shifts + row), tl.load(judged.q_factors + row)
    if drafts.q.logits is not None and drafts.lse is None:
        if line >= 0:
            part = tl.arange(0, PARTS)
            places = row * judged.parts + part
            maxima = tl.load(judged.q_maxima + places, mask=part < judged.parts, other=MINUS_INF)
            sums = tl.load(judged.q_sums + places, mask=part < judged.parts, other=0.0)
            shift = tl.max(maxima)
            shift, factor = law_of(shift, tl.sum(sums * tl.exp2((maxima - shift) * LOG2_E)))
            tl.store(judged.q_shifts + row, shift)
            tl.store(judged.q_factors + row, factor)
            q = tl.exp(q - shift) * factor
    return q, shift, factor
