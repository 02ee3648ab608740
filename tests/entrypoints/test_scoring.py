import math

import pytest

from drawlot.entrypoints.scoring import check_labels, label_probabilities
from drawlot.errors import ParameterError


def test_probabilities_among_the_labels():
    logprobs = [math.log(0.1), math.log(0.3)]
    assert label_probabilities(logprobs, apply_softmax=True) == pytest.approx([0.25, 0.75], abs=1e-15)
    assert label_probabilities(logprobs, apply_softmax=False) == pytest.approx([0.1, 0.3], abs=1e-15)


def test_tiny_probabilities_do_not_vanish():
    assert label_probabilities([-1000.0, -1000.0 + math.log(3)], apply_softmax=True) == pytest.approx([0.25, 0.75])


def test_impossible_labels():
    assert label_probabilities([-math.inf, -2.0], apply_softmax=True) == [0.0, 1.0]
    assert label_probabilities([-math.inf] * 4, apply_softmax=True) == [0.25] * 4


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        ([], "must not be empty"),
        ([3, 4, 3], "must be distinct"),
        ([10], "token ids must be in [0, 10)"),
        ([-1], "token ids must be in [0, 10)"),
        ([True], "token ids must be in [0, 10)"),
        (range(129), "must hold at most 128 labels"),
    ],
)
def test_bad_labels(labels, rule):
    with pytest.raises(ParameterError) as raised:
        check_labels(labels, vocab_size=10)
    assert raised.value.field == "label_token_ids"
    assert raised.value.rule == rule
