"""The laws q that drafts were drawn from: at the drafts themselves, and over whole rows."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.drafts import PADDING, Drafts
from drawlot.kernels.torch.tiles import IntArray, on_host
from drawlot.outputs import SparseDraftLogits

_CHUNK = 1 << 20  # elements of a temporary


class DraftLaws(NamedTuple):
    """The laws of the drafts of R requests."""

    logits: Tensor | SparseDraftLogits | None
    """[max_num_reqs, K, >= V]; None: point masses"""
    vocab_size: int
    state_rows: IntArray
    """[R]"""
    shift: NDArray[np.float64]
    """[R, K], exact in float32: the largest of each line of `logits`, or the log of the sum of its exp where given; 0
    where it is not needed"""
    log_sum: NDArray[np.float64]
    """[R, K], what is to be added to make that log of the sum: beside a shift far from 0 it would be lost"""

    @classmethod
    def of(cls, drafts: Drafts, needed: NDArray[np.bool_], vocab_size: int, *, wide: bool) -> "DraftLaws":
        """Reads what is needed, bool [R, K]; wide: float64 sums."""
        laws = cls(
            drafts.logits, vocab_size, on_host(drafts.state_rows), np.zeros(needed.shape), np.zeros(needed.shape)
        )
        requests, columns = np.nonzero(needed)
        if drafts.logits is None or not len(requests):
            return laws
        s, j = laws._lines(requests, columns)
        if drafts.lse is not None:
            shift = drafts.lse[s, j]
        else:
            step = max(1, _CHUNK // vocab_size)
            dtype = torch.float64 if wide else torch.float32
            parts = [laws._logits(s[i : i + step], j[i : i + step]).to(dtype) for i in range(0, len(s), step)]
            shift = torch.cat([part.amax(1) for part in parts])
            sums = [_sum_exp(part, best) for part, best in zip(parts, torch.split(shift, step))]
            laws.log_sum[requests, columns] = np.log(on_host(torch.cat(sums)))
        # A broken line is no law: NaN, and no coin is below that.
        known = on_host(shift)
        laws.shift[requests, columns] = np.where(np.isfinite(known), known, np.nan)
        return laws

    def at(self, requests: IntArray, columns: IntArray, tokens: IntArray) -> NDArray[np.float64]:
        """[E]: q of single tokens; anything for the token -1."""
        if self.logits is None:
            return np.ones(len(tokens))
        s, j = self._lines(requests, columns)
        d = torch.from_numpy(tokens).to(s.device)
        listed = None
        if isinstance(self.logits, SparseDraftLogits):
            found = self.logits.token_ids[s, j] == d.unsqueeze(1)
            at, listed = self.logits.logits[s, j].masked_fill(~found, -torch.inf).amax(1), on_host(found.any(1))
        else:
            at = self.logits[s, j, d.clamp(min=0)]
        with np.errstate(invalid="ignore"):
            z = on_host(at.double()) - self.shift[requests, columns]
            q: NDArray[np.float64] = np.exp(z - self.log_sum[requests, columns])
        return q if listed is None else np.where(listed, q, 0)

    def subtract(self, weights: Tensor, requests: IntArray, columns: IntArray, tokens: IntArray) -> None:
        """Takes q from weights [E, T * 128] in place, leaving what is above 0; tokens: [E], the drafts."""
        each = torch.arange(len(weights), device=weights.device)
        if self.logits is None:
            # q is 1 at the draft, and no weight is larger than 1.
            named = torch.from_numpy(tokens >= 0).to(weights.device)
            weights[each[named], torch.from_numpy(tokens).to(weights.device)[named]] = 0
            return
        s, j = self._lines(requests, columns)
        numbers = self.shift[requests, columns], np.exp(-self.log_sum[requests, columns])
        shift, factor = (torch.from_numpy(x).to(weights.device, weights.dtype).unsqueeze(1) for x in numbers)
        q = (self._logits(s, j).to(weights.dtype) - shift).exp_().mul_(factor)
        if isinstance(self.logits, SparseDraftLogits):
            ids = self.logits.token_ids[s, j]
            # Other cells subtract nothing, from token 0.
            named = (ids >= 0) & (ids < self.vocab_size)
            weights.scatter_add_(1, torch.where(named, ids, 0), torch.where(named, -q, 0))
        else:
            weights[:, : self.vocab_size] -= q
        weights.clamp_(min=0)

    def _lines(self, requests: IntArray, columns: IntArray) -> tuple[Tensor, Tensor]:
        logits = self.logits.logits if isinstance(self.logits, SparseDraftLogits) else self.logits
        assert logits is not None, "point masses have no logits"
        s, j = (torch.from_numpy(index).to(logits.device) for index in (self.state_rows[requests], columns))
        return s, j

    def _logits(self, s: Tensor, j: Tensor) -> Tensor:
        """[E, V], or [E, M] of the listed tokens: -inf for unused cells."""
        if isinstance(self.logits, SparseDraftLogits):
            return self.logits.logits[s, j].masked_fill(self.logits.token_ids[s, j] == PADDING, -torch.inf)
        assert self.logits is not None, "point masses have no logits"
        return self.logits[s, j, : self.vocab_size]


def _sum_exp(logits: Tensor, best: Tensor) -> Tensor:
    """float64 [E], the sums of exp(logits - best) of logits [E, V]; best: [E]."""
    return (logits - best.unsqueeze(1)).exp_().sum(1).double()
