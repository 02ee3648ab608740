"""Which logprobs each row wants, and logprobs of given tokens without a draw (prompts, scoring)."""

import numpy as np
import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.inputs import LogprobsWanted
from drawlot.kernels.registry import get_backend
from drawlot.outputs import LogprobsTensors
from drawlot.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams

MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")


class LogprobStates:
    """How many top tokens, or which ids, each request wants; a step in which none does costs nothing."""

    def __init__(self, vocab_size: int, device: torch.device, mode: str) -> None:
        self.mode = mode
        self.vocab_size = vocab_size
        self._num_top: dict[int, int] = {}
        self._token_ids: dict[int, Tensor] = {}
        self._device = device

    def add_request(self, req_idx: int, params: SamplingParams) -> None:
        """Keep what the request wants, if anything."""
        if params.num_logprobs is None:
            return
        self._num_top[req_idx], custom = columns_of(params, self.vocab_size)
        if custom:
            self._token_ids[req_idx] = torch.tensor(custom, device=self._device)

    def remove_request(self, req_idx: int) -> None:
        """Forget a request."""
        self._num_top.pop(req_idx, None)
        self._token_ids.pop(req_idx, None)

    def wanted(self, expanded_idx_mapping: Tensor) -> LogprobsWanted | None:
        """What the rows of a step want; None if no request wants any."""
        if not self._num_top:
            return None
        requests = expanded_idx_mapping.tolist()
        tops = [self._num_top.get(req_idx, -1) for req_idx in requests]
        if max(tops, default=-1) < 0:
            return None
        num_top = torch.tensor(tops, device=self._device)
        custom = [self._token_ids.get(req_idx) for req_idx in requests]
        longest = max((len(ids) for ids in custom if ids is not None), default=0)
        token_ids = torch.full((len(requests), longest), -1, dtype=torch.int64, device=self._device)
        for i, ids in enumerate(custom):
            if ids is not None:
                token_ids[i, : len(ids)] = ids
        return LogprobsWanted(self.mode, num_top >= 0, num_top.clamp(min=0), token_ids, max(tops))


def check_mode(mode: str) -> None:
    """Check the name of a mode.

    Raises:
        ParameterError: There is no such mode.
    """
    if mode not in MODES:
        raise ParameterError("logprobs_mode", f"must be one of {', '.join(MODES)}", mode)


def all_rows_want(
    params: SamplingParams, n: int, vocab_size: int, device: torch.device, mode: str
) -> LogprobsWanted | None:
    """What n rows with the same parameters want."""
    if params.num_logprobs is None:
        return None
    top, custom = columns_of(params, vocab_size)
    arrays = np.full(n, True), np.full(n, top), np.array([custom] * n, np.int64).reshape(n, len(custom))
    all_rows, num_top, token_ids = (torch.from_numpy(array).to(device) for array in arrays)
    return LogprobsWanted(mode, all_rows, num_top, token_ids, top)


def columns_of(params: SamplingParams, vocab_size: int) -> tuple[int, tuple[int, ...]]:
    """How many top tokens a request that wants logprobs gets, or which ids instead."""
    if params.logprob_token_ids is not None:
        return 0, tuple(params.logprob_token_ids)
    wanted = params.num_logprobs or 0
    return vocab_size if wanted == -1 else min(wanted, vocab_size), ()


def gather_logprobs(
    logits: Tensor, token_ids: Tensor, num_logprobs: int, logprobs_mode: str = "raw_logprobs", backend: str = "auto"
) -> LogprobsTensors:
    """Logprobs of given tokens and of the top tokens of each row, nothing drawn: for prompts.

    Args:
        logits: [N, V], any float dtype.
        token_ids: int64 [N], in [0, V).
        num_logprobs: Top tokens a row; -1: all V.
        logprobs_mode: Nothing processes a prompt's rows, so a processed mode gives its raw counterpart.
        backend: As for `sample`.

    Returns:
        C = 1 + num_logprobs columns.
    """
    _check_ids(token_ids, logits.shape[1])
    n, vocab_size = logits.shape
    num_top = vocab_size if num_logprobs == -1 else min(num_logprobs, vocab_size)
    return _given(logits, token_ids, num_top, token_ids.new_empty((n, 0)), logprobs_mode, backend)


def token_logprobs(logits: Tensor, token_ids: Tensor, backend: str = "auto") -> Tensor:
    """float32 [N, C]: raw log-softmax of logits [N, V] at the ids int64 [N, C], C <= 128; for scoring."""
    _check_ids(token_ids, logits.shape[1])
    if token_ids.shape[1] > MAX_LOGPROB_TOKEN_IDS:
        raise InputError(f"token_ids: at most {MAX_LOGPROB_TOKEN_IDS} columns; got {token_ids.shape[1]}")
    return _given(logits, token_ids[:, 0].contiguous(), 0, token_ids, "raw_logprobs", backend).logprobs[:, 1:]


def _given(logits: Tensor, token_ids: Tensor, num_top: int, custom: Tensor, mode: str, backend: str) -> LogprobsTensors:
    raw_mode = "raw_logits" if mode.endswith("logits") else "raw_logprobs"
    all_rows = torch.ones(len(token_ids), dtype=torch.bool, device=logits.device)
    wanted = LogprobsWanted(raw_mode, all_rows, torch.full_like(token_ids, num_top), custom, num_top)
    return LogprobsTensors(*get_backend(backend, logits.device).logprobs_of(logits, token_ids, wanted))


def _check_ids(token_ids: Tensor, vocab_size: int) -> None:
    if token_ids.numel() and not 0 <= int(token_ids.min()) <= int(token_ids.max()) < vocab_size:
        raise InputError(f"token_ids: must be in [0, {vocab_size}), the width of the logits")
