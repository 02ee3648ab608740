"""The order of the stages, declared here and nowhere else: other backends may fuse them, never reorder them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.reference.edits import grammar_masked, row_values
from drawlot.kernels.reference.filters import in_order, kept_set
from drawlot.kernels.reference.logprobs import row_logprobs
from drawlot.kernels.reference.race import Key, race
from drawlot.outputs import RowStatus
from drawlot.rng import Stream


def sample_rows(
    logits: Tensor, params: RowParams, edits: Edits, wanted: LogprobsWanted | None, *, wide: bool = False
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    device = logits.device
    logits, edits = logits.detach().cpu(), _on_cpu(edits)
    params = RowParams(*(field.cpu() for field in params))
    tokens, status, margins, lines = [], [], [], []
    for i, row in enumerate(logits):
        x = row.float().numpy()
        token, flags, margin = _sample_row(x, i, params, edits, wide)
        tokens.append(token)
        status.append(flags)
        margins.append(margin)
        if wanted is not None:
            raw = grammar_masked(x, i, edits)
            values = row_values(x, i, edits) if flags == RowStatus.OK else raw
            lines.append(row_logprobs(raw, values, i, token, params, wanted))
    logprobs = None
    if wanted is not None:
        ids, values_, ranks = zip(*lines) if lines else ((), (), ())
        logprobs = (
            _stacked(ids, wanted.columns, torch.int64, device),
            _stacked(values_, wanted.columns, torch.float32, device),
            torch.tensor(ranks, dtype=torch.int64, device=device),
        )
    return SampledRows(
        torch.tensor(tokens, dtype=torch.int64, device=device),
        torch.tensor(status, dtype=torch.uint8, device=device),
        logprobs,
        torch.tensor(margins, dtype=torch.float64, device=device),
    )


def _sample_row(
    logits: NDArray[np.float32], i: int, params: RowParams, edits: Edits, wide: bool
) -> tuple[int, RowStatus, float]:
    """Token, status and margin of row i."""
    values = row_values(logits, i, edits)  # stages 1 and 2
    for x in (logits, values):
        if np.isnan(x).any() or (x == np.inf).any():
            return -1, RowStatus.NONFINITE, np.inf
    if not (values > -np.inf).any():
        return -1, RowStatus.EMPTY_SUPPORT, np.inf
    temperature, top_k, top_p, min_p, seed, position, choice, row = (field[i].item() for field in params)
    if temperature == 0:
        return int(in_order(values)[0]), RowStatus.OK, np.inf
    kept = kept_set(values, temperature, int(top_k), top_p, min_p)  # stages 3 and 4
    key = Key(int(seed), int(position), int(choice), int(row))
    streams = (Stream.TARGET_TILE, Stream.TARGET_TOKEN)
    token, margin = race(kept.ids, kept.z, key, streams, wide)  # stage 5 and the draw
    return token, RowStatus.OK, min(margin, kept.margin)


def _on_cpu(edits: Edits) -> Edits:
    def moved(edit: object) -> object:
        if isinstance(edit, Tensor):
            return edit.cpu()
        if isinstance(edit, tuple):
            parts = [part.cpu() for part in edit]
            return type(edit)(*parts) if hasattr(edit, "_fields") else tuple(parts)
        return edit

    return Edits(*(moved(edit) for edit in edits))  # type: ignore[arg-type]


def _stacked(lines: tuple[NDArray[np.generic], ...], columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[N, columns], N = 0 included."""
    return torch.from_numpy(np.reshape(lines, (len(lines), columns))).to(device, dtype)
