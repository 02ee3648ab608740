"""Random batches, made on the device: rows of every kind with parameters of their own, edits, and logprobs wanted."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from benchmarks.gpu_proof.edits_of_rows import EDITS, random_edits, some_ids
from benchmarks.gpu_proof.kinds_of_logits import choice, random_logits
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams
from drawlot.sampling.logprobs import MODES

DTYPES = (torch.float32, torch.float32, torch.bfloat16, torch.float16)
LAYOUTS = ("contiguous", "padded", "odd base", "transposed", "one row for all")


class Form(NamedTuple):
    """What all rows of a batch share."""

    dtype: torch.dtype
    layout: str
    edits: tuple[str, ...]
    """Of `EDITS`"""
    mode: str | None
    """Of logprobs; None: no row wants any"""
    wide: bool

    @classmethod
    def random(cls, rng: random.Random) -> "Form":
        """Any form."""
        edits = tuple(name for name in EDITS if rng.random() < 0.25)
        mode = rng.choice(MODES) if rng.random() < 0.5 else None
        return cls(rng.choice(DTYPES), rng.choice(LAYOUTS), edits, mode, rng.random() < 0.2)


PLAIN = Form(torch.float32, "contiguous", (), None, False)


class Batch(NamedTuple):
    """The arguments of a backend's `sample_rows`."""

    logits: Tensor
    params: RowParams
    edits: Edits
    wanted: LogprobsWanted | None
    wide: bool


def random_batch(generator: Generator, n: int, vocab_size: int, form: Form) -> Batch:
    """N rows, on the generator's device."""
    return Batch(
        _laid_out(generator, random_logits(generator, n, vocab_size).to(form.dtype), form.layout),
        random_params(generator, n, vocab_size),
        random_edits(generator, n, vocab_size, form.edits),
        None if form.mode is None else random_wanted(generator, n, vocab_size, form.mode),
        form.wide,
    )


def _laid_out(g: Generator, x: Tensor, layout: str) -> Tensor:
    """The same rows elsewhere in memory; what lies between them is NaN."""
    n, v = x.shape
    if layout in ("padded", "odd base"):
        extra = 1 + int(torch.randint(200, (), generator=g, device=g.device))
        start = 1 if layout == "odd base" else 0
        wider = torch.full((n, start + v + extra), torch.nan, dtype=x.dtype, device=x.device)
        wider[:, start : start + v] = x
        return wider[:, start : start + v]
    if layout == "transposed":
        return x.t().contiguous().t()
    if layout == "one row for all":
        return x[int(torch.randint(n, (), generator=g, device=g.device))].expand(n, v)
    return x


def random_params(g: Generator, n: int, v: int) -> RowParams:
    """Every row its own: greedy, filtered in any way or not, any seed and position, first rows of steps and others."""

    def integers(values: Sequence[int]) -> Tensor:
        return torch.tensor(values, device=g.device)[torch.randint(len(values), (n,), generator=g, device=g.device)]

    def sometimes(share: float, column: Tensor, off: float) -> Tensor:
        return torch.where(torch.rand(n, generator=g, device=g.device) < share, column, off)

    def number(values: Sequence[float]) -> Tensor:
        return choice(g, n, values).squeeze(1)

    top_k = integers([1, 2, 5, 20, 50, 127, 128, 129, 1025, max(1, v // 2), max(1, v - 1)])
    return RowParams(
        temperature=number((0, 1e-45, 1e-12, 1e-3, 0.5, 0.8, 1, 1, 1, 1.5, 10, 1e4)),
        top_k=torch.where(top_k < v, sometimes(0.5, top_k, 0), 0),
        top_p=sometimes(0.5, number((1e-9, 0.1, 0.25, 0.5, 0.9, 0.95, 0.999, 1 - 1e-6)), 1.0),
        min_p=sometimes(0.4, number((1e-30, 1e-6, 0.01, 0.3, 1.0)), 0.0),
        seed=torch.empty(n, dtype=torch.int64, device=g.device).random_(-(2**63), None, generator=g),
        position=integers([0, 1, 7, 100, 2**20, 2**32 - 1, 2**32 + 5, 2**47]),
        choice=torch.randint(128, (n,), generator=g, device=g.device),
        row=sometimes(0.2, torch.randint(2**16, (n,), generator=g, device=g.device), 0),
    )


def random_wanted(g: Generator, n: int, v: int, mode: str) -> LogprobsWanted:
    """Rows that want none, some top tokens, or ids of their own."""
    num_top = torch.tensor([0, 1, 5, 20], device=g.device)[torch.randint(4, (n,), generator=g, device=g.device)]
    num_top = num_top.clamp(max=v)
    own_ids = torch.rand(n, generator=g, device=g.device) < 0.3
    ids = torch.where(own_ids.unsqueeze(1), some_ids(g, n, v, min(v, 7)), -1)
    wanted = torch.rand(n, generator=g, device=g.device) < 0.8
    return LogprobsWanted(mode, wanted, torch.where(own_ids | ~wanted, 0, num_top), ids, min(v, 20))
