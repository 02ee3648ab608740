import io
import json
import subprocess
import sys

import pytest

from drawlot.entrypoints.cli import main


@pytest.fixture
def run(fake_engine, monkeypatch, capsys):
    """Runs a command line on the fake engine: (exit code, stdout, stderr)."""

    def call(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main(arguments)
        return code, *capsys.readouterr()

    return call


def records(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def test_help_is_light():
    # The command line's own imports: a bare package in place of drawlot's __init__.
    code = (
        "import sys, types, importlib.util\n"
        "package = types.ModuleType('drawlot')\n"
        "package.__path__ = importlib.util.find_spec('drawlot').submodule_search_locations\n"
        "sys.modules['drawlot'] = package\n"
        "from drawlot.entrypoints.cli import main; code = main(['generate', '--help'])\n"
        "print(code, {'torch', 'transformers', 'numpy', 'rich', 'tqdm'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "0 set()"
    assert "--max-tokens" in done.stdout


def test_no_arguments_is_help(run):
    assert run() == run("--help")


def test_version(run):
    assert run("--version") == (0, "0.1.0\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["nope"], 2, "drawlot: No such command 'nope'."),
        (["generate", "a", "--nope"], 2, "drawlot generate: No such option: --nope"),
        (["generate", "a", "--top-p", "2"], 2, "drawlot: top_p: must be in (0, 1]; got 2.0"),
        (["generate", "a", "--dtype", "fp8"], 2, "drawlot: dtype: must be one of auto, float32, bfloat16, float16"),
        (["generate", "a", "--max-num-seqs", "x"], 2, "drawlot generate: Invalid value for '--max-num-seqs'"),
        (["generate", "a", "--no-detokenize"], 2, "drawlot: --no-detokenize leaves no text to write; it needs --json"),
        (["generate", "a", "--stop-token-ids", "999"], 2, "drawlot: stop_token_ids: token ids must be in [0, 256)"),
        (["generate", "a", ""], 2, "drawlot: prompts[1]: prompt: must not be empty"),
        (["generate", "a", "--json", "--echo"], 2, "drawlot: --echo and --no-echo have no use with --json"),
        (["generate", "--file", "no/such/file"], 1, "drawlot: no/such/file: No such file or directory"),
        (["generate", "a", "-o", "no/such/file"], 1, "drawlot: no/such/file: No such file or directory"),
        (["chat", "hello"], 1, "drawlot: the model has no chat template"),
        (["score", "--query", "q", "--items", "a"], 2, "drawlot: give either --labels or --label-token-ids"),
        (["score", "--query", "q", "--items", "a", "--labels", "xy"], 2, "drawlot: labels: must be one token each"),
        (["score", "--items", "a", "--labels", "x"], 2, "drawlot score: Missing option '--query'"),
        (["score", "--query", "q", "--labels", "x"], 2, "drawlot: items: must be a list that is not empty"),
        (["bench"], 2, "drawlot bench: Missing command."),
    ],
)
def test_a_mistake_is_one_line(run, arguments, code, line):
    got, out, err = run(*arguments)
    assert (got, out) == (code, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_generate_writes_the_text_alone(run):
    assert run("generate", "abc") == (0, "abc\n", "")
    assert run("generate", "abc", "--echo") == (0, "abcabc\n", "")


def test_generate_writes_texts_in_order(run):
    code, out, _ = run("generate", "long", "x", "--n", "2", "--max-num-seqs", "1")
    assert code == 0
    assert out == (
        "==> prompt 1, choice 1 <==\nlong\n==> prompt 1, choice 2 <==\nlonglong\n"
        "==> prompt 2, choice 1 <==\nx\n==> prompt 2, choice 2 <==\nxx\n"
    )


def test_generate_reads_stdin(run):
    assert run("generate", stdin="naïve\n\n".encode())[1] == "naïve\n\n"
    assert run("generate", "-", stdin=b"piped")[1] == "piped\n"
    code, out, err = run("generate", stdin=b"\xff")
    assert (code, out, err) == (2, "", "drawlot: stdin: must be UTF-8; got b'\\xff'\n")


def test_generate_reads_and_writes_files(run, tmp_path):
    (tmp_path / "prompts").write_text("one\ntwo\n")
    code, out, err = run("generate", "--file", str(tmp_path / "prompts"), "--json", "-o", str(tmp_path / "out"))
    assert (code, out, err) == (0, "", "")
    assert [record["prompt"] for record in records((tmp_path / "out").read_text())] == ["one", "two"]


def test_generate_json(run):
    code, out, err = run("generate", "ab", "c", "--json", "--logprobs", "1", "--max-tokens", "1")
    assert (code, err) == (0, "")
    first, second = records(out)
    assert first == {
        "prompt": "ab",
        "prompt_token_ids": [97, 98],
        "outputs": [
            {
                "index": 0,
                "text": "a",
                "token_ids": [97],
                "finish_reason": "length",
                "stop_reason": None,
                "logprobs": [
                    [
                        {"token_id": 97, "logprob": -1.5, "rank": 1, "decoded_token": "a"},
                        {"token_id": 0, "logprob": None, "rank": 2, "decoded_token": "\0"},
                    ]
                ],
            }
        ],
    }
    assert second["outputs"][0]["finish_reason"] == "stop"


def test_chat_keeps_the_conversation(run, monkeypatch):
    monkeypatch.setattr("fake_engine.FakeTokenizer.chat_template", "any")
    code, out, err = run("chat", "--system", "s", "--max-tokens", "40", stdin=b"a\nb\n")
    assert (code, err) == (0, "")
    assert out == "[system]s[user]a\n[system]s[user]a[assistant][system]s[use\n"
    assert records(run("chat", "hi", "--json")[1]) == [
        {"role": "assistant", "content": "[user]hi", "finish_reason": "stop"}
    ]


def test_score_writes_lines_or_json(run):
    code, out, err = run("score", "--query", "q", "--items", "a", "b c", "--labels", "x", "y")
    assert (code, err) == (0, "")
    header, *lines = [line.split("\t") for line in out.splitlines()]
    assert header == ["item", "x", "y"]
    assert [line[0] for line in lines] == ["a", "b c"]
    assert [sum(map(float, line[1:])) for line in lines] == pytest.approx([1, 1])
    code, out, _ = run("score", "--query", "q", "--label-token-ids", "3,4", "--json", stdin=b"a\nb\n")
    first, second = records(out)
    assert (first["item"], first["labels"], first["prompt_token_ids"]) == ("a", ["3", "4"], [1, ord("q"), ord("a")])
    assert sum(second["scores"]) == pytest.approx(1)


def test_info_json(run):
    code, out, err = run("info", "--json")
    [facts] = records(out)
    assert (code, err) == (0, "")
    assert facts["versions"]["drawlot"] == "0.1.0"
    assert facts["sampler_backends"]["torch"]["cpu"] == "runs"
    assert facts["embedded_models"]["tiny"]["parameters"] > 1e6
    assert facts["model"]["vocab_size"] == 4096


def test_a_closed_pipe_is_quiet():
    code = "import sys; from drawlot.entrypoints.cli import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 1


def test_a_text_that_an_error_ended_is_a_failure(run, monkeypatch):
    monkeypatch.setattr("fake_engine.FakeEngine.bad_prompts", {"bad"})
    code, out, err = run("generate", "ok", "bad")
    assert (code, out) == (1, "==> prompt 1, choice 1 <==\nok\n==> prompt 2, choice 1 <==\n\n")
    assert err == "drawlot: prompt 2, choice 1: ended by an error (nonfinite), 1 in all\n"


def test_interrupt_is_quiet(run, monkeypatch):
    def interrupt(engine):
        raise KeyboardInterrupt

    monkeypatch.setattr("fake_engine.FakeEngine.step", interrupt)
    assert run("generate", "abc") == (130, "", "")


def test_a_mistake_ends_the_process_with_its_exit_code() -> None:
    command = [sys.executable, "-m", "drawlot", "generate", "hi", "--top-p", "7"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "drawlot: top_p: must be in (0, 1]; got 7.0\n"
