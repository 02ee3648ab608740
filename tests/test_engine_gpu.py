"""The GPU benchmark's own logic, on a CPU: its numbers mean nothing there."""

import json

import pytest

from benchmarks.engine_gpu import __main__ as engine_gpu
from tests.engine import torch_paged_attention

pytest.importorskip("triton")
pytest.importorskip("psutil")
ARGUMENTS = ["--toy", "--requests", "2", "--prompt-tokens", "8", "--new-tokens", "4", "--repeats", "1", "-o"]
PARTS = ("conditions", "small model", "equality", "model", "transformers", "plain torch", "engine", "drawlot", "split")


@pytest.fixture
def quick(monkeypatch):
    """Attention in torch instead of interpreted kernels."""
    from drawlot.engine import decode

    monkeypatch.setattr(decode, "paged_attention", torch_paged_attention)
    monkeypatch.setenv("TRITON_INTERPRET", "1")


def test_everything_runs_and_is_recorded(quick, tmp_path, capsys):
    assert engine_gpu.main([*ARGUMENTS, str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert all("error" not in found[part] for part in PARTS)
    assert found["equality"]["equal"]
    assert found["toy"]
    split = found["split"]
    assert split["sampling_share"] == pytest.approx(1 - split["forward_ms"] / split["step_ms"])
    assert found["goals"]["times_generate_batch"] == pytest.approx(
        found["drawlot"]["tokens_per_s"] / found["transformers"]["tokens_per_s"]
    )
    assert "tokens/s" in capsys.readouterr().out


def test_a_part_that_fails_leaves_its_traceback(quick, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(engine_gpu, "equality", fail)
    monkeypatch.setattr(engine_gpu, "make_engine", fail)
    assert engine_gpu.main([*ARGUMENTS, str(tmp_path / "found.json")]) == 1
    found = json.loads((tmp_path / "found.json").read_text())
    assert "no such luck" in found["equality"]["error"][-1]
    assert "no such luck" in found["engine"]["error"][-1]
    assert found["transformers"]["tokens_per_s"] > 0
    assert found["goals"]["met"] is False
