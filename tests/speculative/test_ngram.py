"""Prompt lookup against its definition in plain Python."""

import random

import pytest
import torch

from drawlot.speculators.interface import StepRequest
from drawlot.speculators.ngram import Ngram, lookup


def defined(text, wanted, shortest, longest):
    """The longest suffix that occurs earlier, the latest of several; what follows, going on with itself."""
    for n in range(longest, shortest - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[len(text) - n :]:
                grown = list(text)
                for i in range(wanted):
                    grown.append(grown[end + i])
                return grown[len(text) :]
    return []


def looked_up(texts, wanted, width, shortest, longest):
    lengths = [len(text) for text in texts]
    padded = [text + [0] * (max(lengths) - len(text)) for text in texts]
    drafts = lookup(torch.tensor(padded), torch.tensor(lengths), torch.tensor(wanted), width, shortest, longest)
    assert (drafts.token_ids >= 0).sum(1).tolist() == drafts.num_drafts.tolist()
    return [row[:count] for row, count in zip(drafts.token_ids.tolist(), drafts.num_drafts.tolist())]


@pytest.mark.parametrize("seed", range(40))
def test_equals_the_definition(seed):
    rng = random.Random(seed)
    vocab, longest = rng.choice([2, 3, 5]), rng.randrange(1, 6)
    shortest, width = rng.randrange(1, min(longest, 3) + 1), rng.randrange(1, 7)
    texts = [[rng.randrange(vocab) for _ in range(rng.randrange(1, 30))] for _ in range(20)]
    wanted = [rng.randrange(width + 1) for _ in texts]
    expected = [defined(text, want, shortest, longest) for text, want in zip(texts, wanted)]
    assert looked_up(texts, wanted, width, shortest, longest) == expected
    assert any(expected)


def test_the_longest_match_wins_over_a_later_one():
    text = [1, 2, 3, 9, 9, 3, 8, 1, 2, 3]
    assert looked_up([text], [2], 2, 1, 3) == [[9, 9]]
    assert looked_up([text], [2], 2, 1, 1) == [[8, 1]]


def test_a_match_at_the_end_goes_on_with_itself():
    assert looked_up([[4, 7, 5, 7, 5]], [5], 5, 1, 4) == [[7, 5, 7, 5, 7]]


def test_only_new_tokens_travel_and_a_row_forgets():
    rng = random.Random(1)
    ngram = Ngram(2, 3, 1, 3, torch.device("cpu"))
    for text in ([rng.randrange(3) for _ in range(600)], [rng.randrange(3) for _ in range(40)]):
        ngram.add_request(1, 0)
        for length in range(5, len(text), 37):
            request = StepRequest(1, text[:length], length - 1, length, 3)
            drafts = ngram.propose([StepRequest(0, [1, 2], 0, 2, 0), request])
            assert drafts.num_drafts.tolist()[0] == 0
            assert drafts.token_ids[1, : drafts.num_drafts[1]].tolist() == defined(text[:length], 3, 1, 3)
            assert drafts.logits is None
