"""The laws p of rows, out of their summaries: at single tokens, and what q leaves of them over whole rows."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, TILE
from drawlot.kernels.torch.draw import Drawn, Rows
from drawlot.kernels.torch.tiles import IntArray, on_host
from drawlot.kernels.torch.verification.draft_laws import DraftLaws
from drawlot.kernels.torch.verification.steps import Steps


class Residuals(NamedTuple):
    """Rows that may draw from what q leaves of p, max(factor p - q, 0)."""

    rows: IntArray
    """[E]"""
    requests: IntArray
    """[E]"""
    columns: IntArray
    """[E]: which of the request's drafts the row judges"""
    drafts: IntArray
    """[E]"""
    factor: NDArray[np.float64]
    """[E]"""

    @classmethod
    def of(cls, steps: Steps, which: NDArray[np.bool_], masses: NDArray[np.float64]) -> "Residuals":
        """Of the rows of some drafts, bool [R, K]; masses: [R, K + 1], their factors."""
        requests, columns = np.nonzero(which & steps.is_draft & steps.looks_at_q[:, None])
        drafts, factor = steps.drafts[requests, columns], masses[requests, columns]
        return cls(steps.first[requests] + columns, requests, columns, drafts, factor)

    def pick(self, which: NDArray[np.bool_] | slice) -> "Residuals":
        """Some of them."""
        rows, requests, columns, drafts, factor = self
        return Residuals(rows[which], requests[which], columns[which], drafts[which], factor[which])


class TargetLaws(NamedTuple):
    """The processed distributions of N good rows."""

    rows: Rows
    drawn: Drawn
    """Where each row is cut, and the mass of what it keeps"""

    def at(self, index: IntArray, tokens: IntArray) -> NDArray[np.float64]:
        """[E]: p of single tokens of the rows `index`; 0 for the token -1."""
        tile_ids, lanes = np.divmod(np.maximum(tokens, 0), TILE)
        x = self.rows.values.at(index, tile_ids)[np.arange(len(index)), lanes]
        cut = self.drawn.cut.pick(index)
        kept = ((x > cut.value) | ((x == cut.value) & (tokens <= cut.id))) & (x > -np.inf) & (tokens >= 0)
        z = (x.astype(np.float64) - self.rows.row_max[index]) / self.rows.temperature[index]
        return np.where(kept, np.exp(z) / self.drawn.mass[index], 0)

    def weights(self, index: IntArray, factor: NDArray[np.float64]) -> Iterator[tuple[slice, Tensor]]:
        """Few rows at a time of the rows `index` [E]: factor p as float32 or float64 tiles [C, T, 128]."""
        if not len(index):
            return
        rows, cut = self.rows, self.drawn.cut.pick(index)
        device, dtype = rows.values.original.device, torch.float64 if rows.wide else torch.float32

        def column(numbers: NDArray[np.float64] | NDArray[np.float32]) -> Tensor:
            return torch.from_numpy(numbers).to(device, dtype).view(-1, 1, 1)

        # Without a cut all is kept but values of -inf, which weigh nothing.
        some_cut = bool((cut.value > -np.inf).any())
        ids = torch.arange(rows.maxima.shape[1] * TILE if some_cut else 0, device=device).view(-1, TILE)
        for part, values in rows.values.pick(index).chunks(len(index)):
            own = index[part]
            x = values.to(dtype) - column(rows.row_max[own])
            # Not 0, so that -inf / T is not NaN.
            scale = np.maximum(1 / rows.temperature[own], SMALLEST_TEMPERATURE)
            weights = x.mul_(column(scale)).exp_()
            weights *= column(factor[part] / self.drawn.mass[own])
            if some_cut:
                value, last = (torch.from_numpy(side[part]).to(device).view(-1, 1, 1) for side in cut)
                kept = (values > value) | ((values == value) & (ids <= last))
                weights.masked_fill_(~kept, 0)
            yield part, weights

    def residuals(self, which: Residuals, q: DraftLaws) -> Iterator[tuple[slice, Tensor]]:
        """Few rows at a time: their weights as float32 or float64 tiles [C, T, 128]."""
        for part, weights in self.weights(which.rows, which.factor):
            own = which.pick(part)
            q.subtract(weights.flatten(1), own.requests, own.columns, own.drafts)
            yield part, weights

    def residual_masses(self, which: Residuals, q: DraftLaws) -> NDArray[np.float64]:
        """[E]: the sums of the weights."""
        if q.logits is None:
            # All but the draft.
            return which.factor * (1 - self.at(which.rows, which.drafts))
        masses = np.empty(len(which.rows))
        for part, weights in self.residuals(which, q):
            masses[part] = on_host(weights.sum((1, 2)))
        return masses
