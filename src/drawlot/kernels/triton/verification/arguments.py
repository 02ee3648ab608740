"""What the kernels of verification are given. R: requests, K: drafts of a request at most, N: rows, T: tiles."""

from typing import Any, NamedTuple

from torch import Tensor


class SparseLaws(NamedTuple):
    """Draft logits of few tokens a line; lines as in `StepDrafts.q`."""

    token_ids: Tensor
    """int64 [lines, M], -1 unused"""
    logits: Tensor
    """[lines, M]"""
    width: int
    """M"""


class StepDrafts(NamedTuple):
    """The drafts of a step, as the caller gave them."""

    token_ids: Tensor
    """int64 [R, K], as in `kernels.drafts.Drafts`"""
    cu_rows: Tensor
    """int32 [R + 1]"""
    state_rows: Tensor
    """int64 [R], -1: the request is skipped"""
    num_reqs: int
    num_rows: int
    q: Any
    """`Rows`, packed: the dense laws that drafts were drawn from, line [s * lines + j] of state row s and draft j, or
    without logits"""
    sparse: SparseLaws | None
    """Laws of few tokens instead; neither: point masses"""
    lines: int
    """Lines a state row"""
    lse: Tensor | None
    """float32 [max_num_reqs, K]"""


class Step(NamedTuple):
    """Requests and their drafts."""

    states: Any
    """`States` of the rows, packed: positions are those of ordinary draws"""
    drafts: StepDrafts


class Methods(NamedTuple):
    """How requests are verified."""

    of_states: Tensor
    """int64 [S], a `Method` each"""
    rates: Tensor | None
    """float64 [K], of `synthetic`"""


class Judged(NamedTuple):
    """Scratch: what the rows judge and by which law, one entry a row."""

    drafts: Tensor
    """int32 [N]: the draft; -1 where there is none, or one with p = 0"""
    refused: Tensor
    """int32 [N]: a draft that a constraint refuses, masked in the row; else -1"""
    masks_one: Tensor
    """int32 [N]: 1 where one is"""
    touched: Tensor
    """int32 [N, words]: its bit; all others are 0"""
    words: int
    lines: Tensor
    """int64 [N]: the line of the law that the draft was drawn from; -1: it is a point mass or not looked at"""
    undrawn: Tensor
    """int32 [N]: 1 where the row's token is not what ordinary sampling would draw, so that it is only cut"""
    draft_values: Tensor
    """float32 [N]: the draft's value in the row"""
    q_at_draft: Tensor
    """float64 [N]"""
    q_shifts: Tensor
    """float32 [N]: q = exp(logit - shift) factor; NaN for a line that is no law"""
    q_factors: Tensor
    """float32 [N]"""
    q_maxima: Tensor
    """float32 [N, parts]: of parts of a line, where its log-sum-exp is not given"""
    q_sums: Tensor
    """float32 [N, parts]: of exp(logit - the part's maximum)"""
    parts: int
    maxima: Tensor
    """float32 [N]: p = exp2((value - maximum) scale) per_mass of the tokens up to the cut; this and all to `cut_ids` of
    rows of open requests alone"""
    scales: Tensor
    """float32 [N]"""
    per_masses: Tensor
    """float32 [N]"""
    cut_values: Tensor
    """float32 [N]"""
    cut_ids: Tensor
    """int32 [N]"""
    tokens: Tensor
    """int32 [N]: what the row draws, all drafts before it being accepted; of an open request with P = 1, and of the one
    row alone of which that can be asked; -1: nothing, -2: not yet"""
    hits: Tensor
    """int32 [N]: whether the draft is accepted, if all before it are, by greedy rows, `standard` and `synthetic`"""
    ratios: Tensor
    """float64 [N + K]: p / q of the draft, see `acceptance.coded_ratio`; K, so that none need be masked"""
    coins: Tensor
    """float64 [N + K]"""


class Leftovers(NamedTuple):
    """Scratch: what is left of rows that `block` has to compare, and what their races need."""

    num_taken: Tensor
    """int32 [R]: blocks that programs have taken to weigh, of each group of requests"""
    masses: Tensor
    """float32 [N, width]: sums of max(P p - q, 0) over the tiles of a row; -1 until they are known"""
    noises: Tensor
    """[N, width]: of the tiles, of rows that may draw by them"""
    width: int
    """Power of two >= number of tiles"""


class Verdicts(NamedTuple):
    """Scratch: what is known of the requests."""

    counts: Tensor
    """int32 [1 + 2 R]: how far they are, see `counts`"""
    num_drafts: Tensor
    """int32 [R]: of an open request; -1: it is not open"""


class Verified(NamedTuple):
    """The outputs."""

    token_ids: Tensor
    """int64 [R, K + 1]"""
    num_sampled: Tensor
    """int32 [R]"""
    num_accepted: Tensor
    """int32 [R]"""
    status: Tensor
    """uint8 [N]"""
    emitted: Tensor
    """int64 [N]: the token of each row that emits one, else -1"""
