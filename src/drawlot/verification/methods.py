"""By which method the drafts of each request are verified, in permanent rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.drafts import Method
from drawlot.sampling import Sampler

METHODS = {method.name.lower(): method for method in Method}


class MethodStates:
    """A request has the default method until it is given another; its row forgets with the request."""

    def __init__(self, sampler: Sampler, default: str, rates: Sequence[float] | None, num_drafts: int) -> None:
        self._sampler = sampler
        self.rates = None if rates is None else _conditional(rates, num_drafts).to(sampler.device)
        self._default = self._checked(default)
        self._of_rows = torch.full((sampler.max_num_reqs,), self._default, device=sampler.device)
        self._own: dict[int, int] = {}
        sampler.on_remove(self._forget)

    def set_method(self, req_idx: int, method: str) -> None:
        """Give a live request a method."""
        if not self._sampler.owns(req_idx):
            raise InputError(f"req_idx: no request owns row {req_idx}")
        self._own[req_idx] = self._checked(method)
        self._of_rows[req_idx] = self._own[req_idx]

    def in_use(self) -> set[int]:
        """The `Method`s that requests may have now."""
        return {self._default, *self._own.values()}

    def gather(self, state_rows: Tensor) -> Tensor:
        """int64 [R], a `Method` each, of state rows [R] >= 0."""
        return self._of_rows[state_rows]

    def _checked(self, method: str) -> int:
        if method not in METHODS:
            raise ParameterError("method", f"must be one of {', '.join(METHODS)}", method)
        if METHODS[method] == Method.SYNTHETIC and self.rates is None:
            raise ParameterError("synthetic_rates", "are needed with the method synthetic", None)
        return int(METHODS[method])

    def _forget(self, req_idx: int) -> None:
        if self._own.pop(req_idx, None) is not None:
            self._of_rows[req_idx] = self._default


def _conditional(rates: Sequence[float], num_drafts: int) -> Tensor:
    """float64 [K]: from the rates at which drafts up to each are accepted, the rate of each given those before it."""
    if len(rates) != num_drafts:
        raise ParameterError("synthetic_rates", f"must hold {num_drafts} rates, one a draft", list(rates))
    before = [1.0, *rates]
    for rate, last in zip(rates, before):
        if not 0 <= rate <= last:
            raise ParameterError("synthetic_rates", "must lie in [0, 1] and never rise", list(rates))
    return torch.tensor([r / last if last > 0 else 0.0 for r, last in zip(rates, before)], dtype=torch.float64)
