"""What q leaves of p, max(P p - q, 0)."""

import triton
import triton.language as tl

from drawlot.kernels.triton.scan import LOG2_E
from drawlot.kernels.triton.values import MINUS_INF, load_logits


@triton.jit
def is_kept(x, ids, cut_value, cut_id):
    """Whether tokens have a value, and stand before or at the cut."""
    return ((x > cut_value) | ((x == cut_value) & (ids <= cut_id))) & (x > MINUS_INF)


@triton.jit
def law_of_row(judged, row):
    """All that `weights_of` has to know of a row of an open request."""
    return (
        tl.load(judged.lines + row),
        tl.load(judged.drafts + row),
        tl.load(judged.q_shifts + row),
        tl.load(judged.q_factors + row),
        tl.load(judged.cut_values + row),
        tl.load(judged.cut_ids + row),
        tl.load(judged.maxima + row),
        tl.load(judged.scales + row),
        tl.load(judged.per_masses + row),
        tl.load(judged.prefixes + row).to(tl.float32),
    )


@triton.jit
def weights_of(drafts, law, x, ids, mask):
    """Float32 p of tokens with values x of a row, and what q leaves of it; law: see `law_of_row`."""
    line, draft, shift, factor, cut_value, cut_id, maximum, scale, per_mass, prefix = law
    # Of a row that draws from its own law nobody asks what is left.
    q = tl.where(ids == draft, 1.0, 0.0)
    if drafts.sparse is not None:
        if line >= 0:
            q = _sparse_law(drafts.sparse, line, ids, shift, factor, tl.zeros_like(x))
    elif drafts.q.logits is not None:
        # Triton's interpreter makes no mask of a single flag.
        logits = load_logits(drafts.q, line, ids, mask & (tl.zeros_like(ids) <= line))
        q = tl.where(line >= 0, tl.exp2((logits - shift) * LOG2_E) * factor, q)
    p = tl.where(is_kept(x, ids, cut_value, cut_id), tl.exp2((x - maximum) * scale) * per_mass, 0.0)
    left = p * prefix - q
    # NaN stays NaN, and the row is known for one of which no law is left.
    return p, tl.where(left <= 0, 0.0, left)


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
