import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import cpu_sampler, cpu_timing
from benchmarks.cpu_cases import CASES, Workload, workload
from benchmarks.cpu_sampler import Target
from benchmarks.cpu_timing import Timing
from benchmarks.equality import differences
from drawlot import Sampler

ROOT = Path(__file__).parent.parent


@pytest.fixture
def quick(monkeypatch):
    """One import instead of five, one call instead of bursts."""
    monkeypatch.setattr(cpu_timing, "BURST_SECONDS", 0)
    import_seconds = cpu_sampler.import_seconds
    monkeypatch.setattr(cpu_sampler, "import_seconds", lambda: import_seconds(repeat=1))


def test_everything_runs_and_is_recorded(quick, tmp_path, capsys):
    threads = torch.get_num_threads()
    file = tmp_path / "record.json"
    code = cpu_sampler.main(["--rows=8", "--vocab=1024", "--rounds=1", f"--json={file}"])
    assert torch.get_num_threads() == threads
    record = json.loads(file.read_text())
    assert code == (0 if all(target["met"] for target in record["targets"]) else 1)
    assert {timing["threads"] for timing in record["timings"]} >= {1}
    assert {timing["case"] for timing in record["timings"]} == {case.name for case in CASES}
    assert len(record["targets"]) == 7 + len(CASES) + 1
    out = capsys.readouterr().out
    assert "verdict, with one thread" in out
    assert "all tokens equal the reference's" in out


def test_nothing_is_timed_when_tokens_differ(monkeypatch, capsys):
    drawlot = Workload.drawlot

    def wrong(work):
        out = drawlot(work)
        return out._replace(token_ids=(out.token_ids + 1) % work.logits.shape[1])

    monkeypatch.setattr(Workload, "drawlot", wrong)
    monkeypatch.setattr(cpu_sampler, "measure", None)
    assert cpu_sampler.main(["--rows=2", "--vocab=512"]) == 2
    assert "no filter, row 1: token" in capsys.readouterr().out


def test_wrong_logprobs_are_noticed(monkeypatch):
    drawlot = Workload.drawlot

    def wrong(work):
        out = drawlot(work)
        return out._replace(logprobs=out.logprobs._replace(logprobs=out.logprobs.logprobs + 1e-4))

    work = workload(CASES[0], 2, 512)
    assert differences(work) == []
    monkeypatch.setattr(Workload, "drawlot", wrong)
    assert differences(work) == [f"{CASES[0].name}: logprobs differ from the reference's"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_transformers_draws_from_the_same_distribution(case):
    """The comparison is fair: the processors leave drawlot's processed distribution."""
    work = workload(case, 8, 1024)
    sampler = Sampler(8, 1024, logprobs_mode="processed_logprobs")
    for i, params in enumerate(work.params):
        sampler.add_request(i, replace(params, logprobs=-1), work.history[i].tolist())
    drawn = sampler(work.logits, work.rows)
    ids, logprobs = drawn.logprobs.logprob_token_ids[:, 1:], drawn.logprobs.logprobs[:, 1:]
    ours = torch.zeros(8, 1025).scatter_(1, torch.where(ids >= 0, ids, 1024), logprobs.exp())[:, :1024]
    for i, params in enumerate(work.params):
        scores = work.logits[i : i + 1]
        for processor in work.pipelines[i]:
            scores = processor(work.history[i : i + 1], scores)
        if not params.is_greedy:
            torch.testing.assert_close(ours[i], scores.softmax(-1)[0], rtol=1e-4, atol=1e-7)
    tokens = torch.cat([columns[0] for columns in work.transformers()])
    assert tokens.shape == (8, 1)


def test_targets():
    assert Target("fast", 25.0, 25.0, True).met
    assert not Target("fast", 24.9, 25.0, True, 40).met
    assert str(Target("fast", 24.9, 25.0, True, 40)) == "MISSED  fast: 24.9 (target >= 25, goal 40)"
    assert Target("small", 1.5, 1.5, False).met
    assert not Target("small", float("nan"), 1.5, False).met


def test_ratios_are_medians_of_rounds():
    timing = Timing("case", 1, 2, drawlot=[1.0, 2.0, 1.0], transformers=[10.0, 40.0, 30.0], logsumexp=[1.0, 1.0, 0.5])
    assert timing.speedup == 20
    assert timing.logsumexps == 2
    assert timing.microseconds("transformers") == 15e6


METER = """
import numpy as np, torch
from benchmarks.memory import Meter, allocated
MIB = 1 << 20
def call():
    first = torch.ones(16 * MIB // 4)
    second = np.ones(8 * MIB, np.uint8)
    del first
    third = torch.ones(12 * MIB // 4)
    return third.sum()
kept = []
print(Meter().resident(call) / MIB, allocated(call) / MIB, Meter().resident(lambda: kept.append(torch.ones(MIB))) / MIB)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_meter_sees_torch_and_numpy_at_one_moment():
    run = subprocess.run([sys.executable, "-c", METER], cwd=ROOT, capture_output=True, text=True, check=True)
    resident, allocated, kept = map(float, run.stdout.splitlines()[-1].split())
    assert resident == pytest.approx(24, abs=1)
    assert allocated == pytest.approx(24, abs=1)
    assert kept == pytest.approx(4 + 4, abs=1)  # what the first call keeps counts on top of the peak
