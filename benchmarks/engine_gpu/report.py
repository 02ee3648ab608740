"""Runs the parts, and says under which conditions, what they found and whether the goals are met."""

import datetime
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_gpu.work import TEMPERATURE, TOP_K, TOP_P, Work

MOST_SAMPLING, LEAST_SPEEDUP = 0.03, 1.5


def conditions(work: Work) -> dict[str, Any]:
    """What the numbers depend on."""
    import transformers
    import triton

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": torch.cuda.get_device_name() if work.device == "cuda" else f"CPU ({platform.processor()})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "commit": os.environ.get("COMMIT", commit or "unknown"),
        "date": datetime.date.today().isoformat(),
        "requests": len(work.prompts),
        "prompt_tokens": len(work.prompts[0]),
        "new_tokens": work.new_tokens,
        "dtype": work.dtype,
        "sampling": {"temperature": TEMPERATURE, "top_k": TOP_K, "top_p": TOP_P, "logprobs": 0},
    }


class Report:
    """Runs the parts, each whatever became of the others, and keeps what they find."""

    def __init__(self, file: Path) -> None:
        self.found: dict[str, Any] = {}
        self.failed: list[str] = []
        self._file = file
        self._begin = time.perf_counter()

    def part(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the part returns; None if it failed."""
        print(f"{time.perf_counter() - self._begin:6.1f} s  {name} ...", file=sys.stderr, flush=True)
        result = None
        try:
            result = function(*args, **kwargs)
            # An engine is no finding.
            self.found[name] = result if isinstance(result, dict) else {}
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self.found[name] = {"error": traceback.format_exc().splitlines()}
        if "error" in self.found[name]:
            self.failed.append(name)
        self.write()
        return result

    def write(self) -> None:
        """Also what is unfinished: the machine may be taken away."""
        self.found["seconds"] = time.perf_counter() - self._begin
        self._file.write_text(json.dumps(self.found, indent=1, default=str) + "\n")


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    """The goals, with None for what was not measured."""
    rival, own = found.get("transformers", {}).get("tokens_per_s"), found.get("drawlot", {}).get("tokens_per_s")
    ratio = own / rival if own and rival else None
    share = found.get("split", {}).get("sampling_share")
    rival, own = (found.get(name, {}).get("decode_tokens_per_s") for name in ("transformers", "drawlot"))
    return {
        "times_generate_batch": ratio,
        "times_generate_batch_decoding": own / rival if own and rival else None,
        "sampling_share": share,
        "met": ratio is not None and ratio >= LEAST_SPEEDUP and share is not None and share < MOST_SAMPLING,
    }
