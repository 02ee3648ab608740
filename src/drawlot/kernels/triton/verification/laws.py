"""What each row says of its draft: its value, what q gave it, and the row's mass where no filter cuts it."""

import triton
import triton.language as tl

from drawlot.kernels.triton.finish import _put_raw_mass
from drawlot.kernels.triton.pdl import follow
from drawlot.kernels.triton.scan import LOG2_E, raw_apart, tile_sums
from drawlot.kernels.triton.states import scale_of, scan_scale, temperature_of
from drawlot.kernels.triton.values import MINUS_INF, TILE, ids_of, load_logits
from drawlot.kernels.triton.verification.requests import load_allowed
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))
_SKIPPED = tl.constexpr(int(RowStatus.SKIPPED))


@triton.jit
def laws_kernel(
    rows,
    step,
    tiles,
    judged,
    verified,
    summary,
    K: tl.constexpr,
    T: tl.constexpr,
    BLOCKS: tl.constexpr,
    SPARSE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Program: one row. T, BLOCKS, SPARSE: powers of two >= tiles, blocks of a line of q, tokens of a sparse one."""
    row = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, T)
    at = row * tiles.stride + tile
    follow(OVERLAP)
    maxima = tl.load(tiles.maxima + at, mask=tile < rows.num_tiles, other=MINUS_INF)
    sums = tl.load(tiles.sums + at, mask=tile < rows.num_tiles, other=0.0)
    draft, refused = tl.load(judged.drafts + row), tl.load(judged.refused + row)
    line = tl.load(judged.lines + row)
    state = tl.load(step.states.index + row)
    if state < 0:
        tl.store(verified.status + row, _SKIPPED)
        tl.store(judged.draft_values + row, MINUS_INF)
        return
    if tiles.raw_sums is not None:
        _put_raw_mass(
            rows, step.states, tiles, summary, state, row, at, tile < rows.num_tiles, maxima, sums, tl.max(maxima)
        )
    if refused >= 0:
        maxima, sums = _without_refused(rows, step.states, tiles, judged, state, row, refused, at, tile, maxima, sums)

    temperature = temperature_of(step.states, state)
    row_max = tl.max(maxima)
    bad = tl.max((sums != sums).to(tl.int32)) != 0
    tl.store(verified.status + row, tl.where(bad, _NONFINITE, tl.where(row_max == MINUS_INF, _EMPTY, 0)))
    shift = tl.where(sums > 0, maxima - row_max, 0.0)
    tl.store(judged.maxima + row, row_max)
    # Where the scan sums at another scale, the mass is the finish's to tell.
    tl.store(judged.masses + row, tl.sum(sums * tl.exp(shift * scale_of(temperature))).to(tl.float64))

    own = draft + tl.arange(0, 1)
    tl.store(judged.draft_values + row + tl.arange(0, 1), load_allowed(rows, judged, row, own, own >= 0))
    if line < 0:
        tl.store(judged.q_at_draft + row, 1.0)
    else:
        if step.drafts.q.logits is not None or step.drafts.sparse is not None:
            _put_draft_law(step.drafts, judged, row, state, line, draft, K, BLOCKS, SPARSE)


@triton.jit
def _without_refused(rows, states, tiles, judged, state, row, refused, at, tile, maxima, sums):
    """The tiles without the draft that a constraint refuses; raw logprobs keep what the scan found."""
    if tiles.raw_sums is not None:
        if raw_apart(rows, states, state, row) == 0:
            tl.store(tiles.raw_maxima + at, maxima, mask=tile < rows.num_tiles)
            tl.store(tiles.raw_sums + at, sums, mask=tile < rows.num_tiles)
    touched = refused // TILE + tl.arange(0, 1)
    x = load_allowed(rows, judged, row, ids_of(touched), touched[:, None] >= 0)
    new_maxima = tl.max(x, 1)
    new_maximum, new_sum = tl.max(new_maxima), tl.max(tile_sums(x, new_maxima, scan_scale(states, state)))
    maxima = tl.where(tile == refused // TILE, new_maximum, maxima)
    # What the mask hides may have been bad.
    sums = tl.where((tile == refused // TILE) & (sums == sums), new_sum, sums)
    tl.store(tiles.maxima + at, maxima, mask=tile == refused // TILE)
    tl.store(tiles.sums + at, sums, mask=tile == refused // TILE)
    return maxima, sums


@triton.jit
def _put_draft_law(
    drafts, judged, row, state, line, draft, K: tl.constexpr, BLOCKS: tl.constexpr, SPARSE: tl.constexpr
):
    """Stores q at the draft, and by which shift and factor q comes of its logits."""
    own = draft + tl.arange(0, 1)
    if drafts.sparse is not None:
        slot = tl.arange(0, SPARSE)
        listed = slot < drafts.sparse.width
        ids = tl.load(drafts.sparse.token_ids + line * drafts.sparse.width + slot, mask=listed, other=-1)
        x = tl.load(drafts.sparse.logits + line * drafts.sparse.width + slot, mask=listed & (ids >= 0), other=MINUS_INF)
        maxima = x.to(tl.float32)
        sums = tl.where(ids >= 0, 1.0, 0.0)
        is_own = (ids == draft) & (ids >= 0)
        at_draft = tl.max(tl.where(is_own, maxima, MINUS_INF))
        num_listed, of_draft = tl.sum((ids >= 0).to(tl.int32)), tl.sum(is_own.to(tl.int32))
    else:
        at_draft = tl.max(load_logits(drafts.q, line, own, own >= 0))
        num_listed, of_draft = tl.full([], 1, tl.int32), tl.full([], 1, tl.int32)
        block = tl.arange(0, BLOCKS)
        exists = block < judged.blocks
        if drafts.lse is None:
            maxima = tl.load(judged.q_maxima + row * judged.blocks + block, mask=exists, other=MINUS_INF)
            sums = tl.load(judged.q_sums + row * judged.blocks + block, mask=exists, other=0.0)
    if drafts.lse is not None:
        shift = tl.load(drafts.lse + state * K + (line - state * drafts.lines))
        factor = tl.full([], 1.0, tl.float32)
    else:
        shift = tl.max(maxima)
        total = tl.sum(sums * tl.exp2((maxima - shift) * LOG2_E))
        factor = 1.0 / total
    # A broken line is no law: NaN, and no coin is below that.
    broken = (shift != shift) | (shift == float("inf")) | (shift == MINUS_INF) | (factor != factor)
    # All tokens that are not listed have q = 0.
    shift = tl.where(broken, tl.where(num_listed > 0, float("nan"), 0.0), shift)
    tl.store(judged.q_shifts + row, shift)
    tl.store(judged.q_factors + row, factor)
    at_draft = tl.exp(at_draft.to(tl.float64) - shift) * factor
    tl.store(judged.q_at_draft + row, tl.where(of_draft > 0, at_draft, 0.0))
