"""The logits that are timed, drawn at random for every row and buffer: what a sampler costs depends on them."""

from collections.abc import Callable

import torch
from torch import Generator, Tensor

Distribution = Callable[[int, int, Generator], Tensor]


def _normal(std: float) -> Distribution:
    def draw(rows: int, vocab_size: int, generator: Generator) -> Tensor:
        return std * torch.randn(rows, vocab_size, generator=generator, device=generator.device)

    return draw


def _peaked(rows: int, vocab_size: int, generator: Generator) -> Tensor:
    """Like a language model's: probabilities fall as rank^-s (Zipf), s between 1.2 and 3, at ids in random order."""
    uniform = torch.rand(rows, vocab_size, generator=generator, device=generator.device)
    exponent = 1.2 + 1.8 * torch.rand(rows, 1, generator=generator, device=generator.device)
    # rank / V is uniform, so that the logit -s log(rank / V) is exponential with scale s.
    return -exponent * uniform.clamp_(min=2.0**-24).log_()


def _constant(rows: int, vocab_size: int, generator: Generator) -> Tensor:
    """Every token ties with every other."""
    return torch.full((rows, vocab_size), 1.5, device=generator.device)


def _sorted(rows: int, vocab_size: int, generator: Generator) -> Tensor:
    """N(0, 3), best ids first: what is kept lies side by side."""
    return _normal(3.0)(rows, vocab_size, generator).sort(-1, descending=True).values


DISTRIBUTIONS: dict[str, Distribution] = {
    "normal1": _normal(1.0),
    "normal3": _normal(3.0),
    "peaked": _peaked,
    "constant": _constant,
    "sorted": _sorted,
}
