"""Open requests of `block`: what q leaves of rows is summed, and then the last row that is accepted is found."""

import triton
import triton.language as tl

from drawlot.kernels.triton.noise import gumbel_of_range
from drawlot.kernels.triton.pdl import follow, let_next_start, wait_for_previous
from drawlot.kernels.triton.reduce import first_largest
from drawlot.kernels.triton.states import temperature_of
from drawlot.kernels.triton.summary import WHOLE
from drawlot.kernels.triton.together import wait_for, wait_for_values
from drawlot.kernels.triton.values import MINUS_INF, load_values, slices_of
from drawlot.kernels.triton.verification.acceptance import accept_block, prefixes_of
from drawlot.kernels.triton.verification.draw import draw, draw_from_tile
from drawlot.kernels.triton.verification.leftover import law_of_row, load_draft_logits, weights_of, with_prefix
from drawlot.kernels.triton.verification.requests import is_filtered, rows_of_request, step_key, tile_stream
from drawlot.kernels.triton.verification.settle import put_emitted


@triton.jit
def draw_kernel(
    rows,
    step,
    tiles,
    lists,
    whole,
    summary,
    judged,
    leftovers,
    verdicts,
    verified,
    WIDE: tl.constexpr,
    K: tl.constexpr,
    T: tl.constexpr,
    ROOM: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one request; of an open one it stores the token, if no row is accepted that has to be weighed first.

    It is set up when all programs of the laws' kernel run: none that it waits for has yet to begin. Constants as for
    `law_kernel`.
    """
    let_next_start(OVERLAP)
    request, tile = tl.program_id(0).to(tl.int64), tl.arange(0, T)
    first, _ = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    # A request without a state or without rows asks for nothing.
    some = tl.maximum(state, 0)
    temperature, filtered = temperature_of(step.states, some), is_filtered(step.states, some)
    seed, position, choice, _ = step_key(step.states, some, tl.minimum(first, step.drafts.num_rows - 1), 0)
    wait_for(leftovers.known, step.drafts.num_reqs * (K + 1))
    num_drafts = tl.load(verdicts.num_drafts + request)
    lowest, _weighed = accept_block(judged, first, num_drafts, True, K)
    if num_drafts >= 0:
        # All at once: it is the wait that costs. P is 1.
        row = first + lowest
        status, refused = tl.load(verified.status + row), tl.load(judged.refused + row)
        law = law_of_row(judged, row, tl.load(judged.lines + row), tl.full([], 1.0, tl.float32))
        at, exists = row * tiles.stride + tile, tile < rows.num_tiles
        maxima = tl.load(tiles.maxima + at, mask=exists, other=MINUS_INF)
        sums = tl.load(tiles.sums + at, mask=exists, other=0.0)
        noises = leftovers.noises + row * leftovers.width
        path, token = tl.full([], -1, tl.int32), tl.full([], -1, tl.int32)
        # Made while that comes.
        noise = gumbel_of_range(
            0, T, seed, position, tile_stream(lowest < num_drafts, lowest < 0), choice, lowest, WIDE
        )
        tl.store(noises + tile, noise)
        if filtered:
            path = tl.load(summary.path + row)
            if path == WHOLE:
                sums = tl.load(whole.kept_sums + row * T + tile, mask=exists, other=0.0)
        if status == 0:
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
                (seed, position, choice, lowest),
                maxima,
                sums,
                noise,
                noises,
                lowest < num_drafts,
                lowest < 0,
                WIDE,
                ROOM,
                T,
                TILES,
            )
        tl.store(judged.tokens + row, token)
    wait_for_previous(OVERLAP)


@triton.jit
def weigh_kernel(
    rows,
    step,
    judged,
    leftovers,
    verdicts,
    num_blocks,
    K: tl.constexpr,
    REQUESTS: tl.constexpr,
    TILES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """All programs share the blocks of rows to be weighed, each from a counter: some begin late, and some take long.

    As `draw_kernel` it waits for rows' laws alone. num_blocks: of a row, TILES tiles each; REQUESTS: that are looked
    through at a time.
    """
    let_next_start(OVERLAP)
    num_reqs, item = step.drafts.num_reqs, _next_item(leftovers)
    wait_for(leftovers.known, num_reqs * (K + 1))
    start, num_before = 0, tl.zeros([], tl.int32)
    while start < num_reqs:
        request = start + tl.arange(0, REQUESTS)
        exists = request < num_reqs
        first = tl.load(step.drafts.cu_rows + request, mask=exists, other=0)
        num_drafts = tl.load(verdicts.num_drafts + request, mask=exists, other=-1)
        _lowest, weighed = accept_block(judged, first, num_drafts, True, K)
        count = tl.zeros_like(weighed)
        for i in tl.static_range(1, K + 1):
            count += (weighed >> i) & 1
        # Up to each request, itself included: an item's is the first that has more of them than the item's number.
        number = num_before + tl.cumsum(count, 0)
        place = tl.sum((number <= item // num_blocks).to(tl.int32))
        while place < REQUESTS:
            is_its = tl.arange(0, REQUESTS) == place
            among = item // num_blocks - tl.sum(tl.where(is_its, number - count, 0))
            column = _nth_bit(tl.sum(tl.where(is_its, weighed, 0)), among, K)
            item = _weigh_block(
                rows, step.drafts, judged, leftovers, start + place, column, item % num_blocks, K, TILES
            )
            place = tl.sum((number <= item // num_blocks).to(tl.int32))
        start += REQUESTS
        num_before = tl.max(number)
    wait_for_previous(OVERLAP)


@triton.jit
def _next_item(leftovers):
    """The number of a block that no program has taken."""
    return tl.atomic_add(leftovers.num_taken, 1, sem="relaxed")


@triton.jit
def _nth_bit(bits, n, K: tl.constexpr):
    """Which of bits 1 to K is the n-th that is set, from 0."""
    place, num_before = n * 0, n * 0
    for i in tl.static_range(1, K + 1):
        bit = (bits >> i) & 1
        place = tl.where((bit != 0) & (num_before == n), i, place)
        num_before += bit
    return place


@triton.jit
def _weigh_block(rows, drafts, judged, leftovers, request, column, block, K: tl.constexpr, TILES: tl.constexpr):
    """Stores what is left of a block of TILES tiles; returns the next item of this program."""
    first, _ = rows_of_request(drafts, request)
    row, tile = first + column, block * TILES + tl.arange(0, TILES)
    ids = slices_of(rows, tile)
    exists = ids < rows.vocab_size
    line = tl.load(drafts.state_rows + request) * drafts.lines + column
    x = load_values(rows, row, ids, exists)
    law = law_of_row(judged, row, line, tl.full([], 1.0, tl.float32))
    draft_logits = load_draft_logits(drafts, law, ids, exists)
    # While all that comes.
    next_item = _next_item(leftovers)
    refused = tl.load(judged.refused + row)
    if refused >= 0:
        x = tl.where(ids == refused, MINUS_INF, x)
    law = with_prefix(law, prefixes_of(judged, first, column, K).to(tl.float32))
    _p, left = weights_of(drafts, law, x, draft_logits, ids)
    masses = tl.sum(tl.sum(left, 1), 1)
    tl.store(leftovers.masses + row * leftovers.width + tile, masses, mask=tile < rows.num_tiles)
    return next_item


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
    OVERLAP: tl.constexpr,
):
    """Program: one request, if it is open. COLUMNS, T: powers of two > K, >= tiles.

    It waits for what it needs alone: what is left of tiles and the token that is drawn meanwhile tell when they are
    there. It is set up when all programs of the kernel before it run, and so all before that.
    """
    request = tl.program_id(0).to(tl.int64)
    column, tile = tl.arange(0, COLUMNS), tl.arange(0, T)
    first, num_rows = rows_of_request(step.drafts, request)
    state = tl.load(step.drafts.state_rows + request)
    some = tl.maximum(state, 0)
    temperature = temperature_of(step.states, some)
    seed, position, choice, _ = step_key(step.states, some, tl.minimum(first, step.drafts.num_rows - 1), 0)
    at, exists = first + column, column < num_rows
    wait_for(leftovers.known, step.drafts.num_reqs * (K + 1))
    num_drafts = tl.load(verdicts.num_drafts + request)
    lowest, weighed = accept_block(judged, first, num_drafts, True, K)
    if num_drafts >= 0:
        draft = tl.load(judged.drafts + at, mask=exists, other=-1)
        # Of rows whose coin is not below P_i, h_i, which is at most that, is not asked.
        accepted, candidate, stream = lowest, _highest_bit(weighed, K), tile_stream(lowest >= 0, lowest < 0)
        masses, noise = tl.zeros([T], tl.float32), tl.zeros([T], tl.float64 if WIDE else tl.float32)
        while candidate > 0:
            row = first + candidate
            noise = gumbel_of_range(0, T, seed, position, stream, choice, candidate, WIDE)
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
            row = first + lowest
            wait_for(judged.tokens + row, -1)
            token = tl.load(judged.tokens + row)
        put_emitted(verified, request, at, exists, column, draft, accepted, token, K)
    follow(OVERLAP)


@triton.jit
def _highest_bit(bits, K: tl.constexpr):
    """The highest of bits 1 to K that is set; 0 if none is."""
    place = bits * 0
    for i in tl.static_range(1, K + 1):
        place = tl.where(((bits >> i) & 1) != 0, i, place)
    return place
