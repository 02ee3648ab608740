"""The law that a row draws from if it keeps all it has, or has been read whole, and the law its draft came from."""

import triton
import triton.language as tl

from drawlot.kernels.triton.raw_mass import raw_apart
from drawlot.kernels.triton.refused import load_allowed
from drawlot.kernels.triton.states import scan_scale
from drawlot.kernels.triton.tile_summary import LOG2_E
from drawlot.kernels.triton.values import LAST_ID, MINUS_INF, TILE
from drawlot.kernels.triton.verification.judge import law_of
from drawlot.outputs import RowStatus

_NONFINITE, _EMPTY = tl.constexpr(int(RowStatus.NONFINITE)), tl.constexpr(int(RowStatus.EMPTY_SUPPORT))


@triton.jit
def law_of_whole_row(drawn, summary, row):
    """Status, maximum, mass, cut and path of a row that has been read whole."""
    status = tl.load(drawn.status + row).to(tl.int32)
    row_max = tl.load(summary.floats + row).to(tl.float32)
    mass = tl.exp(tl.load(summary.floats + summary.num_rows + row).to(tl.float32))
    cut_value, cut_id = tl.load(summary.cut_value + row), tl.load(summary.cut_id + row)
    return status, row_max, mass, cut_value, cut_id, tl.load(summary.path + row)


@triton.jit
def put_law_of_tiles(summary, row, maxima, sums, scale):
    """Status, maximum and mass of a row that is not cut; stores what logprobs ask for."""
    row_max, mass = _maximum_and_mass(maxima, sums, scale)
    status = tl.where(mass != mass, _NONFINITE, tl.where(row_max == MINUS_INF, _EMPTY, 0))
    tl.store(summary.floats + row, row_max)
    tl.store(summary.floats + summary.num_rows + row, tl.log(mass))
    tl.store(summary.cut_value + row, float("-inf"))
    tl.store(summary.cut_id + row, -1)
    return status, row_max, mass


@triton.jit
def put_raw_law(rows, states, tiles, summary, state, row, at, exists, maxima, sums):
    """Stores maximum and mass of the raw logits, a refused draft among them."""
    if raw_apart(rows, scan_scale(states, state), row):
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
def first_token(rows, refused, row, row_max, tile):
    """The first token with a row's maximum, in the first tile that has it; anything of a bad row."""
    ids = tl.where(tile < rows.num_tiles, tile, 0) * TILE + tl.arange(0, TILE)
    x = load_allowed(rows, refused, row, ids, ids >= 0)
    return tl.min(tl.where(x == row_max, ids, LAST_ID))


@triton.jit
def finish_draft_law(drafts, judged, row, line, PARTS: tl.constexpr):
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
