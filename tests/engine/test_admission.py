"""What is refused at the door, with the field, the rule and the value in the message."""

import pytest
from running import prompts

from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.errors import ParameterError
from drawlot.params import SamplingParams


@pytest.fixture(scope="module")
def engine(make_engine):
    return make_engine(max_model_len=40, num_kv_blocks=8, max_logprobs=2)


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], {}, r"prompt: must have 1 to 39 tokens .*; got '0 tokens'"),
        (prompts(40)[0], {}, r"prompt: must have 1 to 39 tokens .*; got '40 tokens'"),
        (prompts(41)[0], {"max_tokens": 0, "prompt_logprobs": 1}, r"prompt: must have 1 to 40 tokens"),
        (prompts(30)[0], {"max_tokens": 4}, r"prompt: with the output, must fit in the KV cache of 32 tokens"),
        ([1, 96], {}, r"prompt: must hold token ids in \[0, 96\); got 96"),
        ([1, -1], {}, r"prompt: must hold token ids in \[0, 96\); got -1"),
        ([1, 2.0], {}, r"prompt: must hold token ids .*; got 2.0"),
        ([True], {}, r"prompt: must hold token ids .*; got True"),
        ("\ud800", {}, r"prompt: must be valid Unicode"),
        ([1], {"stop_token_ids": [96]}, r"stop_token_ids: token ids must be in \[0, 96\); got 96"),
        ([1], {"logit_bias": {96: 1.0}}, r"logit_bias: token ids must be in \[0, 96\); got 96"),
        ([1], {"logprobs": 3}, r"logprobs: must be in \[0, 2\].*; got 3"),
        ([1], {"prompt_logprobs": -1}, r"prompt_logprobs: must be in \[0, 2\].*; got -1"),
        ([1], {"stop": "a", "detokenize": False}, r"stop: needs detokenize"),
    ],
)
def test_refusals(engine, prompt, params, message):
    with pytest.raises(ParameterError, match=message):
        engine.add_request("a", prompt, SamplingParams(**params))
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize(
    ("prompt", "labels", "message"),
    [
        ([], [1], "prompt: must have 1 to 40 tokens"),
        ([1], [], "label_token_ids: must hold 1 to 128 token ids; got '0 ids'"),
        ([1], [96], r"label_token_ids: must hold token ids in \[0, 96\); got 96"),
    ],
)
def test_scoring_refusals(engine, prompt, labels, message):
    with pytest.raises(ParameterError, match=message):
        engine.add_scoring_request("a", prompt, labels)
    assert not engine.has_unfinished_requests()


def test_longest_request_that_fits_runs(engine):
    engine.add_request("a", prompts(30)[0], SamplingParams(max_tokens=3))
    while engine.has_unfinished_requests():
        outputs = engine.step()
    assert len(outputs[0].outputs[0].token_ids) == 3


def test_max_model_len_beyond_the_model(model_folder):
    with pytest.raises(ParameterError, match="max_model_len: must be at most 96; got 97"):
        Engine(EngineArgs(model=model_folder("llama"), tokenizer="tiny", max_model_len=97))


def test_device_that_is_not_there(model_folder):
    with pytest.raises(ParameterError, match="device: must exist"):
        Engine(EngineArgs(model=model_folder("llama"), tokenizer="tiny", device="cuda:7"))
