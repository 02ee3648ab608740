"""Logits of many shapes: those of models, and those that are hard on a sampler."""

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from benchmarks.gpu_proof.edits_of_rows import some_ids


def _normal(g: Generator, n: int, v: int, spread: float = 1.0) -> Tensor:
    return torch.randn(n, v, generator=g, device=g.device) * spread


def _exponential(g: Generator, n: int, v: int) -> Tensor:
    return -2 * torch.rand(n, v, generator=g, device=g.device).clamp(min=2**-30).log()


def choice(g: Generator, n: int, values: Sequence[float], columns: int = 1) -> Tensor:
    """float64 [n, columns], each one of the values."""
    at = torch.randint(len(values), (n, columns), generator=g, device=g.device)
    return torch.tensor(values, dtype=torch.float64, device=g.device)[at]


def _peaked(g: Generator, n: int, v: int) -> Tensor:
    return _normal(g, n, v).scatter_(1, some_ids(g, n, v, 1), 30.0)


def _masked(g: Generator, n: int, v: int) -> Tensor:
    dead = torch.rand(n, v, generator=g, device=g.device) < choice(g, n, (0.1, 0.9, 0.999))
    return _normal(g, n, v).masked_fill_(dead, -torch.inf)


def _one_live(g: Generator, n: int, v: int) -> Tensor:
    return torch.full((n, v), -torch.inf, device=g.device).scatter_(1, some_ids(g, n, v, 1), 0.5)


def _crowded_tile(g: Generator, n: int, v: int) -> Tensor:
    """Most of the best tokens share a tile: those above the k-th tile maximum are many."""
    tile = torch.randint(-(-v // 128), (n, 1), generator=g, device=g.device)
    return _normal(g, n, v) + 6.0 * (torch.arange(v, device=g.device) // 128 == tile)


def _comb(g: Generator, n: int, v: int) -> Tensor:
    """One good token in each tile, all about as good."""
    lane = torch.randint(128, (n, 1), generator=g, device=g.device)
    return _normal(g, n, v, 0.1) + 5.0 * (torch.arange(v, device=g.device) % 128 == lane)


def _bad(g: Generator, n: int, v: int) -> Tensor:
    """NaN, +inf or nothing at all, each in about every third row."""
    x = _normal(g, n, v).scatter_(1, some_ids(g, n, v, 1), choice(g, n, (torch.nan, torch.inf)).float())
    return x.masked_fill_(choice(g, n, (0, 0, 1)) == 1, -torch.inf)


KINDS: dict[str, Callable[[Generator, int, int], Tensor]] = {
    "N(0, 0.1)": lambda g, n, v: _normal(g, n, v, 0.1),
    "N(0, 1)": _normal,
    "N(0, 3)": lambda g, n, v: _normal(g, n, v, 3),
    "N(0, 10)": lambda g, n, v: _normal(g, n, v, 10),
    "exponential": _exponential,
    "peaked": _peaked,
    "ascending": lambda g, n, v: _normal(g, n, v, 3).sort(1).values,
    "descending": lambda g, n, v: _normal(g, n, v, 3).sort(1, descending=True).values,
    "constant": lambda g, n, v: choice(g, n, (0.0, -5.0, 1e4, -1e30)).float().repeat(1, v),
    "ties": lambda g, n, v: _normal(g, n, v, 3).round(),
    "three values": lambda g, n, v: choice(g, n, (0.0, -0.0, 1.0), v).float(),
    "neighbouring floats": lambda g, n, v: 1 + 2**-23 * torch.randint(64, (n, v), generator=g, device=g.device),
    "mostly masked": _masked,
    "one live": _one_live,
    "shifted": lambda g, n, v: _normal(g, n, v) + choice(g, n, (1e4, -1e4)).float(),
    "subnormal": lambda g, n, v: _normal(g, n, v) * 1e-39,
    "crowded tile": _crowded_tile,
    "comb": _comb,
    "bad": _bad,
}


def random_logits(g: Generator, n: int, v: int) -> Tensor:
    """float32 [n, v]: each kind has an equal share of consecutive rows."""
    names = [kind_of(i, n) for i in range(n)]
    return torch.cat([KINDS[name](g, names.count(name), v) for name in dict.fromkeys(names)])


def kind_of(row: int, n: int) -> str:
    """The kind of a row of n."""
    return list(KINDS)[row * len(KINDS) // n]
