"""What `drawlot.engine.paged_attention` computes, in plain torch: quick enough on a CPU for whole engines."""

import torch

from drawlot.engine.attention import _attend, _attend_in_steps, causal_mask


def _rows_of_tables(tables, table_width, lengths):
    width = int(table_width)
    # What stands in the table of a padding row is anything.
    return tables[: len(lengths) * width].view(len(lengths), width) * (lengths > 0).unsqueeze(1)


def store(key, value, keys, values, tables, table_width, lengths):
    real = (lengths > 0).nonzero().squeeze(1)
    at = lengths[real] - 1
    blocks = _rows_of_tables(tables, table_width, lengths)[real, at // keys.shape[1]]
    keys[blocks, at % keys.shape[1]] = key[0].transpose(0, 1)[real]
    values[blocks, at % keys.shape[1]] = value[0].transpose(0, 1)[real]


def attend(
    query,
    keys,
    values,
    tables,
    table_width,
    lengths,
    *,
    num_parts,
    scale=None,
    window=None,
    softcap=None,
    sinks=None,
):
    blocks = _rows_of_tables(tables, table_width, lengths)
    k, v = keys[blocks].flatten(1, 2).transpose(1, 2), values[blocks].flatten(1, 2).transpose(1, 2)
    positions = (lengths - 1).clamp(min=0)
    mask = causal_mask(positions, torch.zeros_like(lengths), 1, k.shape[2], window, query.dtype)
    q = query[0].transpose(0, 1).unsqueeze(2)
    if softcap is None and sinks is None:
        out = _attend(q, k, v, mask, scale)
    else:
        out = _attend_in_steps(q, k, v, mask, scale, softcap, sinks)
    return out.transpose(1, 2).flatten(0, 1).unsqueeze(0) * (lengths > 0).view(1, -1, 1, 1)
