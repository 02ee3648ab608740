"""`drawlot bench spec`: its cases, its text, and one small run of everything."""

import json
from xml.etree import ElementTree

import pytest
import transformers

from drawlot.assets import resolve
from drawlot.entrypoints.cli import main
from drawlot.entrypoints.spec_benchmark import Case, Work, benchmark, grid
from drawlot.entrypoints.spec_benchmark.held_out import FILES, HeldOut, held_out, prompts_from
from drawlot.errors import InputError, ParameterError


@pytest.fixture(scope="module")
def tokenizer():
    return transformers.AutoTokenizer.from_pretrained(resolve("tiny"))


def test_prompts_begin_lines_of_the_files_in_turn(tokenizer):
    files = [held_out(name) for name in FILES]
    prompts = prompts_from(files, tokenizer, 20, 40)
    assert [len(prompt) for prompt in prompts] == [40] * 20
    assert len(set(map(tuple, prompts))) == 20
    for index, prompt in enumerate(prompts):
        text = files[index % len(files)].text
        start = text.find(tokenizer.decode(prompt))
        assert start == 0 or text[start - 1] == "\n"


def test_files_that_cannot_be_used(tokenizer, monkeypatch):
    with pytest.raises(InputError, match=r"argparse.py: not one of the files that the embedded models"):
        held_out("argparse.py")
    with pytest.raises(InputError, match=r"short.py: too short for 1 prompts of 40 tokens"):
        prompts_from([HeldOut("short.py", "x = 1\n", True)], tokenizer, 1, 40)
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    with pytest.raises(InputError, match="this Python's standard library has no such file"):
        held_out("codecs.py")


def test_grid():
    cases = grid(["ngram", "eagle"], ["block", "coupled"], [0, 0.5], [2, 3])
    assert len(cases) == 4 + 8
    assert {case.verification for case in cases if case.temperature == 0} == {"block"}
    assert cases[0] == Case("ngram", "block", 0, 2)
    assert (cases[0].name, cases[-1].name) == ("ngram", "eagle coupled")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["medusa"], ["block"], [0], [1]), "speculators: must be among ngram, draft_model, eagle; got 'medusa'"),
        ((["ngram"], ["synthetic"], [0], [1]), "verifications: must be among standard, block, coupled"),
        ((["ngram"], ["block"], [-1], [1]), "temperatures: must be finite and >= 0; got -1"),
        ((["ngram"], ["block"], [0], [0]), "num_speculative_tokens: must be in [1, 255]; got 0"),
    ],
)
def test_bad_grids(arguments, message):
    with pytest.raises(ParameterError) as raised:
        grid(*arguments)
    assert message in str(raised.value)


def test_assistance_takes_one_prompt_at_a_time():
    with pytest.raises(ParameterError, match="needs together=1"):
        benchmark([], Work(together=2), baseline=True)


def test_a_run(tmp_path, capsys):
    file = tmp_path / "record.json"
    sizes = ["--drafts=3", "--prompts=2", "--prompt-tokens=24", "--new-tokens=12", "--repeats=1"]
    chosen = ["--verifications=coupled", "--files=codecs.py,functools.py", "--device=cpu"]
    assert main(["bench", "spec", *sizes, *chosen, "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    record = json.loads(file.read_text())
    ours = [each for each in record["results"] if "speculator" in each]
    rivals = [each for each in record["results"] if "speculator" not in each]
    assert [(each["speculator"], each["temperature"]) for each in ours] == [
        (speculator, temperature) for temperature in (0, 1) for speculator in ("ngram", "draft_model", "eagle")
    ]
    assert len(rivals) == 2 * 3
    for each in ours:
        # The gate: the very tokens that were timed.
        assert each["prompts_with_equal_tokens"] == 2
        assert each["accepted"] <= each["reached"] <= each["drafted"]
        assert 0 <= each["expected_accepted"] <= each["reached"]
        assert sum(each["time"].values()) == pytest.approx(1)
        if each["temperature"] == 0:
            assert each["expected_accepted"] == pytest.approx(each["accepted"])
    for each in rivals:
        assert each["prompts_with_equal_tokens"] == 2 or each["temperature"] == 1
        assert (each["emitted_per_step"] == 1) == (each["num_drafts"] == 0) or each["name"].endswith("lookup")
    assert max(each["emitted_per_step"] for each in ours) > 1.5
    for name in ("eagle coupled", "transformers draft model", "temperature 1", "codecs.py"):
        assert name in out
    assert "[1/12]" not in err
    plot = ElementTree.fromstring(file.with_suffix(".svg").read_text())
    assert len(plot.findall(".//{*}polyline")) == 2 * 10


def test_the_output_has_a_name_for_both_files(capsys):
    assert main(["bench", "spec", "-o", "record.txt"]) == 2
    assert capsys.readouterr().err == "drawlot: --output must end in .json; got record.txt\n"
    assert main(["bench", "spec", "--drafts", "x"]) == 2
    assert "--drafts must be numbers separated by commas; got 'x'" in capsys.readouterr().err
    assert main(["bench", "spec", "--temperatures", "hot"]) == 2
    assert "--temperatures must be numbers separated by commas; got 'hot'" in capsys.readouterr().err
