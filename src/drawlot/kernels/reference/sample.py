"""The order of the stages, declared here and nowhere else: other backends may fuse them, never reorder them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.reference.edits import grammar_masked, row_values
from drawlot.kernels.reference.filters import Kept, kept_set
from drawlot.kernels.reference.logprobs import Line, row_logprobs
from drawlot.kernels.reference.race import Key, race
from drawlot.outputs import RowStatus
from drawlot.rng import TARGET, Stream


def sample_rows(
    logits: Tensor,
    params: RowParams,
    edits: Edits,
    wanted: LogprobsWanted | None,
    *,
    wide: bool = False,
    streams: tuple[Stream, Stream] = TARGET,
) -> SampledRows:
    """Draws one token for each row; see `RowParams`, `Edits`, `LogprobsWanted` and `SampledRows` for shapes."""
    device = logits.device
    logits, params, edits = on_cpu(logits, params, edits)
    tokens, status, margins, lines = [], [], [], []
    for i, row in enumerate(logits):
        x = row.float().numpy()
        token, margin = -1, np.inf
        flags, kept = processed(x, i, params, edits)
        if kept is not None:
            token, margin = race(kept.ids, kept.z, key_of(params, i), streams, wide)
            margin = min(margin, kept.margin)
        tokens.append(token)
        status.append(flags)
        margins.append(margin)
        if wanted is not None:
            lines.append(logprobs_line(x, i, token, params, edits, wanted))
    return SampledRows(
        torch.tensor(tokens, dtype=torch.int64, device=device),
        torch.tensor(status, dtype=torch.uint8, device=device),
        wanted and stacked(lines, wanted.columns, device),
        torch.tensor(margins, dtype=torch.float64, device=device),
    )


def processed(logits: NDArray[np.float32], i: int, params: RowParams, edits: Edits) -> tuple[RowStatus, Kept | None]:
    """Status of row i, and what it may draw: its law is the softmax of z. None for a bad row."""
    values = row_values(logits, i, edits)  # stages 1 and 2
    for x in (logits, values):
        if np.isnan(x).any() or (x == np.inf).any():
            return RowStatus.NONFINITE, None
    if not (values > -np.inf).any():
        return RowStatus.EMPTY_SUPPORT, None
    temperature, top_k, top_p, min_p = (field[i].item() for field in params[:4])
    return RowStatus.OK, kept_set(values, temperature, int(top_k), top_p, min_p)  # stages 3 to 5


def key_of(params: RowParams, i: int) -> Key:
    """What row i's noise is a function of."""
    seed, position, choice, row = (int(field[i]) for field in params[4:])
    return Key(seed, position, choice, row)


def logprobs_line(
    logits: NDArray[np.float32], i: int, token: int, params: RowParams, edits: Edits, wanted: LogprobsWanted
) -> Line:
    """Row i's line of logprobs; token -1: unused."""
    raw = grammar_masked(logits, i, edits)
    values = row_values(logits, i, edits) if token >= 0 else raw
    return row_logprobs(raw, values, i, token, params, wanted)


def on_cpu(logits: Tensor, params: RowParams, edits: Edits) -> tuple[Tensor, RowParams, Edits]:
    """What a call is given, where NumPy can read it."""

    def moved(edit: object) -> object:
        if isinstance(edit, Tensor):
            return edit.cpu()
        if isinstance(edit, tuple):
            parts = [part.cpu() for part in edit]
            return type(edit)(*parts) if hasattr(edit, "_fields") else tuple(parts)
        return edit

    own_edits = Edits(*(moved(edit) for edit in edits))  # type: ignore[arg-type]
    return logits.detach().cpu(), RowParams(*(field.cpu() for field in params)), own_edits


def stacked(lines: list[Line], columns: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The lines' ids [N, C], logprobs [N, C] and ranks [N]; N = 0 included."""
    ids, logprobs, ranks = zip(*lines) if lines else ((), (), ())
    shape = len(lines), columns
    return (
        torch.from_numpy(np.reshape(ids, shape)).to(device, torch.int64),
        torch.from_numpy(np.reshape(logprobs, shape)).to(device, torch.float32),
        torch.tensor(ranks, dtype=torch.int64, device=device),
    )
