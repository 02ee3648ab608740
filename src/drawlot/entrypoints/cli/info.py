"""`drawlot info`: what this installation is, what it can run on, and what a model is."""

import json
import math
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from drawlot.assets import EMBEDDED, resolve
from drawlot.engine.args import SAMPLER_BACKENDS
from drawlot.entrypoints.cli.console import AsJson, loading, write_json
from drawlot.entrypoints.cli.options import with_options
from drawlot.errors import ModelError

PACKAGES = ("drawlot", "torch", "transformers", "tokenizers", "safetensors", "triton", "numpy")


@with_options()
def info(
    *,
    model: Annotated[str, typer.Option("--model", help="The model whose configuration is shown.")] = "tiny",
    as_json: AsJson = False,
) -> None:
    """Show what is installed and what can run.

    Versions, devices, the sampler backends (or why one cannot run), the embedded models, a model's configuration.
    """
    with loading():
        facts: dict[str, dict[str, Any]] = {
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
            "devices": _devices(),
            "sampler_backends": _backends(),
            "embedded_models": _embedded_models(),
            "model": _configuration(model),
        }
    if as_json:
        write_json(facts, sys.stdout)
        return
    for title, entries in facts.items():
        print(f"{title}:")
        for name, value in entries.items():
            print(f"  {name}: {_shown(value)}")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(entry)}" for name, entry in value.items())
    return value if isinstance(value, str) else json.dumps(value)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> dict[str, str]:
    import torch

    cpu = {"cpu": f"{torch.get_num_threads()} threads"}
    return cpu | {f"cuda:{index}": torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}


def _backends() -> dict[str, dict[str, str]]:
    """For each backend and kind of device "runs", or the reason why it cannot."""
    import torch

    from drawlot.kernels.registry import why_not

    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    names = [name for name in SAMPLER_BACKENDS if name != "auto"]
    return {name: {kind: why_not(name, torch.device(kind)) or "runs" for kind in kinds} for name in names}


def _embedded_models() -> dict[str, dict[str, int]]:
    found = {}
    for name in EMBEDDED:
        data = Path(resolve(name), "model.safetensors").read_bytes()
        # A safetensors file begins with the length of its header, then the header in JSON.
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        tensors = [tensor for key, tensor in header.items() if key != "__metadata__"]
        found[name] = {"parameters": sum(math.prod(tensor["shape"]) for tensor in tensors), "bytes": len(data)}
    return found


def _configuration(model: str) -> dict[str, Any]:
    from transformers import AutoConfig

    try:
        config: dict[str, Any] = AutoConfig.from_pretrained(resolve(model)).to_diff_dict()
    # What transformers raises for what it cannot find or read has no common class.
    except Exception as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(f"{model}: cannot load the configuration: {reason}") from error
    return {"name": model, **config}
