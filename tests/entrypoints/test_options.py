import dataclasses
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from drawlot.engine.args import EngineArgs
from drawlot.entrypoints.cli.options import with_options
from drawlot.entrypoints.cli.score import spread
from drawlot.params import SamplingParams


@pytest.fixture
def parse():
    """Parses a command line into what the command receives."""
    app, received = typer.Typer(rich_markup_mode=None), {}

    @app.command()
    @with_options(exclude=("max_logprobs",), defaults={"max_tokens": 99})
    def command(
        texts: Annotated[list[str] | None, typer.Argument()] = None,
        *,
        as_json: Annotated[bool, typer.Option("--json")] = False,
        params: SamplingParams,
        engine_args: EngineArgs,
    ) -> None:
        received.update(texts=texts, as_json=as_json, params=params, engine_args=engine_args)

    def run(*arguments, **env):
        received.clear()
        result = CliRunner().invoke(app, list(arguments), env=env)
        return received or result.output

    return run


def test_nothing_given_is_the_defaults(parse):
    received = parse()
    assert received["params"] == SamplingParams(max_tokens=99)
    assert received["engine_args"] == EngineArgs()


def test_every_field_is_an_option_once(parse):
    help = parse("--help")
    names = {field.name for group in (SamplingParams, EngineArgs) for field in dataclasses.fields(group)}
    for name in names - {"max_logprobs"}:
        assert help.count(f"  --{name.replace('_', '-')} ") == 1, name
    assert "--max-logprobs" not in help


def test_values_of_every_form(parse):
    received = parse(
        "a", "b", "--temperature", "0.5", "--seed", "-3", "--logit-bias", "7=-1.5", "--logit-bias", "8=2",
        "--stop", "\n", "--stop", "end", "--stop-token-ids", "1, 2", "--allowed-token-ids", "4",
        "--ignore-eos", "--no-enable-prefix-caching", "--dtype", "bfloat16", "--num-kv-blocks", "5", "--json",
    )  # fmt: skip
    assert received["texts"] == ["a", "b"]
    assert received["as_json"]
    assert received["params"] == SamplingParams(
        temperature=0.5,
        seed=-3,
        logit_bias={7: -1.5, 8: 2.0},
        stop=["\n", "end"],
        stop_token_ids=[1, 2],
        allowed_token_ids=[4],
        ignore_eos=True,
        max_tokens=99,
    )
    # --seed is the request's: a name belongs to the first who has it.
    assert received["engine_args"] == EngineArgs(enable_prefix_caching=False, dtype="bfloat16", num_kv_blocks=5)


def test_the_command_line_wins_over_the_environment_and_that_over_defaults(parse):
    env = {"DRAWLOT_TOP_P": "0.5", "DRAWLOT_MAX_NUM_SEQS": "3", "DRAWLOT_JSON": "1", "DRAWLOT_STOP": "x y"}
    received = parse("--top-p", "0.75", **env)
    assert received["params"] == SamplingParams(top_p=0.75, stop=["x", "y"], max_tokens=99)
    assert received["engine_args"].max_num_seqs == 3
    assert received["as_json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stop-token-ids", "1,b"], "'--stop-token-ids': must be token ids separated by commas; got '1,b'"),
        (["--allowed-token-ids", ""], "'--allowed-token-ids': must be token ids"),
        (["--logit-bias", "3"], "'--logit-bias': must be ID=VALUE; got '3'"),
        (["--max-num-seqs", "x"], "'--max-num-seqs': Input should be a valid integer"),
    ],
)
def test_errors_name_the_option(parse, arguments, message):
    assert message in parse(*arguments)


def test_spread_repeats_an_option_before_each_of_its_values():
    assert spread(["--items", "a", "b", "--labels", "-x", "y", "-o", "f"], ("--items", "--labels")) == [
        "--items", "a", "--items", "b", "--labels", "-x", "--labels", "y", "-o", "f",
    ]  # fmt: skip
    assert spread(["--items=a", "--query", "q"], ("--items",)) == ["--items=a", "--query", "q"]
