"""What cannot work fails at start, with one line."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import transformers

from drawlot.engine.args import EngineArgs
from drawlot.engine.speculative_config import (
    DRAFT_SAMPLE_METHODS,
    METHODS,
    REJECTION_SAMPLE_METHODS,
    SpeculativeConfig,
)
from drawlot.entrypoints.llm import LLM
from drawlot.errors import ModelError, ParameterError

SYNTHETIC = {"method": "ngram", "num_speculative_tokens": 2, "rejection_sample_method": "synthetic"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "speculative_config: must be a JSON object"),
        ([1], "speculative_config: must be a mapping"),
        ({}, "speculative_config.method: is needed: one of ngram, draft_model, eagle"),
        ({"method": "medusa"}, "speculative_config.method: must be one of ngram, draft_model, eagle; got 'medusa'"),
        ({"method": "ngram", "modl": "x"}, "modl: is not a key of speculative_config (the nearest is model)"),
        ({"method": "ngram", "model": "x"}, "speculative_config.model: has no use with ngram"),
        ({"method": "ngram", "draft_sample_method": "greedy"}, "draft_sample_method: has no use with ngram"),
        ({"method": "ngram", "draft_filters": False}, "draft_filters: has no use with ngram"),
        ({"method": "ngram", "prompt_lookup_min": 5}, "prompt_lookup_max: must be >= prompt_lookup_min (5); got 4"),
        ({"method": "eagle", "prompt_lookup_max": 5}, "prompt_lookup_max: has no use with eagle"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens: must be in [1, 255]; got 0"),
        ({"method": "ngram", "num_speculative_tokens": 2.5}, "num_speculative_tokens: must be an integer"),
        ({"method": "ngram", "rejection_sample_method": "typical"}, "rejection_sample_method: must be one of standard"),
        ({"method": "draft_model", "draft_filters": 1}, "draft_filters: must be True or False; got 1"),
        (
            {"method": "draft_model", "draft_sample_method": "greedy", "draft_filters": True},
            "draft_filters: has no use with greedy drafts",
        ),
        (SYNTHETIC, "synthetic_acceptance_rates: must be 2 numbers in [0, 1], none above the one before it; got None"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5, 0.6]}, "synthetic_acceptance_rates: must be 2 numbers"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5, float("nan")]}, "synthetic_acceptance_rates: must be 2"),
        (SYNTHETIC | {"synthetic_acceptance_rates": [0.5]}, "synthetic_acceptance_rates: must be 2 numbers"),
        (SYNTHETIC | {"synthetic_acceptance_rates": "ab"}, "synthetic_acceptance_rates: must be 2 numbers"),
        (
            {"method": "ngram", "synthetic_acceptance_rates": [1, 1, 1, 1]},
            "synthetic_acceptance_rates: has no use with standard",
        ),
    ],
)
def test_bad_values(config, message):
    with pytest.raises(ParameterError) as raised:
        EngineArgs(speculative_config=config)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_defaults_and_text():
    config = EngineArgs(speculative_config=json.dumps({"method": "draft_model"})).speculative_config
    assert config == SpeculativeConfig(
        method="draft_model",
        model="tiny-draft",
        num_speculative_tokens=4,
        rejection_sample_method="standard",
        draft_sample_method="probabilistic",
        draft_filters=False,
    )
    assert SpeculativeConfig.of({"method": "eagle"}).model == "tiny-eagle"
    ngram = SpeculativeConfig.of({"method": "ngram"})
    assert (ngram.model, ngram.prompt_lookup_min, ngram.prompt_lookup_max) == (None, 2, 4)
    assert SpeculativeConfig.of(ngram) is ngram


def test_the_page_names_every_key_and_choice():
    page = Path(__file__).parents[2].joinpath("docs", "speculative_decoding.md").read_text()
    for name in [each.name for each in fields(SpeculativeConfig)]:
        assert f"`{name}`" in page
    for name in (*METHODS, *REJECTION_SAMPLE_METHODS, *DRAFT_SAMPLE_METHODS):
        assert f"`{name}`" in page


@pytest.mark.parametrize(
    ("args", "count", "message"),
    [
        ({"max_model_len": 5}, 5, "num_speculative_tokens: must be less than max_model_len (5); got 5"),
        ({"max_num_batched_tokens": 4}, 4, "num_speculative_tokens: must be less than max_num_batched_tokens (4)"),
        ({}, 64, "num_speculative_tokens: must be less than max_model_len (64)"),
    ],
)
def test_more_drafts_than_fit(engine_of, args, count, message):
    with pytest.raises(ParameterError) as raised:
        engine_of({"method": "ngram", "num_speculative_tokens": count}, **args)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocab_size": 9}, "must have the target's 8 logits, it has 9"),
        ({"max_position_embeddings": 32}, "must have a context of max_model_len (64) tokens, it has 32"),
        ({"tokenizer": True}, "must have the target's tokenizer; its tokens differ"),
    ],
)
def test_a_drafter_that_does_not_fit(engine_of, folder, tmp_path, change, message):
    config = transformers.AutoConfig.from_pretrained(folder / "draft")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "draft")
    if change.pop("tokenizer", False):
        tokenizer.add_tokens(["<new>"])
    config.update(change)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ParameterError) as raised:
        engine_of({"method": "draft_model", "model": str(tmp_path)})
    assert str(raised.value).startswith(f"speculative_config.model: {message}")


def test_a_drafter_that_is_not_there(engine_of, folder):
    with pytest.raises(ModelError, match="no such folder"):
        engine_of({"method": "draft_model", "model": "./nowhere"})
    with pytest.raises(ModelError, match="no EAGLE head"):
        engine_of({"method": "eagle", "model": str(folder / "nowhere")})


def test_a_head_of_another_target(folder):
    config = {"method": "eagle", "model": str(folder / "head")}
    with pytest.raises(ModelError, match="trained for another target"):
        LLM(str(folder / "draft"), speculative_config=config)


def test_synthetic_gives_no_scores(engine_of):
    engine = engine_of(SYNTHETIC | {"synthetic_acceptance_rates": [0.5, 0.2]})
    with pytest.raises(ParameterError, match="synthetic, which is for benchmarks, gives no scores"):
        engine.add_scoring_request("a", [1, 2], [3])


def test_use_speculation_is_checked(folder):
    llm = LLM(str(folder / "target"), speculative_config={"method": "ngram"})
    for value, rule in ((1, "must be True or False"), ([True], "one for each prompt"), ([0, 1], "must be True")):
        with pytest.raises(ParameterError, match=rule):
            llm.generate([[1], [2]], use_speculation=value)
