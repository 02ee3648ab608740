"""What only a GPU can show: graphs are captured where they can be, and replays are what is checked."""

import pytest
import torch

from drawlot.entrypoints.sampler_benchmark import Case, benchmark, timing
from drawlot.entrypoints.sampler_benchmark.providers import PROVIDERS, Drawn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
CASE = Case(64, 20_000, "bfloat16", "mixed")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(timing, "BURSTS", 3)


def test_steps_are_graphs_where_the_host_does_not_wait():
    [result] = benchmark([CASE], ["drawlot-torch", "multipass", "torch"])["results"]
    assert result["failed"] == {}
    launches = {name: each["launch"] for name, each in result["providers"].items()}
    assert launches == {"drawlot-torch": "eager", "multipass": "graph", "torch": "graph"}
    assert "waits" in result["providers"]["drawlot-torch"]["why_eager"]
    assert result["bytes"] * result["buffers"] >= 4 * torch.cuda.get_device_properties(0).L2_cache_size
    for each in result["providers"].values():
        assert each["us"] > result["floor_us"] > 0


def test_eager_steps_are_eager():
    [result] = benchmark([CASE], ["multipass"], graph=False)["results"]
    assert result["providers"]["multipass"]["launch"] == "eager"


def test_a_replay_that_writes_no_tokens_is_noticed(monkeypatch):
    def call(self, work):
        tokens = torch.zeros(work.case.rows, dtype=torch.int64, device=work.device)
        return lambda logits: Drawn(tokens, None)

    monkeypatch.setattr(type(PROVIDERS["torch"]), "call", call)
    [result] = benchmark([CASE], ["torch"])["results"]
    assert any("is no token" in line for line in result["failed"]["torch"])
