"""Logits to tokens: the stateful `Sampler` and what it is made of."""

from drawlot.sampling.sampler import Sampler

__all__ = ["Sampler"]
