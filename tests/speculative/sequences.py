"""The exact law of the sequences that a small model writes, and how well what an engine writes fits it."""

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from drawlot import testing
from drawlot.engine.engine import Engine
from drawlot.params import MAX_CHOICES, SamplingParams


@dataclass(frozen=True)
class Law:
    """The sequences of `length` draws among the best `top_k` tokens of a model, after a prompt."""

    prompt: list
    top_k: int
    sequences: np.ndarray
    """int64 [top_k ** length, length], in the order of their digits: the rank of each token after those before it"""
    probabilities: np.ndarray
    """float64 [top_k ** length]"""

    @cached_property
    def place(self) -> dict:
        """Where in `sequences` each one stands."""
        return {tuple(sequence): place for place, sequence in enumerate(self.sequences.tolist())}


@contextmanager
def without_cycle_collector() -> Iterator[None]:
    """A request and its choices hold each other: over so many live ones, each search for cycles is long and in vain."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@torch.inference_mode()
def law_of(model, prompt, length, top_k):
    """The law by one forward for each beginning of a sequence."""
    probabilities = np.ones(1)
    texts = torch.tensor([prompt])
    for _ in range(length):
        logits = torch.cat([model(part, logits_to_keep=1).logits[:, -1] for part in texts.split(4096)]).double()
        values, ids = logits.topk(top_k, sorted=True)
        probabilities = (probabilities[:, None] * values.softmax(1).numpy()).ravel()
        texts = torch.cat([texts.repeat_interleave(top_k, 0), ids.reshape(-1, 1)], 1)
    return Law(prompt, top_k, texts[:, len(prompt) :].numpy(), probabilities)


@without_cycle_collector()
def written(engine: Engine, law: Law, num_sequences):
    """int64 [num_sequences, length]: what the engine writes, many choices of each of many seeds."""
    length = law.sequences.shape[1]
    for seed in range(num_sequences // MAX_CHOICES):
        asked = {"n": MAX_CHOICES, "seed": seed, "max_tokens": length, "top_k": law.top_k}
        params = SamplingParams(ignore_eos=True, detokenize=False, **asked)
        engine.add_request(str(seed), law.prompt, params)
    sequences = []
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                sequences += [choice.token_ids for choice in output.outputs]
    return np.array(sequences)


def fits_of(sequences, law):
    """Chi-squares of whole sequences, and of what stands at each pair of places; an unknown sequence is an error."""
    places = [law.place[tuple(sequence)] for sequence in sequences.tolist()]
    counts = np.bincount(places, minlength=len(law.sequences)).astype(np.float64)
    length = law.sequences.shape[1]
    tables = [each.reshape((law.top_k,) * length) for each in (counts, law.probabilities)]
    fits = {"all": testing.chi_square(counts, law.probabilities)}
    for pair in itertools.combinations(range(length), 2):
        others = tuple(axis for axis in range(length) if axis not in pair)
        fits[str(pair)] = testing.chi_square(*(table.sum(others) for table in tables))
    return fits
