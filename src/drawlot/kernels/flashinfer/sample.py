"""A batch by FlashInfer where its conditions hold, else by drawlot's own backend."""

import logging
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

from drawlot.errors import BackendError
from drawlot.kernels.flashinfer.conditions import why_own
from drawlot.kernels.flashinfer.edits import edited, tempered
from drawlot.kernels.flashinfer.logprobs import drawn_logprobs
from drawlot.kernels.inputs import BatchFacts, Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.registry import SampleRows, own_backend
from drawlot.outputs import RowStatus

logger = logging.getLogger("drawlot")
_logged: set[str] = set()
_SMALLEST_TOP_P = 2.0**-126


def for_batch(facts: BatchFacts) -> SampleRows:
    """What samples a batch with these facts."""
    return partial(sample_rows, facts=facts)


def sample_rows(
    logits: Tensor,
    params: RowParams,
    edits: Edits,
    wanted: LogprobsWanted | None,
    *,
    wide: bool = False,
    facts: BatchFacts,
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes.

    Raises:
        BackendError: A CUDA graph is being captured.
    """
    if _captures(logits.device):
        raise BackendError("backend 'flashinfer': a CUDA graph would replay one batch's provider and noise")
    reason = why_own(facts, wanted, wide=wide)
    if reason is not None:
        own = own_backend(logits.device)
        if reason not in _logged:
            _logged.add(reason)
            logger.warning("backend flashinfer: %s draws a batch because %s", own.name, reason)
        return own.sample_rows(logits, params, edits, wanted, wide=wide)
    values = edited(logits, edits)
    row_max = values.amax(1).to(torch.float32)
    status = _status(row_max, row_max if values is logits else logits.amax(1))
    drawn = _draw(tempered(values, row_max, params, facts, own=values is not logits), params)
    del values  # before logprobs take their memory
    tokens = torch.where(status == 0, drawn, -1)
    return SampledRows(tokens, status, wanted and drawn_logprobs(logits, edits.bitmask, tokens, wanted))


def _captures(on: torch.device) -> bool:
    return on.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _draw(rows: Tensor, params: RowParams) -> Tensor:
    """int64 [N], of rows [N, V] before top_k and top_p; anything for a bad row."""
    vocab_size = rows.shape[1]
    top_k = torch.where(params.top_k > 0, params.top_k, vocab_size).to(torch.int32)
    # It keeps tokens with less than p before them: the first one if p is above 0.
    top_p = params.top_p.clamp(min=_SMALLEST_TOP_P).to(torch.float32)
    # In this order top_p counts the mass that top_k leaves, as docs/semantics.md has it.
    draw = import_module("flashinfer").sampling.top_k_top_p_sampling_from_logits
    tokens: Tensor = draw(rows, top_k, top_p, filter_apply_order="top_k_first")
    return tokens.to(torch.int64)


def _status(row_max: Tensor, logits_max: Tensor) -> Tensor:
    """uint8 [N]. A NaN anywhere in a row makes its maximum NaN."""
    finite = (row_max < torch.inf) & (logits_max < torch.inf)
    status = torch.where(row_max == -torch.inf, int(RowStatus.EMPTY_SUPPORT), int(RowStatus.OK))
    return torch.where(finite, status, int(RowStatus.NONFINITE)).to(torch.uint8)
