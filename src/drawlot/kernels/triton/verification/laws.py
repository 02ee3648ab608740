"""What each row makes of itself: its law, whether it accepts its draft, and the token that it draws if not.

The last row of a request to know looks what the request emits: no launch has to begin for that.
"""

import triton
import triton.language as tl

from drawlot.kernels.triton.decided import BOTH_SHARES, decide, decide_and_leave, wait_until_decided
from drawlot.kernels.triton.listing import clear_list
from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.pdl import follow, let_next_start, wait_for_previous
from drawlot.kernels.triton.refused import without_refused
from drawlot.kernels.triton.states import filters_of, scale_of, temperature_of
from drawlot.kernels.triton.summary import LISTED, NO_TOKEN, WHOLE
from drawlot.kernels.triton.tile_summary import LOG2_E
from drawlot.kernels.triton.together import count_up, is_last, wait_for
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, MINUS_INF_ORDER
from drawlot.kernels.triton.verification.acceptance import (
    accept_block,
    accepts,
    coded_ratio,
    coin_of,
    ratio_of_draft,
)
from drawlot.kernels.triton.verification.counts import DONE, count_open_row, rows_done, rows_known
from drawlot.kernels.triton.verification.cut import cut_row, no_list
from drawlot.kernels.triton.verification.draw import draw, load_listed
from drawlot.kernels.triton.verification.leftover import law_of_row
from drawlot.kernels.triton.verification.requests import (
    BLOCK,
    COUPLED,
    SYNTHETIC,
    is_filtered,
    is_open,
    load_drafts,
    looks_at_q,
    method_of,
    rows_of_request,
    step_key,
    tile_stream,
)
from drawlot.kernels.triton.verification.row_law import (
    finish_draft_law,
    first_token,
    law_of_whole_row,
    put_law_of_tiles,
    put_raw_law,
)
from drawlot.kernels.triton.verification.settle import settle, skip_request, skip_rows_after


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
    GROUPS: tl.constexpr,
    TILES: tl.constexpr,
    REQUESTS: tl.constexpr,
    OPEN: tl.constexpr,
    CUTS: tl.constexpr,
    LEFT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one row that a request may have. drawn, summary: of rows that are read whole.

    COLUMNS, T, PARTS: powers of two > K, >= tiles, >= parts of a law; ROOM, GROUPS: of a short list, and read at a time
    for it; TILES: read at a time by a draw; REQUESTS: of a group; OPEN: whether requests may be open, see `is_open`;
    CUTS: whether rows may have filters; LEFT: only rows that such a launch has left to `whole_rows`.
    """
    program = tl.program_id(0)
    request, column = (program // (K + 1)).to(tl.int64), program % (K + 1)
    states = step.states
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    row = first + column
    is_row = (column < num_rows) & (state >= 0)
    if LEFT:
        is_row = _is_left(step, tiles, verdicts, summary, state, row, is_row, K, OVERLAP)
        if is_row == 0:
            _end(step, verdicts, program, K, OPEN, CUTS, LEFT, OVERLAP)
            return
    elif is_row == 0:
        follow(OVERLAP)
        if CUTS:
            decide(tiles, False, BOTH_SHARES, False)
        if OPEN:
            tl.atomic_add(rows_known(verdicts.counts, request // REQUESTS), 1, sem="relaxed")
        if column == 0:
            skip_request(step.drafts, summary, verified, request, first, num_rows, K, COLUMNS)
        _end(step, verdicts, program, K, OPEN, CUTS, LEFT, OVERLAP)
        return

    # Noise and coin are a matter of the request alone: they are made while the scan still runs.
    temperature, method = temperature_of(states, state), method_of(methods, state)
    _, given = load_drafts(step.drafts, request, tl.arange(0, COLUMNS), num_rows, K)
    waits = is_open(states, methods, step.drafts, state, given)
    coupled = (method == COUPLED) & (temperature != 0)
    residual, usual = (column < given) & looks_at_q(states, methods, state), (given == 0) | coupled
    seed, anchor, choice, _ = step_key(states, state, first, column)
    own_position = tl.load(states.positions + row)
    coin = coin_of((seed, anchor, choice, column), WIDE)
    key = seed, tl.where(coupled, own_position, anchor), choice, tl.where(coupled, 0, column)
    divisor = tl.where(temperature == 0, 1.0, temperature)
    scale, per_temperature = scale_of(divisor), 1.0 / divisor
    noises, tile = leftovers.noises + row * leftovers.width, tl.arange(0, T)
    noise = tl.zeros([T], tl.float64 if WIDE else tl.float32)
    makes_noise, filtered = temperature != 0, is_row
    if CUTS:
        filters = filters_of(states, state)
        filtered = is_filtered(states, state)
        makes_noise = makes_noise & (filtered == 0)
        if filtered:
            clear_list(lists, row, ROOM)
    if makes_noise:
        noise = gumbel_of_range(0, T, key[0], key[1], tile_stream(residual, usual), key[2], key[3], WIDE)
        tl.store(noises + tile, noise)
    # Whoever counts itself in waits for its stores: all that can be is stored now.
    tl.store(summary.rank + row, 0)
    if method == BLOCK:
        tl.store(judged.coins + row, coin)
    if OPEN:
        if waits:
            tl.store(judged.tokens + row, -2)
            tl.store(judged.scales + row, scale * LOG2_E)
            tl.store(leftovers.masses + row * leftovers.width + tile, -1.0)
    if not LEFT:
        follow(OVERLAP)

    at, exists = row * tiles.stride + tile, tile < tiles.num
    maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
    draft, x = tl.load(judged.drafts + row), tl.load(judged.draft_values + row)
    line, refused = tl.load(judged.lines + row), tl.load(judged.refused + row)
    cut_value, cut_id = tl.full([], float("-inf"), tl.float32), tl.full([], -1, tl.int32)
    token, path = tl.full([], -1, tl.int32), tl.full([], NO_TOKEN, tl.int32)
    listed = None
    if CUTS or LEFT:
        listed = no_list(ROOM, WIDE)
    if LEFT:
        status, row_max, mass, cut_value, cut_id, path = law_of_whole_row(drawn, summary, row)
        sums = tl.load(whole.kept_sums + row * T + tile, mask=exists, other=0.0)
        if usual:
            token = tl.load(drawn.token_ids + row).to(tl.int32)
    else:
        sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
        best_groups = tile
        if CUTS:
            best_groups = tl.load(tiles.best_groups + at, mask=exists, other=MINUS_INF_ORDER)
        if tiles.raw_sums is not None:
            put_raw_law(rows, states, tiles, summary, state, row, at, exists, maxima, sums)
        if refused >= 0:
            maxima, sums, best_groups = without_refused(
                rows, states, tiles, state, row, refused, tile, maxima, sums, best_groups
            )
            # Lists read what that stores.
            tl.debug_barrier()
        if CUTS:
            if filtered:
                status, row_max, mass, cut_value, cut_id, path, listed = cut_row(
                    rows,
                    step.drafts,
                    tiles,
                    lists,
                    whole,
                    summary,
                    row,
                    refused,
                    line,
                    temperature,
                    filters,
                    maxima,
                    sums,
                    best_groups,
                    key,
                    residual,
                    usual,
                    WIDE,
                    T,
                    ROOM,
                    GROUPS,
                )
            else:
                decide(tiles, False, BOTH_SHARES, False)
                status, row_max, mass = put_law_of_tiles(summary, row, maxima, sums, scale)
            if path == WHOLE:
                decide_and_leave(tiles, BOTH_SHARES, False)
                _end(step, verdicts, program, K, OPEN, CUTS, LEFT, OVERLAP)
                return
        else:
            status, row_max, mass = put_law_of_tiles(summary, row, maxima, sums, scale)
        if temperature == 0:
            token = first_token(rows, refused, row, row_max, tl.min(tl.where(maxima == row_max, tile, LAST_ID)))

    q, q_shift, q_factor = finish_draft_law(step.drafts, judged, row, line, PARTS)
    ratio = ratio_of_draft(x, draft, row_max, mass, q, per_temperature, cut_value, cut_id)
    hit = accepts(methods, method, column, draft, ratio, coin)
    by_token = (temperature == 0) & (method != SYNTHETIC)
    tl.store(judged.hits + row, tl.where(by_token, token == draft, hit).to(tl.int32))
    tl.store(verified.status + row, status)
    if method == BLOCK:
        tl.store(judged.ratios + row, coded_ratio(ratio, status, (line < 0) | (q_shift == q_shift)))
    if OPEN:
        if waits:
            tl.store(verdicts.num_drafts + request, given, mask=column == 0)
            tl.store(judged.maxima + row, row_max)
            tl.store(judged.per_masses + row, 1.0 / mass)
            tl.store(judged.cut_values + row, cut_value)
            tl.store(judged.cut_ids + row, cut_id)
        else:
            tl.atomic_add(rows_known(verdicts.counts, request // REQUESTS), 1, sem="relaxed")

    if column == 0:
        skip_rows_after(step.drafts, summary, verified, request, first + num_rows)

    # By `block` a draft that its row accepts may be the one that is not.
    draws = (hit == 0) | (column == given) | (method == BLOCK) | coupled
    draws = (waits == 0) & draws & (column <= given) & (token < 0) & (temperature != 0) & (status == 0)
    tells, drawn_row = waits == 0, row
    one = tl.full([], 1.0, tl.float32)
    law = line, draft, q_shift, q_factor, cut_value, cut_id, row_max, scale * LOG2_E, 1.0 / mass, one
    if OPEN:
        if waits:
            # The last row of the request to get there draws, of the one row of which that can be asked before others
            # are weighed.
            tells = count_open_row(verdicts.counts, request, num_rows, REQUESTS, LEFT)
            if tells:
                lowest, _weighed = accept_block(judged, first, given, True, K)
                drawn_row, residual = first + lowest, lowest < given
                key = seed, anchor, choice, lowest
                status, refused = tl.load(verified.status + drawn_row).to(tl.int32), tl.load(judged.refused + drawn_row)
                law = law_of_row(judged, drawn_row, tl.load(judged.lines + drawn_row), one)
                at, noises = drawn_row * tiles.stride + tile, leftovers.noises + drawn_row * leftovers.width
                maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
                sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
                noise = tl.load(noises + tile)
                if (CUTS or LEFT) and filtered:
                    path = tl.load(summary.path + drawn_row)
                    if path == WHOLE:
                        sums = tl.load(whole.kept_sums + drawn_row * T + tile, mask=exists, other=0.0)
                    elif path == LISTED:
                        listed = load_listed(step.drafts, lists, drawn_row, law[0], key, residual, WIDE, ROOM)
                draws = status == 0
    if draws:
        # The noise is read back.
        tl.debug_barrier()
        token = draw(
            rows,
            step.drafts,
            listed,
            refused,
            law,
            path,
            temperature,
            drawn_row,
            key,
            maxima,
            sums,
            noise,
            noises,
            residual,
            usual,
            WIDE,
            T,
            TILES,
        )
    if tells:
        # Of an open request this is the last that is done: it tells by itself that it is there.
        tl.store(judged.tokens + drawn_row, token)
    if waits == 0:
        if is_last(rows_done(verdicts.counts, request), num_rows):
            by_block = (method == BLOCK) & (temperature != 0)
            settle(judged, verified, request, first, num_rows, given, coupled, by_block, K, COLUMNS)
    if LEFT or waits == 0:
        _end(step, verdicts, program, K, OPEN, CUTS, LEFT, OVERLAP)


@triton.jit
def _is_left(step, tiles, verdicts, summary, state, row, is_row, K: tl.constexpr, OVERLAP: tl.constexpr):
    """Whether a row has been read whole. Mostly none has, which is known while others still draw."""
    let_next_start(OVERLAP)
    if wait_until_decided(tiles) == 0:
        is_row = is_row & False
    else:
        wait_for_previous(OVERLAP)
        # Rows that were not left count themselves before they store their paths.
        _wait_for_laws(step, verdicts, K)
        if is_row:
            is_row = is_filtered(step.states, state) & (tl.load(summary.path + row) == WHOLE)
    return is_row


@triton.jit
def _end(
    step,
    verdicts,
    program,
    K: tl.constexpr,
    OPEN: tl.constexpr,
    CUTS: tl.constexpr,
    LEFT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Programs say themselves that they are done where launches follow that would only wait for that one by one.

    Those of open rows have said so when they counted themselves.
    """
    if LEFT:
        if program == 0:
            wait_for_previous(OVERLAP)
            if not OPEN:
                _wait_for_laws(step, verdicts, K)
    elif CUTS or OPEN:
        count_up(verdicts.counts + DONE)


@triton.jit
def _wait_for_laws(step, verdicts, K: tl.constexpr):
    wait_for(verdicts.counts + DONE, step.drafts.num_reqs * (K + 1))
