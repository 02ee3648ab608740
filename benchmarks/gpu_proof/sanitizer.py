"""All paths at small sizes under compute-sanitizer: no access outside of memory, no race in shared memory.

`compute-sanitizer --tool memcheck python -m benchmarks.gpu_proof.sanitizer BACKEND SHARE` looks by hand at one of
eight shares of the paths; `--planted` in place of both writes out of bounds on purpose.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from benchmarks.gpu_proof.badrows import FORMS
from benchmarks.gpu_proof.graphs import EDITED, REQUESTS, Steps
from benchmarks.gpu_proof.kinds_of_logits import KINDS
from benchmarks.gpu_proof.proof import Proof, Setting
from benchmarks.gpu_proof.random_rows import random_batch
from benchmarks.gpu_proof.steps import play
from drawlot.kernels.registry import get_backend

_SECONDS = 240
"""Of a share, under a tool"""
_SHARES = 8
"""Processes of a tool, which takes longer to look through kernels than these take to run"""
SIZES = (20_000, 4097, 129, 5)
"""Vocabularies"""
_ENDED = "all paths taken"
_CLEAN = {
    "memcheck": "ERROR SUMMARY: 0 errors",
    "racecheck": "RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)",
}


def prove(setting: Setting, proof: Proof) -> None:
    """Runs this module under the tools, where the machine has them."""
    tool = shutil.which("compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin")
    if tool is None or not setting.on_gpu:
        proof.skip("compute-sanitizer", "not on this machine" if setting.on_gpu else "the device is no GPU")
        return
    # Compiling takes minutes, and many times as long under a tool: Triton's cache on disk has it from here on.
    proof.apart(setting, draw_form, [(vocab_size, number) for vocab_size in SIZES for number in range(len(FORMS))])
    backend, tasks = setting.backend.name, list(product(_CLEAN, range(_SHARES)))
    with ThreadPoolExecutor(len(tasks)) as threads:
        alone = threads.map(lambda share: _output_of(_paths(backend, str(share)), None), range(_SHARES))
        for share, output in enumerate(alone):
            proof.check(f"without a tool, share {share}", _ENDED in output, last_lines=output.splitlines()[-12:])
        outputs = list(threads.map(lambda task: _under(tool, task[0], backend, str(task[1])), tasks))
    for (name, share), output in zip(tasks, outputs):
        if "Device not supported" in output:
            proof.skip(name, "compute-sanitizer does not support the device")
            continue
        clean = _CLEAN[name] in output and _ENDED in output
        proof.check(f"{name}, share {share}", clean, last_lines=output.splitlines()[-12:])
    if proof.verdict == "passed":
        output = _under(tool, "memcheck", "--planted")
        found = "Invalid __global__ write" in output
        proof.check("seen: a write out of bounds", found, last_lines=output.splitlines()[-12:])
    proof.summary = "memcheck and racecheck clean over all paths"


def _under(tool: str, check: str, *arguments: str) -> str:
    """What the tool said."""
    # Torch probes the driver with calls that fail and mean no harm.
    options = ["--report-api-errors", "no"] if check == "memcheck" else []
    return _output_of([tool, "--tool", check, *options, *_paths(*arguments)], _SECONDS)


def _paths(*arguments: str) -> list[str]:
    """The command that takes paths."""
    return [sys.executable, "-m", "benchmarks.gpu_proof.sanitizer", *arguments]


def _output_of(command: list[str], seconds: float | None) -> str:
    """Of a command in which every tensor has a block of its own, so that its ends are the ends of memory."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as late:
        # Bytes, whatever text says.
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout
        return f"{said}\nnot done in {seconds} s"
    return run.stdout


def take_paths(backend_name: str, share: int) -> None:
    """Draws of every kind of row in every form, and steps of a sampler with every kind of request: a share of these."""
    device = torch.device("cuda")
    setting, proof = Setting(get_backend(backend_name, device), device, small=True), Proof("sanitizer")
    forms = product(SIZES, range(len(FORMS)))
    paths: list[Callable[[], object]] = [partial(draw_form, setting, proof, *form) for form in forms]
    for path in [*paths, partial(play, setting, 300, seed=0), partial(_take_steps, setting)][share::_SHARES]:
        path()
    torch.cuda.synchronize()
    print(_ENDED, flush=True)


def _take_steps(setting: Setting) -> None:
    steps = Steps(setting, REQUESTS + EDITED, 4097, 20)
    for _ in range(3):
        steps.step()


def draw_form(setting: Setting, _proof: Proof, vocab_size: int, number: int) -> None:
    """Draws rows of every kind in a form of bad rows' proof."""
    # Made on the host: the tool would look at all of torch's kernels too.
    batch = random_batch(torch.Generator().manual_seed(number), 2 * len(KINDS), vocab_size, FORMS[number])
    setting.draw(tree_map_only(Tensor, lambda tensor: _moved(tensor, setting.device), batch))


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy that lies as the tensor does and ends where it ends: `Tensor.to` keeps no gaps between rows."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device).copy_(tensor)


def write_out_of_bounds() -> None:
    """One element past the end of a tensor."""
    from benchmarks.gpu_proof.noise_kernel import store_past_the_end

    store_past_the_end(torch.empty(1 << 20, device="cuda"))
    torch.cuda.synchronize()


if __name__ == "__main__":
    write_out_of_bounds() if sys.argv[1] == "--planted" else take_paths(sys.argv[1], int(sys.argv[2]))
