"""The requests of a verified step, on the host."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from drawlot.kernels.drafts import Drafts, Method
from drawlot.kernels.inputs import RowParams
from drawlot.kernels.torch.tiles import IntArray, on_host


@dataclass(frozen=True)
class Steps:
    """R requests with up to K drafts each."""

    first: IntArray
    """[R]: the row 0 of each"""
    drafts: IntArray
    """[R, K]; -1 for one that a constraint refuses or that is no token of the target: p(d) = 0"""
    num_drafts: IntArray
    """[R]: before the first padding and the first bad row"""
    method: IntArray
    """[R], a `Method` each"""
    greedy: NDArray[np.bool_]
    """[R]"""

    @classmethod
    def of(cls, drafts: Drafts, params: RowParams, vocab_size: int) -> "Steps":
        """From what `verify_rows` is given."""
        first, tokens = on_host(drafts.cu_rows)[:-1].astype(np.int64), on_host(drafts.token_ids)
        tokens = np.where((tokens >= 0) & (tokens < vocab_size), tokens, -1)
        greedy = on_host(params.temperature)[first] == 0
        return cls(first, tokens, on_host(drafts.num_drafts()), on_host(drafts.method), greedy)

    @cached_property
    def is_draft(self) -> NDArray[np.bool_]:
        """[R, K]: columns that hold a draft of the request."""
        is_draft: NDArray[np.bool_] = np.arange(self.drafts.shape[1]) < self.num_drafts[:, None]
        return is_draft

    @cached_property
    def rows(self) -> IntArray:
        """[R, K + 1]: the rows of each, and past its last one some row of the batch."""
        return self.first[:, None] + np.minimum(np.arange(self.drafts.shape[1] + 1), self.num_drafts[:, None])

    @property
    def compares(self) -> NDArray[np.bool_]:
        """[R]: a draft is accepted if it is the token that its row draws; no coin is tossed."""
        compares: NDArray[np.bool_] = (self.method == Method.COUPLED) | (
            self.greedy & (self.method != Method.SYNTHETIC)
        )
        return compares

    @cached_property
    def tosses(self) -> NDArray[np.bool_]:
        """[R]: coins decide over drafts of the request."""
        return (self.num_drafts > 0) & ~self.compares

    @cached_property
    def ordinary(self) -> NDArray[np.bool_]:
        """[R]: the rows draw as ordinary sampling does at their positions."""
        ordinary: NDArray[np.bool_] = (self.method == Method.COUPLED) | (self.num_drafts == 0)
        return ordinary

    @cached_property
    def looks_at_q(self) -> NDArray[np.bool_]:
        """[R]: the laws of the drafts decide, and what they leave is drawn from."""
        looks_at_q: NDArray[np.bool_] = ~self.compares & (self.method != Method.SYNTHETIC)
        return looks_at_q

    def before_bad_rows(self, status: NDArray[np.uint8]) -> "Steps":
        """The steps cut at their first bad row; status: [N]."""
        bad = (status[self.rows[:, :-1]] != 0) & self.is_draft
        first_bad = np.where(bad.any(1), bad.argmax(1), self.num_drafts)
        return replace(self, num_drafts=first_bad)
