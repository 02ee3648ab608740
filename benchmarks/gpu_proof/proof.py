"""What every proof is given, and what it leaves behind: named checks with their figures."""

import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from typing import Any, NamedTuple

import torch

from benchmarks.gpu_proof.random_rows import Batch
from drawlot.kernels.inputs import SampledRows
from drawlot.kernels.registry import Backend


class Setting(NamedTuple):
    """What is put to the proof, where, and at which size."""

    backend: Backend
    device: torch.device
    small: bool
    """Sizes for a CPU, to debug the proofs themselves: they prove little"""

    @property
    def on_gpu(self) -> bool:
        """The device is a GPU."""
        return self.device.type == "cuda"

    def generator(self, seed: int) -> torch.Generator:
        """Randomness on the device."""
        return torch.Generator(self.device).manual_seed(seed)

    def draw(self, batch: Batch) -> SampledRows:
        """The backend's draw of a batch."""
        logits, params, edits, wanted, wide = batch
        return self.backend.sample_rows(logits, params, edits, wanted, wide=wide)


class Proof:
    """The checks of one proof, in order; each is also told to stderr when it is made, with the seconds it came after.

    Those of a process of its own are counted from its start.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.summary = ""
        """What was shown, in one line"""
        self.checks: list[dict[str, Any]] = []
        self._start = time.perf_counter()

    @property
    def verdict(self) -> str:
        """FAILED if any check did, passed if any was made, else not run."""
        found = {check["passed"] for check in self.checks}
        return "FAILED" if False in found else "passed" if True in found else "not run"

    @property
    def skipped(self) -> list[str]:
        """The checks that could not be made."""
        return [check["name"] for check in self.checks if check["passed"] is None]

    def check(self, name: str, passed: bool, **figures: Any) -> None:
        """Record what was found."""
        self._record(name, bool(passed), "ok" if passed else "FAILED", figures)

    def skip(self, name: str, why: str) -> None:
        """Record what could not be looked at; it neither passes nor fails."""
        self._record(name, None, "not run", {"why": why})

    def apart(self, setting: Setting, part: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Run `part(setting, proof, *task)` for each task; what they return.

        On a GPU each runs in a process of its own, many at a time: compiling takes longer than all else.
        """
        if not setting.on_gpu:
            return [part(setting, self, *task) for task in tasks]
        with ProcessPoolExecutor(os.cpu_count() or 1, get_context("spawn"), max_tasks_per_child=1) as pool:
            running = [pool.submit(_checks_of, self.name, setting, part, task) for task in tasks]
            results = []
            for future in running:
                checks, result = future.result()
                self.checks += checks
                results.append(result)
        return results

    def _record(self, name: str, passed: bool | None, word: str, figures: dict[str, Any]) -> None:
        self.checks.append({"name": name, "passed": passed, **figures})
        shown = ", ".join(f"{key} {value}" for key, value in figures.items() if not isinstance(value, (list, dict)))
        seconds = time.perf_counter() - self._start
        told = f"{word}  {shown}".rstrip()
        print(f"  {self.name}: {name}: {told}  ({seconds:.1f} s)", file=sys.stderr, flush=True)


def _checks_of(
    name: str, setting: Setting, part: Callable[..., Any], task: tuple[Any, ...]
) -> tuple[list[dict[str, Any]], Any]:
    """What a process of its own found."""
    proof, result = Proof(name), None
    try:
        result = part(setting, proof, *task)
    except Exception:
        shown = ", ".join(str(item) for item in task)
        proof.check(f"ran to its end: {shown}", False, traceback=traceback.format_exc().splitlines())
    return proof.checks, result


def conditions(setting: Setting) -> dict[str, str]:
    """Where and with what the proofs ran."""
    gpu = torch.cuda.get_device_name(setting.device) if setting.on_gpu else "none"
    return {
        "backend": setting.backend.name,
        "device": setting.device.type,
        "gpu": gpu,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """The commit, marked where the tree differs from it; a copy of the tree may come without its history."""
    try:
        command = ["git", "describe", "--always", "--dirty"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
