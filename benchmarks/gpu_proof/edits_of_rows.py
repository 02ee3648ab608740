"""Random edits of rows, made on the device, and the edits of rows that change places."""

import torch
from torch import Generator, Tensor

from drawlot.kernels.inputs import Edits, SparseBias, SparsePenalties

EDITS = ("bitmask", "allowed", "masked", "bias", "penalties")
_MOST_IDS = 40


def some_ids(g: Generator, n: int, vocab_size: int, count: int) -> Tensor:
    """int64 [n, count]: distinct ids, one from each of `count` equal parts of the vocabulary."""
    part = vocab_size // count
    inside = torch.randint(part, (n, count), generator=g, device=g.device)
    return torch.arange(count, device=g.device) * part + inside


def random_edits(g: Generator, n: int, vocab_size: int, which: tuple[str, ...]) -> Edits:
    """Edits of a third of the rows each, some 40 ids a row, their entries in no order; `which` of `EDITS`."""

    def number(low: float, high: float, shape: tuple[int, ...]) -> Tensor:
        return low + (high - low) * torch.rand(shape, generator=g, device=g.device)

    def entries() -> tuple[Tensor, Tensor]:
        rows = torch.randperm(n, generator=g, device=g.device)[: -(-n // 3)]
        ids = some_ids(g, len(rows), vocab_size, min(vocab_size, _MOST_IDS))
        shuffled = torch.randperm(ids.numel(), generator=g, device=g.device)
        return rows.repeat_interleave(ids.shape[1])[shuffled], ids.flatten()[shuffled]

    edits = Edits()
    if "bitmask" in which:
        words = torch.randint(-(2**31), 2**31, (n, -(-vocab_size // 32)), generator=g, device=g.device)
        edits = edits._replace(bitmask=words.to(torch.int32))
    if "allowed" in which:
        edits = edits._replace(allowed=entries())
    if "masked" in which:
        edits = edits._replace(masked=entries())
    if "bias" in which:
        rows, ids = entries()
        edits = edits._replace(bias=SparseBias(rows, ids, number(-100, 100, rows.shape)))
    if "penalties" in which:
        rows, ids = entries()
        # All entries of a row share its factors; a third of the tokens were seen in the prompt alone.
        repetition = torch.tensor([0.5, 1.0, 1.3, 1e-30], device=g.device)[rows % 4]
        frequency, presence = number(-2, 2, (n,))[rows], number(-2, 2, (n,))[rows]
        count = (ids % 3).float()
        penalties = SparsePenalties(rows, ids, repetition, frequency * count, torch.where(count > 0, presence, 0.0))
        edits = edits._replace(penalties=penalties)
    return edits


def moved(edits: Edits, order: Tensor) -> Edits:
    """The edits of the rows order[0], order[1], ..., a permutation of all."""
    new_place = torch.empty_like(order)
    new_place[order] = torch.arange(len(order), device=order.device)
    return Edits(
        None if edits.bitmask is None else edits.bitmask[order],
        edits.allowed and (new_place[edits.allowed[0]], edits.allowed[1]),
        edits.masked and (new_place[edits.masked[0]], edits.masked[1]),
        edits.bias and edits.bias._replace(rows=new_place[edits.bias.rows]),
        edits.penalties and edits.penalties._replace(rows=new_place[edits.penalties.rows]),
    )
