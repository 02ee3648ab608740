import os

import pytest
import torch

# Read when Triton is imported, which transformers does: the benchmark's kernels run in its interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

from fake_engine import FakeEngine


@pytest.fixture
def fake_engine(monkeypatch):
    """`LLM` and the command line run on an engine that echoes; yields the engines made."""
    import drawlot.entrypoints.llm

    made = []

    def make(args):
        made.append(FakeEngine(args))
        return made[-1]

    monkeypatch.setattr(drawlot.entrypoints.llm, "Engine", make)
    return made


@pytest.fixture
def multipass():
    """The multi-pass provider with its kernels in Triton's interpreter, which is asked for above."""
    pytest.importorskip("triton")
    from drawlot.entrypoints.sampler_benchmark.providers import PROVIDERS

    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles here")
    return PROVIDERS["multipass"]
