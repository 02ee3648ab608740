"""Open requests of `block`: what q leaves of rows is summed, and then the last row that is accepted is found."""

import triton
import triton.language as tl

from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.pdl import follow, let_next_start, wait_for_previous
from drawlot.kernels.triton.reduce import first_largest
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.together import wait_for, wait_for_values
from drawlot.kernels.triton.values import MINUS_INF, load_values, slices_of
from drawlot.kernels.triton.verification.acceptance import accept_block, prefixes_of
from drawlot.kernels.triton.verification.counts import DONE, wait_for_group
from drawlot.kernels.triton.verification.draw import draw_from_tile
from drawlot.kernels.triton.verification.leftover import law_of_row, leftover_of, load_draft_logits, with_prefix
from drawlot.kernels.triton.verification.requests import rows_of_request, step_key, tile_stream
from drawlot.kernels.triton.verification.settle import put_emitted


@triton.jit
def weigh_kernel(
    rows,
    step,
    judged,
    leftovers,
    verdicts,
    NUM_BLOCKS: tl.constexpr,
    K: tl.constexpr,
    REQUESTS: tl.constexpr,
    TILES: tl.constexpr,
    FOLLOWS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the blocks of rows to be weighed, each from a counter: some begin late, and some take long.

    It waits for rows' laws alone, being set up when all programs that find them run. FOLLOWS: at its end for the launch
    before it too, of rows that were left. NUM_BLOCKS: of a row, TILES tiles each; REQUESTS: of a group, whose
    rows are waited for; programs begin with one group or another, and go on to the next.
    """
    let_next_start(OVERLAP)
    num_reqs = step.drafts.num_reqs
    num_groups = tl.cdiv(num_reqs, REQUESTS)
    group, num_done = tl.program_id(0) % num_groups, 0
    item = _next_item(leftovers, group)
    request, first, line = _requests_of(step, group, num_reqs, REQUESTS)
    while num_done < num_groups:
        _num_drafts, _lowest, weighed = _judge_requests(judged, verdicts, group, request, first, num_reqs, K, REQUESTS)
        count = tl.zeros_like(weighed)
        for i in tl.static_range(1, K + 1):
            count += (weighed >> i) & 1
        # Of the group's rows to be weighed, how many come before each request's: those of later requests, which the
        # scan has read last.
        before = tl.sum(count) - tl.cumsum(count, 0)
        first_row, column, its_line = _row_of(item // NUM_BLOCKS, first, line, before, weighed, K)
        while column > 0:
            row, tile = first_row.to(tl.int64) + column, item % NUM_BLOCKS * TILES + tl.arange(0, TILES)
            ids = slices_of(tile)
            exists = ids < rows.vocab_size
            x = load_values(rows, row, ids, exists)
            law = law_of_row(judged, row, its_line.to(tl.int64), tl.full([], 1.0, tl.float32))
            draft_logits = load_draft_logits(step.drafts, law, ids, exists)
            # While all that comes.
            item = _next_item(leftovers, group)
            refused = tl.load(judged.refused + row)
            law = with_prefix(law, prefixes_of(judged, first_row, column, K).to(tl.float32))
            first_row, column, its_line = _row_of(item // NUM_BLOCKS, first, line, before, weighed, K)
            left = leftover_of(step.drafts, law, x, draft_logits, ids, refused)
            masses = tl.sum(tl.sum(left, 1), 1)
            tl.store(leftovers.masses + row * leftovers.width + tile, masses, mask=tile < rows.num_tiles)
        num_done += 1
        group = tl.where(group + 1 == num_groups, 0, group + 1)
        if num_done < num_groups:
            item = _next_item(leftovers, group)
            request, first, line = _requests_of(step, group, num_reqs, REQUESTS)
    if FOLLOWS:
        wait_for_previous(OVERLAP)


@triton.jit
def _requests_of(step, group, num_reqs, REQUESTS: tl.constexpr):
    """Requests of a group, their first rows and the lines of q of their states."""
    request = group * REQUESTS + tl.arange(0, REQUESTS)
    first = tl.load(step.drafts.cu_rows + request, mask=request < num_reqs, other=0)
    state = tl.load(step.drafts.state_rows + request, mask=request < num_reqs, other=0)
    return request, first.to(tl.int32), (state * step.drafts.lines).to(tl.int32)


@triton.jit
def _judge_requests(judged, verdicts, group, request, first, num_reqs, K: tl.constexpr, REQUESTS: tl.constexpr):
    """Of a group, once its rows have their laws: numbers of drafts, -1 if not open, and what `accept_block` says."""
    wait_for_group(verdicts.counts, group, num_reqs, K, REQUESTS)
    num_drafts = tl.load(verdicts.num_drafts + request, mask=request < num_reqs, other=-1)
    lowest, weighed = accept_block(judged, first, num_drafts, True, K)
    return num_drafts, lowest, weighed


@triton.jit
def _next_item(leftovers, group):
    """The number of a block of a group of requests that no program has taken."""
    return tl.atomic_add(leftovers.num_taken + group, 1, sem="relaxed")


@triton.jit
def _row_of(n, first, line, before, weighed, K: tl.constexpr):
    """The n-th row to be weighed of some requests: its request's first row, its column, the line of its q.

    before: how many come before those of a request. Column 0: there are not so many.
    """
    column = tl.zeros_like(before)
    for i in tl.static_range(1, K + 1):
        bit = (weighed >> i) & 1
        column = tl.where((bit != 0) & (before == n), i, column)
        before += bit
    return tl.max(tl.where(column > 0, first, 0)), tl.max(column), tl.max(tl.where(column > 0, line + column, 0))


@triton.jit
def settle_weighed_kernel(
    rows,
    step,
    judged,
    leftovers,
    verdicts,
    verified,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    COLUMNS: tl.constexpr,
    T: tl.constexpr,
    REQUESTS: tl.constexpr,
    CUTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request, if it is open; one a group of requests, which waits for those whose ends nobody else does.

    COLUMNS, T: powers of two > K, >= tiles; REQUESTS: of a group; CUTS: whether rows may have filters.

    It waits for what it needs alone: what is left of tiles and the token that is drawn meanwhile tell when they are
    there. It is set up when all programs of the kernel before it run, and so all before that.
    """
    request = tl.program_id(0).to(tl.int64)
    if request >= step.drafts.num_reqs:
        # Launches need not wait for ends of programs one after the other.
        wait_for(verdicts.counts + DONE, step.drafts.num_reqs * (K + 1))
        _wait_for_draws(step, judged, verdicts, (request - step.drafts.num_reqs).to(tl.int32), K, REQUESTS)
        follow(OVERLAP)
        return
    column, tile = tl.arange(0, COLUMNS), tl.arange(0, T)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    some = tl.maximum(state, 0)
    temperature = temperature_of(step.states, some)
    seed, position, choice, _ = step_key(step.states, some, tl.minimum(first, step.drafts.num_rows - 1), 0)
    at, exists = first + column, column < num_rows
    wait_for_group(verdicts.counts, request // REQUESTS, step.drafts.num_reqs, K, REQUESTS)
    num_drafts = tl.load(verdicts.num_drafts + request)
    lowest, weighed = accept_block(judged, first, num_drafts, True, K)
    if num_drafts >= 0:
        draft = tl.load(judged.drafts + at, mask=exists, other=-1)
        # Of rows whose coin is not below P_i, h_i, which is at most that, is not asked.
        accepted, candidate, stream = lowest, _highest_bit(weighed, K), tile_stream(lowest >= 0, lowest < 0)
        masses, noise = tl.zeros([T], tl.float32), tl.zeros([T], tl.float64 if WIDE else tl.float32)
        while candidate > 0:
            row = first + candidate
            if CUTS:
                # A row with a filter has stored none: its list needs other noise, and has to be there as soon.
                noise = gumbel_of_range(0, T, seed, position, stream, choice, candidate, WIDE)
            else:
                noise = tl.load(leftovers.noises + row * leftovers.width + tile)
            coin, prefix = tl.load(judged.coins + row - 1), prefixes_of(judged, first, candidate, K)
            masses = wait_for_values(leftovers.masses + row * leftovers.width + tile, tile < rows.num_tiles, -1.0)
            left = tl.sum(masses)
            rest = left + 1 - prefix
            accepts = coin < tl.where(rest == 0, 1.0, left / rest)
            accepted = tl.where(accepts, candidate, lowest)
            weighed = tl.where(accepts, 0, weighed ^ (1 << candidate))
            candidate = _highest_bit(weighed, K)
        if accepted > lowest:
            row = first + accepted
            keys = tl.where(masses > 0, tl.log(tl.where(masses > 0, masses, 1.0)) + noise, MINUS_INF)
            best, _payload = first_largest(keys, tile, tile)
            prefix = prefixes_of(judged, first, accepted, K).to(tl.float32)
            token = draw_from_tile(
                rows,
                step.drafts,
                tl.load(judged.refused + row),
                # The line is not read, so that q's logits need not wait for it.
                law_of_row(judged, row, state * step.drafts.lines + accepted, prefix),
                temperature,
                row,
                (seed, position, choice, accepted),
                best,
                -1,
                row >= 0,
                row >= 0,
                row < 0,
                WIDE,
            )
        else:
            token = wait_for(judged.tokens + first + lowest, -1)
        put_emitted(verified, request, at, exists, column, draft, accepted, token, K)
    follow(OVERLAP)


@triton.jit
def _wait_for_draws(step, judged, verdicts, group, K: tl.constexpr, REQUESTS: tl.constexpr):
    """Wait for the tokens that are drawn while rows are weighed, asked for or not."""
    num_reqs = step.drafts.num_reqs
    request, first, _line = _requests_of(step, group, num_reqs, REQUESTS)
    num_drafts, lowest, _weighed = _judge_requests(judged, verdicts, group, request, first, num_reqs, K, REQUESTS)
    wait_for_values(judged.tokens + first + lowest, num_drafts >= 0, -2)


@triton.jit
def _highest_bit(bits, K: tl.constexpr):
    """The highest of bits 1 to K that is set; 0 if none is."""
    place = bits * 0
    for i in tl.static_range(1, K + 1):
        place = tl.where(((bits >> i) & 1) != 0, i, place)
    return place
