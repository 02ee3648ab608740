"""Text out of tokens that cut characters and stop strings anywhere."""

import random

import pytest

from drawlot.engine.detokenizer import Detokenizer, IncrementalDecoder, StopMatcher

TEXT = "naïve café 👩‍👩‍👧 日本語 \U0001f600\U0001f680 plain ascii text, 100 €. "


def byte_decode(ids: list[int]) -> str:
    """A byte-level tokenizer: one id a byte."""
    return bytes(ids).decode("utf-8", errors="replace")


def byte_fallback_decode(ids: list[int]) -> str:
    """Sentencepiece's manner: a run of byte tokens (below 256) that is no UTF-8 becomes U+FFFD, one a byte; tokens
    from 256 on are characters; the first space of a text is dropped."""
    text, run = "", []
    for token in [*ids, None]:
        if token is not None and token < 256:
            run.append(token)
            continue
        try:
            text += bytes(run).decode()
        except UnicodeDecodeError:
            text += "\ufffd" * len(run)
        run = []
        if token is not None:
            text += chr(token - 256)
    return text.removeprefix(" ")


def pieces(data: bytes, seed: int) -> list[bytes]:
    rng = random.Random(seed)
    cuts = sorted(rng.sample(range(1, len(data)), len(data) // 3))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]


@pytest.mark.parametrize("seed", range(5))
def test_never_half_a_character(seed):
    """Tokens of several bytes, cut anywhere, also inside characters."""
    vocabulary = pieces((TEXT * 4).encode(), seed)
    decoder = IncrementalDecoder(lambda ids: b"".join(vocabulary[i] for i in ids).decode(errors="replace"), ())
    text = ""
    for i in range(len(vocabulary)):
        text += decoder.append(i)
        assert "\ufffd" not in text
        assert (TEXT * 4).startswith(text)
    assert text + decoder.flush() == TEXT * 4


def test_byte_fallback():
    ids = [b if len(c.encode()) > 1 else 256 + ord(c) for c in TEXT * 3 for b in c.encode()]
    decoder = IncrementalDecoder(byte_fallback_decode, [256 + ord("x")])
    text = ""
    for token in ids:
        text += decoder.append(token)
        assert (TEXT * 3).startswith(text)
    assert text + decoder.flush() == TEXT * 3


def test_bytes_that_are_no_text_do_not_pile_up():
    decoder = IncrementalDecoder(byte_decode, ())
    text = "".join(decoder.append(b) for b in b"\xff" * 100 + b"ok")
    assert text + decoder.flush() == "\ufffd" * 100 + "ok"


def test_prompt_that_ends_inside_a_character():
    euro = "€".encode()
    decoder = IncrementalDecoder(byte_decode, list(b"100 " + euro[:1]))
    assert [decoder.append(b) for b in euro[1:] + b"!"] == ["", "€", "!"]


def test_work_of_a_token_does_not_grow():
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return byte_decode(ids)

    decoder = IncrementalDecoder(decode, list(b"a long prompt" * 20))
    for b in TEXT.encode() * 20:
        decoder.append(b)
    assert longest <= 24


def test_flush_gives_out_half_a_character():
    decoder = IncrementalDecoder(byte_decode, ())
    assert decoder.append("é".encode()[0]) == ""
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


@pytest.mark.parametrize("seed", range(20))
def test_matcher_is_a_search(seed):
    rng = random.Random(seed)
    text = "".join(rng.choices("ab", k=200))
    stop = "".join(rng.choices("ab", k=rng.randrange(1, 7)))
    matcher = StopMatcher(stop)
    ends = [i + 1 for i, char in enumerate(text) if matcher.feed(char)]
    assert ends == [i for i in range(len(stop), 201) if text[i - len(stop) : i] == stop]


def test_held_back_text():
    detokenizer = Detokenizer(byte_decode, (), ["abcd", "cx"])
    shown = []
    for b in b"zabcabc":
        assert detokenizer.append(b, may_stop=True) is None
        shown.append(detokenizer.visible_text)
    assert shown == ["z", "z", "z", "z", "zabc", "zabc", "zabc"]
    assert detokenizer.append(ord("x"), may_stop=True) == "cx"
    assert detokenizer.visible_text == detokenizer.text == "zabcab"


def test_stop_does_not_depend_on_token_borders():
    """Whatever the tokens, the stop string that is complete first wins; of two that end together the longer."""
    text, stops = "one two three", ["wo thr", "three", "o t", " two t"]
    for seed in range(20):
        rng = random.Random(seed)
        cuts = sorted(rng.sample(range(1, len(text)), 4))
        vocabulary = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
        detokenizer = Detokenizer(lambda ids, v=vocabulary: "".join(v[i] for i in ids), (), stops)
        found = (detokenizer.append(i, may_stop=True) for i in range(len(vocabulary)))
        assert next(filter(None, found)) == " two t"
        assert detokenizer.text == "one"
