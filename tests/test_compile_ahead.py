"""What a GPU's machine would launch is compiled on one without: here the compiler is replaced, and asked what for."""

import hashlib
from pathlib import Path

import pytest
import torch

from tests.without_gpu import counted

pytest.importorskip("triton")
import triton

from benchmarks import compile_ahead
from benchmarks.gpu_proof import long_equality
from benchmarks.gpu_proof.proof import Setting
from benchmarks.gpu_proof.steps import Script
from drawlot.kernels import registry

SCRIPT = """
from benchmarks import compile_ahead
compile_ahead.main({})
print(*(compiled.count(name) for name in ("scan_kernel", "scan_step_kernel", "finish_kernel", "whole_rows_kernel")))
"""


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        ("k50p90-64-v4096", [1, 0, 3, 1]),
        ("k50p90-64-bfloat16-v4096", [2, 0, 3, 1]),
        # For few rows two scans and two finishes that lower none; of few each may have two programs, none fewer warps.
        ("mixed-64-v4096", [3, 0, 5, 1]),
        ("raw+bf16:4097", [2, 0, 3, 1]),
        ("verify-filters-8", [0, 1, 0, 1]),
        ("steps:129", [14, 0, 20, 4]),
        ("laws", [11, 0, 27, 9]),
        ("sanitizer", [46, 0, 91, 31]),
    ],
)
def test_all_forms_of_a_case(case: str, kernels: list[int]) -> None:
    assert counted(SCRIPT.format([case])) == kernels


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("badrows", [11, 0, 22, 8]),
        ("badsteps", [11, 0, 30, 6]),
        ("badids", [4, 0, 12, 4]),
        ("invariance", [18, 0, 54, 20]),
        ("idle", [1, 0, 2, 1]),
        ("devices", [3, 0, 3, 1]),
        ("graphs", [8, 0, 19, 6]),
        ("predecessors", [1, 0, 3, 1]),
    ],
)
def test_all_forms_of_a_proof(name: str, kernels: list[int]) -> None:
    """Of 129 tokens here: the widest take long to make."""
    script = """
from benchmarks.gpu_proof import badrows, graphs, invariance, predecessors
badrows.SIZES, badrows.SIZES_OF_STEPS, invariance.SIZES = (129,), (129,), ((129, 64),)
graphs.SIZE, predecessors.VOCAB_SIZE = (129, 64), 129
"""
    assert counted(script + SCRIPT.format([name])) == kernels


def test_what_is_drawn_in_a_play_does_not_change_what_follows() -> None:
    """Nothing is drawn where its kernels are compiled ahead."""
    setting = Setting(registry.get_backend("torch", torch.device("cpu")), torch.device("cpu"), small=False)
    plays = []
    for drawn in (0, -1):
        script, play = Script(setting, 129, seed=0), []
        for _ in range(4):
            script.arrivals([])
            step = script.step()
            play.append((step.logits.dtype, step.bitmask is None, step.rows.idx_mapping.tolist(), len(step.logits)))
            script.commit([], step.rows, torch.full((len(step.logits),), drawn))
        plays.append(play)
    assert plays[0] == plays[1]


def test_names_in_the_cache_are_those_of_another_wheel(tmp_path: Path) -> None:
    """Which differs from the one that runs in its library."""
    for part in ("backends", "compiler", "language", "runtime"):
        (tmp_path / "triton").mkdir(exist_ok=True)
        (tmp_path / "triton" / part).symlink_to(Path(triton.__file__).parent / part)
    (tmp_path / "triton" / "_C").mkdir()
    (tmp_path / "triton" / "_C" / "libtriton.so").write_bytes(b"another")
    digest = hashlib.sha256(b"another").hexdigest()
    script = f"""
from benchmarks import compile_ahead
from triton.runtime import cache
before = "{digest}" in cache.triton_key()
compile_ahead.main(["no-logprobs-2-v128", "--wheel", "{tmp_path}"])
print(int(before), int("{digest}" in cache.triton_key()))
"""
    assert counted(script) == [0, 1]


def test_names_in_the_cache_are_noted(tmp_path: Path) -> None:
    names = tmp_path / "names"
    script = f"""
from benchmarks import compile_ahead
from triton.runtime import cache
for name in ("01", "02"):
    compile_ahead.main(["no-logprobs-2-v128", "--names", "{names}"])
    # As a compilation does, which is replaced here.
    cache.get_cache_manager(name).get_group("scan_kernel.json")
compile_ahead.main(["no-logprobs-2-v128", "--names", "{names}"])
print(0)
"""
    assert counted(script) == [0]
    assert names.read_text().split() == ["AE", "AE", "AI"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no-such-mix-8"], "cases: 'no-such-mix-8' is no case; there are"),
        (["raw:x"], "cases: 'raw:x' is no form; one is steps:V, or raw"),
        (["k50p90-8", "--wheel", "nowhere"], "--wheel: needs a folder that holds triton; got nowhere"),
    ],
)
def test_what_there_is_not_is_told_before_anything_is_compiled(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        compile_ahead.main(arguments)
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", ["raw", "raw:x", "raw:0", "cooked:128", "plain+raw:128", "bf16:128", "steps", "steps+bf16:128"]
)
def test_forms_that_there_are_not(name: str) -> None:
    with pytest.raises(ValueError, match="is no form; one is steps:V, or raw"):
        long_equality.form_of(name)


def test_excuses_grow_with_rows() -> None:
    assert [long_equality.most_excused(rows) for rows in (0, 1, 220_000, 220_001)] == [-1, 20, 20, 40]
