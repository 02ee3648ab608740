"""What q leaves of p, max(P p - q, 0)."""

import triton
import triton.language as tl

from drawlot.kernels.triton.tile_summary import LOG2_E
from drawlot.kernels.triton.values import MINUS_INF, load_logits


@triton.jit
def is_kept(x, ids, cut_value, cut_id):
    """Whether tokens have a value, and stand before or at the cut."""
    return ((x > cut_value) | ((x == cut_value) & (ids <= cut_id))) & (x > MINUS_INF)


@triton.jit
def law_of_row(judged, row, line, prefix):
    """All that `leftover_of` has to know of a row of an open request, if it is the P-fold of its law that is looked at.

    line: of q; prefix: P, float32.
    """
    return (
        line,
        tl.load(judged.drafts + row),
        tl.load(judged.q_shifts + row),
        tl.load(judged.q_factors + row),
        tl.load(judged.cut_values + row),
        tl.load(judged.cut_ids + row),
        tl.load(judged.maxima + row),
        tl.load(judged.scales + row),
        tl.load(judged.per_masses + row),
        prefix,
    )


@triton.jit
def with_prefix(law, prefix):
    """The same for another P."""
    return (law[0], law[1], law[2], law[3], law[4], law[5], law[6], law[7], law[8], prefix)


@triton.jit
def load_draft_logits(drafts, law, ids, mask):
    """Of a dense law, at ids, for `leftover_of`; law: see `law_of_row`."""
    logits = tl.zeros(ids.shape, tl.float32)
    if drafts.q.logits is not None:
        # Of a row without a line any will do: a mask by row would be asked for by each load.
        logits = load_logits(drafts.q, tl.maximum(law[0], 0), ids, mask)
    return logits


@triton.jit
def leftover_of(drafts, law, x, draft_logits, ids, refused):
    """Float32: what q leaves of tokens with values x of a row; law: see `law_of_row`; refused: a token whose p is 0."""
    line, draft, shift, factor, cut_value, cut_id, maximum, scale, per_mass, prefix = law
    # In branches: a row has its line or not, and its cut or not.
    if line < 0:
        # Of a row that draws from its own law nobody asks what is left.
        q = tl.where(ids == draft, 1.0, 0.0)
    elif drafts.sparse is not None:
        q = _sparse_law(drafts.sparse, line, ids, shift, factor, tl.zeros_like(x))
    else:
        q = tl.exp2((draft_logits - shift) * LOG2_E) * factor
    weight = tl.exp2((x - maximum) * scale)
    if (cut_value > MINUS_INF) | (refused >= 0):
        weight = tl.where(is_kept(x, ids, cut_value, cut_id) & (ids != refused), weight, 0.0)
    # NaN stays NaN, and the row is known for one of which no law is left.
    return tl.maximum(weight * (per_mass * prefix) - q, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _sparse_law(sparse, line, ids, shift, factor, q):
    """A law of few tokens, at given ids."""
    lowest, highest = tl.min(ids), tl.max(ids)
    slot = 0
    while slot < sparse.width:
        at = line * sparse.width + slot
        token = tl.load(sparse.token_ids + at)
        if (token >= lowest) & (token <= highest):
            x = tl.load(sparse.logits + at).to(tl.float32)
            q = tl.where(ids == token, tl.exp2((x - shift) * LOG2_E) * factor, q)
        slot += 1
    return q
