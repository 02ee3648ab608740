"""`drawlot bench sampler` on a CPU: who is compared with whom, and what keeps wrong tokens from being timed."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from benchmark_gate import CPU, draws, gate
from safetensors.torch import save_file

from drawlot import LogprobsTensors, Sampler
from drawlot.entrypoints.cli import main
from drawlot.entrypoints.sampler_benchmark import Case, benchmark, grid, read_logits, svg, timing, workload
from drawlot.entrypoints.sampler_benchmark.cases import DTYPES
from drawlot.entrypoints.sampler_benchmark.distributions import DISTRIBUTIONS
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES, row_params
from drawlot.entrypoints.sampler_benchmark.oracle import Oracle
from drawlot.entrypoints.sampler_benchmark.providers import PROVIDERS, Drawn
from drawlot.errors import InputError, ParameterError
from drawlot.kernels.reference.filters import kept_set

ON_CPU = ["drawlot-torch", "torch"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Two bursts of one call, on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(timing, "BURSTS", 2)
    monkeypatch.setattr(timing, "BURST_SECONDS", 1e-9)


def test_every_mix_and_distribution_is_timed_behind_the_gate():
    cases = grid([8], [1000], mixes=list(MIXES)) + grid([3], [1000], ["bfloat16"], distributions=list(DISTRIBUTIONS))
    told = []
    record = benchmark(cases, ON_CPU, progress=told.append)
    json.dumps(record, allow_nan=False)
    assert len(told) == len(record["results"]) == len(cases)
    for case, result in zip(cases, record["results"]):
        assert result["case"]["mix"] == case.mix
        assert result["failed"] == result["not_run"] == {}
        assert result["bytes"] == case.rows * 1000 * (4 if case.dtype == "float32" else 2)
        assert list(result["providers"]) == ON_CPU
        for each in result["providers"].values():
            assert each["launch"] == "eager"
            assert not each["token_alone"]
            assert each["us"] == pytest.approx(np.median(each["bursts_us"]))
            assert each["share_of_floor"] == pytest.approx(result["floor_us"] / each["us"])


def test_providers_that_cannot_run_say_why(monkeypatch):
    pytest.importorskip("triton")  # now, and not without the variable
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    [result] = benchmark([Case(2, 300)])["results"]
    assert result["not_run"]["flashinfer"] == result["not_run"]["flashinfer-cake"] == "needs a GPU"
    assert result["not_run"]["multipass"] == "needs a GPU, or TRITON_INTERPRET=1"
    assert "needs a CUDA device" in result["not_run"]["drawlot-triton"]
    assert list(result["providers"]) == ON_CPU


@pytest.mark.parametrize("case", [Case(1, 300), Case(70, 300)])
def test_enough_rows_are_checked(case):
    oracle = gate(case).oracle
    assert len(oracle.buffers) * case.rows >= min(64, 2 * case.rows)
    assert len(oracle.kept_rows) == min(32, 2 * case.rows)


def shifted(drawn):
    return drawn._replace(token_ids=(drawn.token_ids + 1) % 300)


@pytest.mark.parametrize("name", ON_CPU)
def test_wrong_tokens_are_not_timed(name, monkeypatch):
    provider = PROVIDERS[name]
    right = type(provider).call

    def wrong(self, work):
        call = right(self, work)
        return lambda logits: shifted(call(logits))

    monkeypatch.setattr(type(provider), "call", wrong)
    [result] = benchmark([Case(8, 300)], [name])["results"]
    assert result["providers"] == {}
    assert result["failed"][name]


def test_a_backend_is_compared_token_by_token_and_logprob_by_logprob():
    checked = gate(Case(8, 300, mix="top20"))
    right = draws(PROVIDERS["drawlot-torch"], checked)
    assert checked.same_tokens("x", right) == []
    [first, *others] = right
    tokens = first.token_ids.clone()
    tokens[5] = (tokens[5] + 1) % 300
    assert any("row 5" in line for line in checked.same_tokens("x", [Drawn(tokens, first.logprobs), *others]))
    assert checked.same_tokens("x", [Drawn(first.token_ids + 1, first.logprobs), *others])
    for change in (
        {"logprobs": first.logprobs.logprobs * (1 + 1e-5)},
        {"selected_token_ranks": first.logprobs.selected_token_ranks + 1},
        {"logprob_token_ids": first.logprobs.logprob_token_ids.flip(1)},
    ):
        assert checked.same_tokens("x", [Drawn(first.token_ids, first.logprobs._replace(**change)), *others])
    assert checked.same_tokens("x", [Drawn(first.token_ids, None), *others])
    assert checked.excused == []


def test_a_near_tie_is_excused_and_told(monkeypatch):
    checked = gate(Case(8, 300))
    right = draws(PROVIDERS["drawlot-torch"], checked)
    tokens = right[0].token_ids.clone()
    tokens[0] = (tokens[0] + 1) % 300
    reference = Oracle.reference

    def close(self, buffer, row):
        return reference(self, buffer, row)._replace(margin=torch.tensor([2.0**-19]))

    monkeypatch.setattr(Oracle, "reference", close)
    # Its logprob is another token's, which is not what is tested here.
    assert checked.same_tokens("x", [Drawn(tokens, right[0].logprobs), *right[1:]]) == []
    assert len(checked.excused) == 1
    assert checked.excused[0].startswith("buffer 0, row 0: x ")


def test_the_torch_backend_itself_is_held_against_the_reference(monkeypatch):
    checked = gate(Case(8, 300))
    checked.oracle.expected = [shifted(drawn) for drawn in checked.oracle.expected]
    wrong = checked.same_tokens("x", checked.oracle.expected)
    assert [line for line in wrong if "reference" in line]


def test_others_may_draw_what_is_kept_and_nothing_else():
    checked = gate(Case(2, 300, mix="k50p90", distribution="normal1"))
    kept = checked.oracle.kept_rows
    batches = len(checked.oracle.buffers)

    def drawn(rank):
        ids = [
            [
                row.values.argsort()[::-1][rank if rank >= 0 else len(row.kept)]
                for (b, _), row in kept.items()
                if b == at
            ]
            for at in range(batches)
        ]
        return [Drawn(torch.tensor(np.array(row)), None) for row in ids]

    assert checked.from_kept_set("x", drawn(0)) == []
    assert len(checked.from_kept_set("x", drawn(-1))) == len(kept)
    outside = [Drawn(torch.full((2,), token), None) for token in (-1, 300)[:batches]]
    assert len(checked.from_kept_set("x", outside)) == len(kept)
    assert checked.excused == []


def test_others_may_break_ties_as_they_like():
    checked = gate(Case(2, 300, distribution="constant"))
    last = [Drawn(torch.full((2,), 299), None) for _ in checked.oracle.buffers]
    assert checked.from_kept_set("x", last) == []
    assert len(checked.excused) == len(checked.oracle.kept_rows)


def test_logprobs_of_others_are_checked():
    checked = gate(Case(4, 300))
    right = draws(PROVIDERS["torch"], checked)
    assert checked.from_kept_set("x", right) == []
    for error in (1e-2, float("nan")):
        wrong = [
            Drawn(each.token_ids, LogprobsTensors(each.logprobs[0], each.logprobs[1] - error, each.logprobs[2]))
            for each in right
        ]
        assert len(checked.from_kept_set("x", wrong)) == len(checked.oracle.kept_rows)


def test_a_grammar_lets_rows_draw_nine_tokens_of_ten():
    work = workload.make(Case(16, 1003, mix="grammar"), CPU)
    shifts = torch.arange(32, dtype=torch.int32)
    bits = (work.bitmask.unsqueeze(2) >> shifts).bitwise_and(1).flatten(1).bool()
    assert torch.equal(bits[:, :1003], work.allowed)
    assert not bits[:, 1003:].any()
    assert work.allowed.float().mean() == pytest.approx(0.9, abs=0.01)
    assert work.allowed[:, 0].all()
    assert workload.make(Case(16, 1003), CPU).bitmask is None


def test_who_forgets_the_grammar_is_not_timed(multipass):
    case = Case(32, 300, mix="grammar")
    assert multipass.why_not(workload.make(case, CPU)) == "leaves a grammar's bitmask out"
    checked = gate(case)
    for name in ON_CPU:
        assert checked.from_kept_set(name, draws(PROVIDERS[name], checked)) == []
    forgetful = workload.make(case, CPU)
    forgetful.allowed = forgetful.bitmask = None
    for name in ON_CPU:
        call = PROVIDERS[name].call(forgetful)
        wrong = checked.from_kept_set(name, [call(logits) for logits in checked.oracle.buffers])
        # A token that is not allowed, and logprobs relative to those that are.
        assert any("is not in the kept set" in line for line in wrong)
        assert any("has the logprob" in line for line in wrong)


def test_rows_per_path_are_shares_of_what_the_sampler_says(monkeypatch):
    monkeypatch.setattr(Sampler, "row_paths", lambda sampler, num_rows: ["read again"] + ["list"] * (num_rows - 1))
    [result] = benchmark([Case(4, 300)], ON_CPU)["results"]
    shares = result["providers"]["drawlot-torch"]["rows_per_path"]
    assert list(shares.items()) == [("list", 0.75), ("read again", 0.25)]
    assert result["providers"]["torch"]["rows_per_path"] is None


def test_a_backend_that_tells_no_paths_has_none():
    [result] = benchmark([Case(4, 300)], ON_CPU)["results"]
    assert result["providers"]["drawlot-torch"]["rows_per_path"] is None


def test_rows_have_seeds_of_their_own_and_ids_are_spread():
    params = row_params("ids128", 3, 128_256)
    assert len({row.seed for row in params}) == 3
    ids = params[0].logprob_token_ids
    assert len(ids) == 128
    assert max(ids) > 127_000
    assert len(row_params("ids128", 1, 5)[0].logprob_token_ids) == 5


def test_peaked_rows_are_peaked():
    logits = DISTRIBUTIONS["peaked"](200, 32_000, torch.Generator().manual_seed(0))
    sizes = [len(kept_set(row.numpy(), 1.0, 0, 0.95, 0.0).ids) for row in logits]
    assert np.median(sizes) < 100 < max(sizes) < 32_000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rows": 0}, "rows"),
        ({"vocab_size": 0}, "vocab"),
        ({"dtype": "int8"}, "dtype"),
        ({"mix": "x"}, "mix"),
        ({"distribution": "x"}, "distribution"),
    ],
)
def test_cases_are_checked(wrong, named):
    with pytest.raises(ParameterError, match=named):
        Case(**{"rows": 1, **wrong})


def test_recorded_rows_are_taken_in_turn(tmp_path):
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    np.save(tmp_path / "rows.npy", rows.numpy())
    save_file({"logits": rows.bfloat16(), "other": rows}, tmp_path / "rows.safetensors")
    assert torch.equal(read_logits(tmp_path / "rows.npy"), rows)
    assert torch.equal(read_logits(tmp_path / "rows.safetensors"), rows.bfloat16())
    work = workload.make(Case(2, 50, distribution="recorded"), CPU, rows)
    assert torch.equal(torch.cat(work.buffers), rows[[0, 1, 2, 0]])
    for name, array in (("flat.npy", rows[0].numpy()), ("double.npy", rows.double().numpy()), ("none.txt", None)):
        if array is not None:
            np.save(tmp_path / name, array)
        with pytest.raises(InputError, match=name):
            read_logits(tmp_path / name)


def run(capsys, *arguments):
    code = main(["bench", "sampler", "--rows", "2", *arguments])
    return code, *capsys.readouterr()


def test_the_command_writes_a_table_json_and_a_plot(tmp_path, capsys):
    options = "--vocab", "300,400", "--mix", "k50p90,mixed", "--providers", "drawlot-torch,torch,flashinfer"
    code, out, err = run(capsys, *options, "-o", str(tmp_path / "out.json"))
    assert (code, err) == (0, "")
    assert "2 rows x 400 float32, mixed, normal3" in out
    assert "of the floor" in out
    assert "rows per path" not in out
    assert "not run: flashinfer: needs a GPU" in out
    record = json.loads((tmp_path / "out.json").read_text())
    assert len(record["results"]) == 4
    assert record["environment"]["versions"]["torch"] == torch.__version__
    tree = ElementTree.parse(tmp_path / "out.svg")
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("drawlot-torch") == 4
    bars = [
        float(bar.get("width")) for bar in tree.iter("{http://www.w3.org/2000/svg}rect") if bar.get("fill") != "#ffffff"
    ]
    assert len(bars) == 8
    assert all(width > 0 for width in bars)


def test_the_help_knows_all_names(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    words = re.findall(r"[\w-]+", out)
    assert {*PROVIDERS, *MIXES, *DISTRIBUTIONS, *DTYPES} <= set(words)


def test_the_command_writes_json_to_stdout(capsys):
    code, out, err = run(capsys, "--vocab", "300", "--providers", "torch", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["results"][0]["case"]["rows"] == 2


def test_the_command_reads_recorded_rows(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(0, 3, (5, 300)).astype(np.float32))
    code, out, err = run(capsys, "--logits", str(tmp_path / "rows.npy"), "--providers", "drawlot-torch")
    assert (code, err) == (0, "")
    assert "2 rows x 300 float32, k50p90, recorded" in out


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--mix", "x"], 2, "drawlot: mix: must be one of k50p90"),
        (["--vocab", "x"], 2, "drawlot: --vocab must be numbers separated by commas"),
        (["--providers", "x"], 2, "drawlot: providers: must be among drawlot-triton"),
        (["--logits", "a.npy", "--vocab", "5"], 2, "drawlot: --logits brings its own"),
        (["--logits", "no/such.npy"], 1, "drawlot: no/such.npy: No such file or directory"),
        (["-o", "out.svg"], 2, "drawlot: --output must end in .json"),
        (["--graph"], 2, "drawlot: graph: needs a GPU"),
    ],
)
def test_a_mistake_is_one_line(arguments, code, line, capsys):
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_failure_is_told_and_ends_with_1(capsys, monkeypatch):
    def broken(self, work):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(type(PROVIDERS["torch"]), "call", broken)
    code, out, err = run(capsys, "--vocab", "300", "--providers", "torch,drawlot-torch")
    assert (code, err) == (1, "drawlot: failed, and not timed: torch\n")
    assert "FAILED, not timed: torch: RuntimeError: out of luck" in out
    assert "drawlot-torch" in out


def test_a_plot_breaks_off_long_bars():
    bar = {"launch": "graph", "why_eager": None, "token_alone": True, "rows_per_path": None}
    record = benchmark([Case(2, 300)], ["torch"])
    record["results"][0]["providers"] = {"a <b>": {"us": 1.0, **bar}, "c": {"us": 1000.0, **bar}}
    drawn = svg(record)
    assert drawn.count('class="break"') == 1
    assert "a &lt;b&gt;" in drawn
