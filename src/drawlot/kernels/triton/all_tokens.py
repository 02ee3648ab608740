"""More top tokens than a list holds: whole rows put in order. Only for who asks for so many, up to the vocabulary."""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from drawlot.kernels.inputs import SMALLEST_TEMPERATURE, LogprobsWanted
from drawlot.kernels.triton.arguments import Columns, Drawn, Rows, States, Summary
from drawlot.kernels.triton.launch import Launch, pack
from drawlot.kernels.triton.values import ids_of, load_raw, load_values
from drawlot.kernels.triton.workspace import NUM_WARPS, ROOM, SCAN_TILES

_LARGEST = torch.finfo(torch.float32).max


def put_many_top_tokens(
    rows: Rows, states: States, wanted: LogprobsWanted, drawn: Drawn, summary: Summary, columns: Columns
) -> None:
    """Sets the top tokens of rows that want more than a list holds; float64 [N, V] is written."""
    if wanted.max_top <= ROOM:
        return
    n = len(drawn.token_ids)
    x = _values(rows, states, n, raw=wanted.mode.startswith("raw"))
    ids = torch.arange(rows.vocab_size, device=x.device)
    if wanted.mode.startswith("raw"):
        maximum, log_mass = summary.floats[2:4, :n]
        temperature = torch.ones_like(maximum)
        kept = x > -torch.inf
    else:
        maximum, log_mass = summary.floats[:2, :n]
        temperature = states.floats[0, states.index.clamp(min=0)]
        temperature = torch.where(temperature == 0, 1.0, temperature.clamp(min=SMALLEST_TEMPERATURE))
        cut_value, cut_id = summary.cut_value[:n, None], summary.cut_id[:n, None]
        kept = (x > -torch.inf) & ((x > cut_value) | ((x == cut_value) & (ids <= cut_id)))
    if wanted.mode.endswith("logits"):
        result = (x.double() / temperature.unsqueeze(1)).clamp(-_LARGEST, _LARGEST)
    else:
        result = (x.double() - maximum.unsqueeze(1)) / temperature.unsqueeze(1) - log_mass.unsqueeze(1)
    order = torch.where(kept, x, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, : wanted.max_top]
    column = torch.arange(order.shape[1], device=x.device)
    use = kept.gather(1, order) & (column < wanted.num_top.unsqueeze(1)) & (wanted.num_top > ROOM).unsqueeze(1)
    use &= (wanted.wanted & (drawn.token_ids >= 0)).unsqueeze(1)
    top = slice(1, 1 + order.shape[1])
    columns.ids[:, top] = torch.where(use, order, columns.ids[:, top])
    columns.logprobs[:, top] = torch.where(use, result.gather(1, order).float(), columns.logprobs[:, top])


def _values(rows: Rows, states: States, n: int, *, raw: bool) -> Tensor:
    """float32 [N, V]: the logits under the bitmask, or the values of stage 2; undefined in skipped rows."""
    values = torch.empty((n, rows.vocab_size), dtype=torch.float32, device=rows.logits.device)
    num_blocks = triton.cdiv(rows.num_tiles, SCAN_TILES)
    how: dict[str, Any] = {"num_warps": NUM_WARPS, "enable_fp_fusion": False}
    launch = Launch(values_kernel, lambda n, _: n * num_blocks, values, num_blocks, RAW=raw, TILES=SCAN_TILES, **how)
    launch(n, pack(rows), pack(states))
    return values


@triton.jit
def values_kernel(rows, states, values, num_blocks, RAW: tl.constexpr, TILES: tl.constexpr):
    """Program: TILES tiles of one row."""
    row = (tl.program_id(0) // num_blocks).to(tl.int64)
    if tl.load(states.index + row) >= 0:
        tile = (tl.program_id(0) % num_blocks) * TILES + tl.arange(0, TILES)
        ids = ids_of(tile)
        exists = (tile < rows.num_tiles)[:, None]
        if RAW:
            x = load_raw(rows, row, ids, exists)
        else:
            x = load_values(rows, row, ids, exists)
        tl.store(values + row * rows.vocab_size + ids, x + 0.0, mask=exists & (ids < rows.vocab_size))
