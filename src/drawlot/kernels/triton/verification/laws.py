"""The laws that a request's rows and drafts have: maxima, masses and status of rows, what q makes of its logits."""

import triton
import triton.language as tl

from drawlot.kernels.triton.refused import without_refused
from drawlot.kernels.triton.scan import LOG2_E, raw_apart
from drawlot.kernels.triton.states import scale_of, temperature_of
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF
from drawlot.kernels.triton.verification.judge import law_of
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))


@triton.jit
def put_laws(
    rows,
    states,
    tiles,
    judged,
    summary,
    verified,
    state,
    first,
    num_rows,
    T: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
):
    """Stores the laws of rows without filters, from the scan's tiles, ROWS of them at a time. A barrier must follow."""
    temperature = temperature_of(states, state)
    scale = scale_of(tl.where(temperature == 0, 1.0, temperature))
    tile = tl.arange(0, T)
    start = num_rows * 0
    while start < num_rows:
        row = first + start + tl.arange(0, ROWS)
        exists = row < first + num_rows
        at, mask = row[:, None] * tiles.stride + tile[None, :], exists[:, None] & (tile < rows.num_tiles)[None, :]
        maxima = tl.load(tiles.maxima + at, mask=mask, other=MINUS_INF)
        sums = tl.load(tiles.sums + at, mask=mask, other=0.0)
        _put_law(judged, summary, verified, row, exists, maxima, sums, tile, temperature, scale)
        if tiles.raw_sums is not None:
            # All rows of a request or none: they share its parameters.
            if raw_apart(rows, states, state, first):
                maxima = tl.load(tiles.raw_maxima + at, mask=mask, other=MINUS_INF)
                sums = tl.load(tiles.raw_sums + at, mask=mask, other=0.0)
            row_max, mass = _maximum_and_mass(maxima, sums, 1.0)
            tl.store(summary.floats + 2 * summary.num_rows + row, row_max, mask=exists)
            tl.store(summary.floats + 3 * summary.num_rows + row, tl.log(mass), mask=exists)
        start += ROWS

    column = tl.arange(0, COLUMNS)
    refused = tl.load(judged.refused + first + column, mask=column < num_rows, other=-1)
    while tl.max(refused) >= 0:
        tl.debug_barrier()
        place = tl.min(tl.where(refused >= 0, column, COLUMNS))
        token = tl.max(tl.where(column == place, refused, -1))
        row = first + place
        at = row * tiles.stride + tile
        maxima = tl.load(tiles.maxima + at, mask=tile < rows.num_tiles, other=MINUS_INF)
        sums = tl.load(tiles.sums + at, mask=tile < rows.num_tiles, other=0.0)
        maxima, sums = without_refused(rows, states, tiles, state, row, token, tile, maxima, sums)
        row += tl.arange(0, 1)
        maxima, sums = maxima[None, :], sums[None, :]
        _put_law(judged, summary, verified, row, row >= 0, maxima, sums, tile, temperature, scale)
        refused = tl.where(column == place, -1, refused)


@triton.jit
def _put_law(judged, summary, verified, row, mask, maxima, sums, tile, temperature, scale):
    """Of rows [M], maxima and sums of their tiles being [M, T]."""
    row_max, mass = _maximum_and_mass(maxima, sums, scale)
    status = tl.where(mass != mass, _NONFINITE, tl.where(row_max == MINUS_INF, _EMPTY, 0))
    tl.store(verified.status + row, status, mask=mask)
    tl.store(judged.maxima + row, row_max, mask=mask)
    tl.store(judged.masses + row, mass, mask=mask)
    if temperature == 0:
        best = tl.min(tl.where(maxima == row_max[:, None], tile[None, :], LAST_ID), 1)
        tl.store(judged.best_tiles + row, best, mask=mask)
    tl.store(summary.floats + row, row_max, mask=mask)
    tl.store(summary.floats + summary.num_rows + row, tl.log(mass), mask=mask)


@triton.jit
def _maximum_and_mass(maxima, sums, scale):
    """float32 [M] of tiles [M, T]; NaN for a row with a bad tile, even one without a token."""
    maximum = tl.max(maxima, 1)
    shift = maxima - tl.where(maximum == MINUS_INF, 0.0, maximum)[:, None]
    return maximum, tl.sum(sums * tl.exp2(shift * (scale * LOG2_E)), 1)


@triton.jit
def take_laws(judged, drawn, summary, verified, at, mask):
    """Stores the laws of rows that the finish has cut. A barrier must follow."""
    tl.store(verified.status + at, tl.load(drawn.status + at, mask=mask, other=0), mask=mask)
    tl.store(judged.maxima + at, tl.load(summary.floats + at, mask=mask, other=0.0).to(tl.float32), mask=mask)
    log_mass = tl.load(summary.floats + summary.num_rows + at, mask=mask, other=0.0)
    tl.store(judged.masses + at, tl.exp(log_mass.to(tl.float32)), mask=mask)


@triton.jit
def finish_draft_laws(drafts, judged, at, is_draft, PARTS: tl.constexpr):
    """float64 [M]: q at the drafts of rows at [M]; stores what `judge_row` left open. PARTS: as in `settle_kernel`."""
    q = tl.load(judged.q_at_draft + at, mask=is_draft, other=1.0)
    if drafts.q.logits is not None and drafts.lse is None:
        mask = is_draft & (tl.load(judged.lines + at, mask=is_draft, other=-1) >= 0)
        part = tl.arange(0, PARTS)
        exists = mask[:, None] & (part < judged.parts)[None, :]
        places = at[:, None] * judged.parts + part[None, :]
        maxima = tl.load(judged.q_maxima + places, mask=exists, other=MINUS_INF)
        sums = tl.load(judged.q_sums + places, mask=exists, other=0.0)
        shift = tl.max(maxima, 1)
        shift, factor = law_of(shift, tl.sum(sums * tl.exp2((maxima - shift[:, None]) * LOG2_E), 1))
        tl.store(judged.q_shifts + at, shift, mask=mask)
        tl.store(judged.q_factors + at, factor, mask=mask)
        q = tl.where(mask, tl.exp(q - shift) * factor, q)
    return q
