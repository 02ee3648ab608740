"""Generative scoring: the probabilities of label tokens after a prompt. Nothing is drawn."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from drawlot.errors import ParameterError

MAX_LABELS = 128


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreOutput:
    """The scores of one item."""

    scores: list[float]
    """The probability of each label, in the order given: among the labels (they sum to 1), or in the vocabulary."""
    label_token_ids: list[int]
    prompt_token_ids: list[int]
    """Query and item, as the model read them."""


def check_labels(label_token_ids: Sequence[int], vocab_size: int) -> list[int]:
    """The labels as a list of ints.

    Raises:
        ParameterError: There are none, too many, one twice, or one outside [0, vocab_size).
    """
    labels = list(label_token_ids)
    if not labels:
        raise ParameterError("label_token_ids", "must not be empty", labels)
    if len(labels) > MAX_LABELS:
        raise ParameterError("label_token_ids", f"must hold at most {MAX_LABELS} labels", f"{len(labels)} labels")
    for label in labels:
        if isinstance(label, bool) or not isinstance(label, Integral) or not 0 <= label < vocab_size:
            raise ParameterError("label_token_ids", f"token ids must be in [0, {vocab_size})", label)
    if len(set(labels)) != len(labels):
        raise ParameterError("label_token_ids", "must be distinct", labels)
    return [int(label) for label in labels]


def label_probabilities(logprobs: Sequence[float], apply_softmax: bool) -> list[float]:
    """Probabilities of labels from their logprobs over the vocabulary.

    With `apply_softmax` they are the probabilities among the labels alone; equal where every label is impossible.
    """
    if not apply_softmax:
        return [math.exp(logprob) for logprob in logprobs]
    largest = max(logprobs)
    if largest == -math.inf:
        return [1 / len(logprobs)] * len(logprobs)
    weights = [math.exp(logprob - largest) for logprob in logprobs]
    return [weight / math.fsum(weights) for weight in weights]
