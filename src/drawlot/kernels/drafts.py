"""What verification is given beside the rows, and what it returns. R: requests, K: drafts of a request at most.

A request with n drafts owns n + 1 consecutive rows of the N rows of logits: row j judges draft j, and the row after the
last draft draws the token that follows it. In the rows' `RowParams` position is the step's anchor (the position of its
row 0) and row is j.
"""

from enum import IntEnum
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from drawlot.kernels.inputs import Edits
from drawlot.outputs import SparseDraftLogits

PADDING = -1
"""In the place of a draft: there is none, and none follows."""


T = TypeVar("T", int, Tensor)


class Method(IntEnum):
    """How drafts are verified: `docs/semantics.md`, section 4."""

    STANDARD = 0
    BLOCK = 1
    COUPLED = 2
    SYNTHETIC = 3


def refused(token_ids: T) -> T:
    """In the place of a draft: this token was drafted, but a constraint refuses it. Its own inverse."""
    return -2 - token_ids


class Drafts(NamedTuple):
    """The drafts of a step and the laws they were drawn from."""

    token_ids: Tensor
    """int64 [R, K]: a draft, PADDING, or a draft that is `refused`"""
    cu_rows: Tensor
    """int [R + 1]: the rows of request r are cu[r] .. cu[r + 1]"""
    state_rows: Tensor
    """int64 [R], >= 0: the line of `logits` and `lse` that is the request's"""
    method: Tensor
    """int64 [R], a `Method` each"""
    logits: Tensor | SparseDraftLogits | None = None
    """[max_num_reqs, K, >= V]: draft j was drawn from the softmax of line [s, j]. None: a point mass at the draft"""
    lse: Tensor | None = None
    """[max_num_reqs, K]: the log of the sum of exp over each line of `logits`; None: not known"""
    rates: Tensor | None = None
    """float64 [K]: with which probability `synthetic` accepts draft j if it accepted those before"""

    def num_drafts(self) -> Tensor:
        """int64 [R]: the drafts of each request before the first padding."""
        columns = torch.arange(self.token_ids.shape[1], device=self.token_ids.device)
        in_rows = columns < (self.cu_rows.diff() - 1).unsqueeze(1)
        return ((self.token_ids != PADDING) & in_rows).to(torch.int64).cumprod(1).sum(1)

    def masked_in(self, edits: Edits, vocab_size: int) -> Edits:
        """The edits with every refused draft masked in the row that judges it: it counts as p = 0."""
        ids = refused(self.token_ids)
        columns = torch.arange(ids.shape[1], device=ids.device)
        named = (ids >= 0) & (ids < vocab_size) & (columns < self.num_drafts().unsqueeze(1))
        request, column = named.nonzero(as_tuple=True)
        if not len(request):
            return edits
        rows, token_ids = self.cu_rows[request] + column, ids[request, column]
        if edits.masked is not None:
            rows, token_ids = torch.cat((edits.masked[0], rows)), torch.cat((edits.masked[1], token_ids))
        return edits._replace(masked=(rows, token_ids))

    def pick(self, requests: slice) -> "Drafts":
        """Those of consecutive requests."""
        cu_rows = self.cu_rows[requests.start : requests.stop + 1]
        return self._replace(
            token_ids=self.token_ids[requests],
            cu_rows=cu_rows - cu_rows[0],
            state_rows=self.state_rows[requests],
            method=self.method[requests],
        )


class VerifiedRows(NamedTuple):
    """What a backend's `verify_rows` returns."""

    sampled_token_ids: Tensor
    """int64 [R, K + 1], -1 past num_sampled"""
    num_sampled: Tensor
    """int32 [R]"""
    num_accepted: Tensor
    """int32 [R]"""
    status: Tensor
    """uint8 [N], flags of RowStatus"""
    logprobs: tuple[Tensor, Tensor, Tensor] | None
    """Of the rows' emitted tokens: ids int64 [N, C], logprobs float32 [N, C], ranks int64 [N]"""
    margin: Tensor | None = None
    """float64 [R], the reference's alone: the smallest relative margin by which the request's decisions were made"""


class Law(NamedTuple):
    """By what `verify_rows` decides, read out of the functions that it calls."""

    accept: Tensor
    """float64 [R, K]: what the coin of draft j has to stay below (of block: for the first j + 1 drafts). NaN where no
    coin is tossed: past the drafts, and where draft j is accepted if the token that row j draws equals it"""
    weights: Tensor
    """float64 [N, V]: what row j draws from, up to a factor, if drafts before it are accepted and draft j is not; zeros
    for rows past the drafts and for bad rows"""
