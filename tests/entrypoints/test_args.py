import dataclasses
from pathlib import Path

import pytest

from drawlot.engine.args import EngineArgs
from drawlot.errors import ParameterError

FIELDS = {field.name: field for field in dataclasses.fields(EngineArgs)}


def test_defaults_are_valid():
    args = EngineArgs()
    assert args.model == "tiny"
    assert args.logprobs_mode == "raw_logprobs"
    assert args.max_logprobs == 20


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs: must be >= 1; got 0"),
        ({"max_num_seqs": True}, "max_num_seqs: must be an integer; got True"),
        ({"max_num_seqs": None}, "max_num_seqs: must be an integer; got None"),
        ({"max_model_len": 0}, "max_model_len: must be >= 1; got 0"),
        ({"max_logprobs": -2}, "max_logprobs: must be >= -1; got -2"),
        ({"seed": 2**63}, "seed: must fit in int64; got 9223372036854775808"),
        ({"dtype": "fp8"}, "dtype: must be one of auto, float32, bfloat16, float16; got 'fp8'"),
        ({"device": "cuda:x"}, "device: must be auto, cpu, cuda or cuda:N; got 'cuda:x'"),
        ({"model": ""}, "model: must be a non-empty string; got ''"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching: must be True or False; got 1"),
        ({"max_num_seq": 4}, "max_num_seq: is not an engine argument (the nearest is max_num_seqs); got 4"),
        ({"temperature": 1}, "temperature: is not an engine argument"),
    ],
)
def test_errors_name_field_rule_and_value(given, message):
    with pytest.raises(ParameterError) as raised:
        EngineArgs.from_kwargs(given)
    assert str(raised.value).startswith(message)


def test_boundary_values_are_accepted():
    args = EngineArgs(seed=-(2**63), max_logprobs=-1, max_num_seqs=1, max_model_len=None, device="cuda:1")
    assert args.seed == -(2**63)


def test_a_path_is_a_model():
    assert EngineArgs(model=Path("some") / "folder").model == str(Path("some") / "folder")


def test_every_field_has_a_help_text_that_ends_like_a_sentence():
    for field in FIELDS.values():
        assert field.metadata["help"].endswith("."), field.name


def test_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        EngineArgs().model = "other"
