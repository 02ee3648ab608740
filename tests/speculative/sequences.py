"""The exact law of the sequences that a small model writes, and the counts of what an engine writes."""

import itertools

import numpy as np
import torch

from drawlot.engine.engine import Engine
from drawlot.params import MAX_CHOICES, SamplingParams


@torch.inference_mode()
def law_of(model, prompt, length, top_k):
    """float64 [top_k ** length]: the probability of every sequence of `length` draws among the best `top_k` tokens.

    Also int64 [top_k ** (length - 1), top_k]: after each shorter sequence the ids, best first, that the digits mean.
    """
    probabilities = np.ones(1)
    texts = torch.tensor([prompt])
    for _ in range(length):
        logits = torch.cat([model(part).logits[:, -1] for part in texts.split(4096)]).double()
        values, ids = logits.topk(top_k, sorted=True)
        probabilities = (probabilities[:, None] * values.softmax(1).numpy()).ravel()
        texts = torch.cat([texts.repeat_interleave(top_k, 0), ids.reshape(-1, 1)], 1)
    return texts[:, len(prompt) :].numpy(), probabilities


def written(engine: Engine, prompt, num_sequences, length, seed=0, **params):
    """int64 [num_sequences, length]: what the engine writes, many choices of each of many seeds."""
    sequences = []
    for index in range(num_sequences // MAX_CHOICES):
        asked = {"n": MAX_CHOICES, "seed": seed + index, "max_tokens": length, "ignore_eos": True, "detokenize": False}
        engine.add_request(str(index), prompt, SamplingParams(**(asked | params)))
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                sequences += [choice.token_ids for choice in output.outputs]
    return np.array(sequences)


def counts_of(sequences, known):
    """How often each of the known sequences [S, length] occurs; every other is an error."""
    place = {tuple(sequence): i for i, sequence in enumerate(known.tolist())}
    counts = np.zeros(len(known))
    for sequence, group in itertools.groupby(sorted(map(tuple, sequences.tolist()))):
        counts[place[sequence]] += len(list(group))
    return counts
