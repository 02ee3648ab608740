"""Section 6 of docs/semantics.md: every rule refuses what breaks it, in words, and accepts its own boundary."""

import dataclasses
import pickle
from fractions import Fraction

import numpy as np
import pytest

from drawlot import DrawlotError, InputError, ParameterError, SamplingParams

NAN, INF = float("nan"), float("inf")
SIXTEEN_STOPS = [f"s{i}" for i in range(16)]

NUMBERS = {
    "temperature": "must be finite and >= 0",
    "top_p": "must be in (0, 1]",
    "min_p": "must be in [0, 1]",
    "presence_penalty": "must be in [-2, 2]",
    "frequency_penalty": "must be in [-2, 2]",
    "repetition_penalty": "must be finite and > 0",
}
INTEGERS = ("n", "top_k", "seed", "min_tokens", "max_tokens", "logprobs", "prompt_logprobs")
FLAGS = ("ignore_eos", "detokenize", "skip_special_tokens")
ID_LISTS = ("stop_token_ids", "allowed_token_ids", "logprob_token_ids")

# keyword arguments, the field that is named, the rule, the value as shown
REFUSED = [
    *[({field: value}, field, rule, repr(value)) for field, rule in NUMBERS.items() for value in (NAN, INF, -INF)],
    *[({field: value}, field, "must be a number", repr(value)) for field in NUMBERS for value in (True, "1", None, 1j)],
    *[({field: value}, field, "must be an integer", repr(value)) for field in INTEGERS for value in (True, 1.0, "1")],
    *[({field: None}, field, "must be an integer", "None") for field in ("n", "top_k", "min_tokens", "max_tokens")],
    *[({field: value}, field, "must be True or False", repr(value)) for field in FLAGS for value in (1, None, "yes")],
    *[({field: 5}, field, "must be a list of token ids", "5") for field in ID_LISTS],
    *[({field: "12"}, field, "must be a list of token ids", "'12'") for field in ID_LISTS],
    *[({field: {1: 2}}, field, "must be a list of token ids", "{1: 2}") for field in ID_LISTS],
    *[({field: [1, v]}, field, "integers >= 0", repr(v)) for field in ID_LISTS for v in (-1, True, 1.0, "1", None)],
    *[({field: 5}, field, "must be a string or a list of strings", "5") for field in ("stop", "bad_words")],
    *[({field: None}, field, "must be a string or a list", "None") for field in ("stop", "bad_words")],
    *[({field: ["a", v]}, field, "non-empty strings", repr(v)) for field in ("stop", "bad_words") for v in ("", 5)],
    *[({field: ""}, field, "must hold non-empty strings", "''") for field in ("stop", "bad_words")],
    ({"temperature": -1e-300}, "temperature", "must be finite and >= 0", "-1e-300"),
    ({"top_p": 0}, "top_p", "must be in (0, 1]", "0"),
    ({"top_p": -0.5}, "top_p", "must be in (0, 1]", "-0.5"),
    ({"top_p": 1 + 2**-52}, "top_p", "must be in (0, 1]", "1.0000000000000002"),
    ({"min_p": -5e-324}, "min_p", "must be in [0, 1]", "-5e-324"),
    ({"min_p": 1 + 2**-52}, "min_p", "must be in [0, 1]", "1.0000000000000002"),
    ({"presence_penalty": 2.001}, "presence_penalty", "must be in [-2, 2]", "2.001"),
    ({"presence_penalty": -2.001}, "presence_penalty", "must be in [-2, 2]", "-2.001"),
    ({"frequency_penalty": 2.001}, "frequency_penalty", "must be in [-2, 2]", "2.001"),
    ({"frequency_penalty": -2.001}, "frequency_penalty", "must be in [-2, 2]", "-2.001"),
    ({"repetition_penalty": 0}, "repetition_penalty", "must be finite and > 0", "0"),
    ({"repetition_penalty": -1}, "repetition_penalty", "must be finite and > 0", "-1"),
    ({"n": 0}, "n", "must be in [1, 128]", "0"),
    ({"n": 129}, "n", "must be in [1, 128]", "129"),
    ({"n": 2, "temperature": 0}, "n", "must be 1 when temperature is 0", "2"),
    ({"top_k": -2}, "top_k", "must be >= -1", "-2"),
    ({"seed": 2**63}, "seed", "must be int64", str(2**63)),
    ({"seed": -(2**63) - 1}, "seed", "must be int64", str(-(2**63) - 1)),
    ({"min_tokens": -1}, "min_tokens", "must be >= 0", "-1"),
    ({"min_tokens": 17}, "min_tokens", "must be at most max_tokens (16)", "17"),
    ({"max_tokens": -1}, "max_tokens", "must be >= 0", "-1"),
    ({"max_tokens": 0}, "max_tokens", "must be >= 1 (0 only with prompt_logprobs)", "0"),
    ({"logprobs": -2}, "logprobs", "must be >= -1", "-2"),
    ({"prompt_logprobs": -2}, "prompt_logprobs", "must be >= -1", "-2"),
    ({"stop": [*SIXTEEN_STOPS, "x"]}, "stop", "must hold at most 16 strings", "17"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "must not be empty", "()"),
    ({"logprob_token_ids": []}, "logprob_token_ids", "must not be empty", "()"),
    ({"logprob_token_ids": [3, 4, 3]}, "logprob_token_ids", "must be distinct", "(3, 4, 3)"),
    ({"logprob_token_ids": range(129)}, "logprob_token_ids", "must hold at most 128 token ids", "129"),
    ({"logprob_token_ids": [3, 4], "logprobs": 1}, "logprobs", "must equal the number of logprob_token_ids (2)", "1"),
    ({"logprob_token_ids": [3, 4], "logprobs": -1}, "logprobs", "must equal the number of logprob_token_ids (2)", "-1"),
    ({"logit_bias": [1, 2]}, "logit_bias", "must map token ids to numbers", "[1, 2]"),
    ({"logit_bias": dict.fromkeys(range(1025), 1)}, "logit_bias", "must hold at most 1024 entries", "1025"),
    *[({"logit_bias": {k: 1.0}}, "logit_bias", "keys must be token ids", repr(k)) for k in (-1, True, "1", 1.5)],
    *[
        ({"logit_bias": {7: v}}, "logit_bias", "values must be in [-100, 100] (token id 7)", repr(v))
        for v in (100.1, -100.1, NAN, INF, True, "1", None)
    ],
]

ACCEPTED = [
    {"n": 1},
    {"n": 128},
    {"temperature": 0},
    {"temperature": 5e-324},
    {"temperature": 1e308},
    {"top_p": 5e-324},
    {"top_p": 1},
    {"top_k": -1},
    {"top_k": 0},
    {"top_k": 2**63 - 1},
    {"min_p": 0},
    {"min_p": 1},
    {"seed": 0},
    {"seed": -1},
    {"seed": 2**63 - 1},
    {"seed": -(2**63)},
    {"seed": None},
    *[{field: value} for field in ("presence_penalty", "frequency_penalty") for value in (-2, 2)],
    {"repetition_penalty": 5e-324},
    {"repetition_penalty": 1e308},
    {"logit_bias": {}},
    {"logit_bias": {0: -100, 1: 100.0}},
    {"logit_bias": dict.fromkeys(range(1024), 1)},
    {"allowed_token_ids": [0]},
    {"bad_words": ()},
    {"min_tokens": 16},
    {"max_tokens": 1},
    {"max_tokens": 0, "prompt_logprobs": 0},
    {"stop": SIXTEEN_STOPS},
    {"logprobs": -1},
    {"logprobs": 0},
    {"prompt_logprobs": -1},
    {"logprob_token_ids": range(128)},
    {"logprob_token_ids": [3, 4], "logprobs": 2},
]


@pytest.mark.parametrize(("kwargs", "field", "rule", "shown"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_breaks_a_rule_is_refused_in_words(kwargs, field, rule, shown):
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**kwargs)
    message = str(caught.value)
    assert message.startswith(f"{field}: ")
    assert rule in message
    assert message.split("; got ")[1].strip("'") == shown.strip("'")
    assert caught.value.field == field


@pytest.mark.parametrize("kwargs", ACCEPTED, ids=lambda v: str(v)[:40])
def test_the_boundary_itself_is_accepted(kwargs):
    SamplingParams(**kwargs)


def test_the_defaults_are_those_of_the_table():
    p = SamplingParams()
    assert (p.n, p.temperature, p.top_p, p.top_k, p.min_p, p.seed) == (1, 1.0, 1.0, 0, 0.0, None)
    assert (p.presence_penalty, p.frequency_penalty, p.repetition_penalty) == (0.0, 0.0, 1.0)
    assert (p.logit_bias, p.allowed_token_ids, p.bad_words) == (None, None, ())
    assert (p.min_tokens, p.max_tokens, p.stop, p.stop_token_ids, p.ignore_eos) == (0, 16, (), (), False)
    assert (p.logprobs, p.prompt_logprobs, p.logprob_token_ids) == (None, None, None)
    assert (p.detokenize, p.skip_special_tokens) == (True, True)


def test_every_field_is_in_the_table_of_refusals():
    assert {field for _, field, _, _ in REFUSED} == {f.name for f in dataclasses.fields(SamplingParams)}


def test_unknown_and_positional_arguments_are_type_errors():
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=1.0)
    with pytest.raises(TypeError):
        SamplingParams(1)


def test_numbers_of_other_types_become_plain_ones():
    p = SamplingParams(
        temperature=np.float32(0.5),
        top_p=np.float64(0.25),
        min_p=Fraction(1, 8),
        repetition_penalty=2,
        top_k=np.int64(5),
        seed=np.int32(-7),
        logprobs=np.uint8(2),
        stop_token_ids=np.array([4, 5]),
        allowed_token_ids={9},
        logit_bias={np.int64(3): np.float32(1.5)},
        stop="end",
        bad_words=iter(["a", "b"]),
    )
    assert (p.temperature, p.top_p, p.min_p, p.repetition_penalty, p.top_k, p.seed) == (0.5, 0.25, 0.125, 2.0, 5, -7)
    assert {type(v) for v in (p.temperature, p.top_p, p.min_p, p.repetition_penalty)} == {float}
    assert {type(v) for v in (p.top_k, p.seed, p.logprobs, *p.stop_token_ids, *p.logit_bias)} == {int}
    assert (p.stop_token_ids, p.allowed_token_ids, p.logit_bias) == ((4, 5), (9,), {3: 1.5})
    assert (p.stop, p.bad_words) == (("end",), ("a", "b"))


@pytest.mark.parametrize("field", ["logit_bias", "allowed_token_ids", "stop_token_ids", "logprob_token_ids"])
def test_ids_are_checked_against_the_vocabulary(field):
    params = SamplingParams(**{field: {10: 1.0} if field == "logit_bias" else [3, 10]})
    params.check_vocab(11)
    with pytest.raises(ParameterError, match=rf"^{field}: token ids must be in \[0, 10\); got 10$"):
        params.check_vocab(10)


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
def test_the_engine_limits_logprobs(field):
    SamplingParams(**{field: 20}).check_max_logprobs(20)
    SamplingParams(**{field: 0}).check_max_logprobs(0)
    for count in (-1, 1000):
        SamplingParams(**{field: count}).check_max_logprobs(-1)
    for count in (21, -1):
        with pytest.raises(ParameterError, match=rf"^{field}: must be in \[0, 20\] \(.*max_logprobs\); got {count}$"):
            SamplingParams(**{field: count}).check_max_logprobs(20)


def test_the_engine_does_not_limit_logprob_token_ids():
    SamplingParams(logprob_token_ids=range(128)).check_max_logprobs(20)
    SamplingParams(logprob_token_ids=range(128), logprobs=128).check_max_logprobs(0)
    with pytest.raises(ParameterError, match="prompt_logprobs"):
        SamplingParams(logprob_token_ids=[1], prompt_logprobs=21).check_max_logprobs(20)


def test_num_logprobs():
    assert SamplingParams().num_logprobs is None
    assert SamplingParams(logprobs=0).num_logprobs == 0
    assert SamplingParams(logprobs=-1).num_logprobs == -1
    assert SamplingParams(logprob_token_ids=[5, 6, 7]).num_logprobs == 3
    assert SamplingParams(logprob_token_ids=[5, 6, 7], logprobs=3).num_logprobs == 3


def test_what_the_parameters_ask_for():
    assert SamplingParams(temperature=0).is_greedy
    assert not SamplingParams(temperature=5e-324).is_greedy
    assert not SamplingParams().has_penalties
    for change in ({"presence_penalty": -1}, {"frequency_penalty": 1}, {"repetition_penalty": 0.5}):
        assert SamplingParams(**change).has_penalties


def test_parameters_cannot_be_changed():
    bias, ids = {1: 2.0}, [3]
    params = SamplingParams(logit_bias=bias, stop_token_ids=ids)
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.top_k = 5
    bias[1], ids[0] = 9.0, 9
    assert (params.logit_bias, params.stop_token_ids) == ({1: 2.0}, (3,))


def test_a_changed_copy_is_checked_again():
    params = SamplingParams(top_k=5)
    assert dataclasses.replace(params, seed=1) == SamplingParams(top_k=5, seed=1)
    with pytest.raises(ParameterError, match="top_p"):
        dataclasses.replace(params, top_p=0)


def test_parameters_and_errors_can_be_pickled():
    params = SamplingParams(seed=-1, logit_bias={3: 1.0}, stop="end", logprob_token_ids=[1])
    assert pickle.loads(pickle.dumps(params)) == params
    error = pickle.loads(pickle.dumps(ParameterError("top_p", "must be in (0, 1]", 0.0)))
    assert type(error) is ParameterError
    assert (str(error), error.field, error.rule, error.value) == (
        "top_p: must be in (0, 1]; got 0.0",
        "top_p",
        "must be in (0, 1]",
        0.0,
    )
    other = pickle.loads(pickle.dumps(InputError("logits: must be [N, V]")))
    assert (type(other), str(other)) == (InputError, "logits: must be [N, V]")


def test_a_parameter_error_is_a_value_error_and_drawlots_own():
    assert issubclass(ParameterError, ValueError)
    assert issubclass(ParameterError, DrawlotError)


def test_a_long_value_is_cut_in_the_message():
    for length in (62, 63, 1000):
        shown = str(ParameterError("stop", "rule", "x" * length)).removeprefix("stop: rule; got ")
        assert len(shown) == 64
        assert shown.endswith("...") == (length > 62)


@pytest.mark.parametrize("kwargs", [{"temperature": 10**400}, {"logit_bias": {1: -(10**400)}}])
def test_an_integer_beyond_every_float_is_refused_in_words(kwargs):
    with pytest.raises(ParameterError, match=next(iter(kwargs))):
        SamplingParams(**kwargs)


def test_an_integer_beyond_every_string_is_refused_in_words():
    with pytest.raises(ParameterError, match="top_k"):
        SamplingParams(top_k=10**5000)


def test_a_checked_logit_bias_cannot_be_changed():
    params = SamplingParams(logit_bias={1: 2.0})
    with pytest.raises(TypeError):
        params.logit_bias[1] = 1000.0
