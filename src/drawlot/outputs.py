"""The small named tuples that cross rooms. N: rows of logits, R: requests, V: vocabulary, K: drafts, C: columns.

Unless a field says otherwise its tensor lies on the device of the logits and belongs to the caller.
"""

from collections.abc import Sequence
from enum import IntFlag
from typing import NamedTuple

from torch import Tensor


class RowStatus(IntFlag):
    """Why a row has no token. 0 is a good row; flags may be combined."""

    OK = 0
    NONFINITE = 1
    """The row holds NaN or +inf, before or after edits."""
    EMPTY_SUPPORT = 2
    """Nothing is left to draw: every id is masked or has the logit -inf."""
    SKIPPED = 4
    """The row maps to no request (-1): padding of a captured batch."""


class LogprobsTensors(NamedTuple):
    """Logprobs of the drawn token and of other tokens, one line a row.

    Column 0 is the drawn token; then the top tokens, best first, or the request's `logprob_token_ids` in their order.
    Unused cells hold id -1 and -inf.
    """

    logprob_token_ids: Tensor
    """int64 [N, C]"""
    logprobs: Tensor
    """float32 [N, C]"""
    selected_token_ranks: Tensor
    """int64 [N]: 1 + the number of tokens strictly before the drawn one in the (value desc, id asc) order."""
    cu_num_generated_tokens: Tensor | None = None
    """int32 [R + 1]: the rows of request r are cu[r] .. cu[r + 1]; None where every request has one row."""


class SamplerOutput(NamedTuple):
    """What one call of the sampler draws."""

    token_ids: Tensor
    """int64 [N], -1 for a bad row"""
    logprobs: LogprobsTensors | None
    """None where no row asked for logprobs"""
    status: Tensor
    """uint8 [N], flags of `RowStatus`"""


class LogitsRows(NamedTuple):
    """Which request and position each row of logits belongs to.

    A request without drafts owns one row; one with K drafts owns K + 1 consecutive rows.
    """

    idx_mapping: Tensor
    """int64 [R]: the state row of each request of the batch"""
    expanded_idx_mapping: Tensor
    """int64 [N]: the state row of each row of logits; -1 marks a row to skip"""
    local_positions: Tensor
    """int64 [N]: index of the row within its request's step, 0 for the first"""
    positions: Tensor
    """int64 [N]: index, in prompt + output, of the token that the row draws"""
    input_ids: Tensor
    """int64 [N]: the token fed to the model at this row; at local position j >= 1 it is draft j - 1"""
    cu_num_logits: Tensor
    """int32 [R + 1]: the rows of request r are cu[r] .. cu[r + 1]"""
    state_rows: Sequence[int] | None = None
    """expanded_idx_mapping on the host; without it the flashinfer backend waits for the device to read it"""


class SparseDraftLogits(NamedTuple):
    """Draft logits of few tokens: the laws of a drafter that gives all other tokens the probability 0."""

    token_ids: Tensor
    """int64 [max_num_reqs, K, M], distinct in a line, -1 unused; line [s, j]: draft j of the request in state row s"""
    logits: Tensor
    """float32, bfloat16 or float16 [max_num_reqs, K, M]"""


class VerifierOutput(NamedTuple):
    """What one verification of drafts emits: accepted drafts, then one token more."""

    sampled_token_ids: Tensor
    """int64 [R, K + 1], contiguous from column 0, -1 past num_sampled"""
    num_sampled: Tensor
    """int32 [R]: num_accepted + 1, or num_accepted where the row that would emit is bad"""
    num_accepted: Tensor
    """int32 [R]"""
    logprobs: LogprobsTensors | None
    """Of all N rows, unused past the num_sampled of each request; None where no row asked for logprobs"""
    status: Tensor
    """uint8 [N], flags of `RowStatus`"""
