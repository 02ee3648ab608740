"""The proof by compute-sanitizer, with a stand-in for what its processes say."""

import pytest
import torch

pytest.importorskip("triton")
from benchmarks.gpu_proof import sanitizer
from benchmarks.gpu_proof.badrows import FORMS
from benchmarks.gpu_proof.proof import Proof, Setting
from drawlot.kernels.registry import get_backend

CLEAN = f"{sanitizer._ENDED}\n{sanitizer._CLEAN['memcheck']}\n{sanitizer._CLEAN['racecheck']}\nInvalid __global__ write"


def verdict_of(monkeypatch: pytest.MonkeyPatch, others: dict[tuple[str, ...], str]) -> str:
    """Of a proof whose processes say what is clean, but for those whose command ends so; none runs."""

    def said(command: list[str], seconds: float | None) -> str:
        # Compiling may take as long as it takes.
        assert (seconds is None) == ("--tool" not in command)
        return next((text for words, text in others.items() if set(words) <= set(command)), CLEAN)

    monkeypatch.setattr(sanitizer.shutil, "which", lambda *_args, **_kwargs: "tool")
    monkeypatch.setattr(sanitizer, "_output_of", said)
    monkeypatch.setattr(sanitizer, "draw_form", lambda *_args: None)
    proof = Proof("sanitizer")
    monkeypatch.setattr(proof, "apart", lambda *_args: [])
    sanitizer.prove(Setting(get_backend("torch", torch.device("cpu")), torch.device("cuda"), small=False), proof)
    return proof.verdict


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ({}, "passed"),
        ({("racecheck", "5"): CLEAN.replace("0 hazards", "4 hazards")}, "FAILED"),
        ({("memcheck", "7"): CLEAN.replace("0 errors\n", "1 errors\n", 1)}, "FAILED"),
        ({("memcheck", "3"): CLEAN.replace(sanitizer._ENDED, "not done in 240 s")}, "FAILED"),
        ({("--planted",): "nothing"}, "FAILED"),
    ],
    ids=["clean", "a race", "memory", "not ended", "nothing planted is seen"],
)
def test_every_share_counts(others: dict[tuple[str, ...], str], verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert verdict_of(monkeypatch, others) == verdict


def test_shares_take_each_path_once(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[object, ...]] = []
    monkeypatch.setattr(sanitizer, "get_backend", lambda *_args: None)
    monkeypatch.setattr(sanitizer, "draw_form", lambda _setting, _proof, *form: taken.append(form))
    monkeypatch.setattr(sanitizer, "play", lambda *_args, **_kwargs: taken.append(("play",)))
    monkeypatch.setattr(sanitizer, "_take_steps", lambda _setting: taken.append(("steps",)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for share in range(sanitizer._SHARES):
        sanitizer.take_paths("triton", share)
    forms = [(vocab_size, number) for vocab_size in sanitizer.SIZES for number in range(len(FORMS))]
    assert sorted(taken, key=str) == sorted([*forms, ("play",), ("steps",)], key=str)


def test_rows_are_moved_with_their_gaps() -> None:
    rows = torch.arange(60.0).view(4, 15)[:, 2:9]
    moved = sanitizer._moved(rows, torch.device("cpu"))
    assert moved.equal(rows)
    assert moved.stride() == (15, 1)
    assert moved.untyped_storage().nbytes() == 4 * (3 * 15 + 7)
