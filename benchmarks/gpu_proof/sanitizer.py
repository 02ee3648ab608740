"""All paths at small sizes under compute-sanitizer: no access outside of memory, no race in shared memory.

`compute-sanitizer --tool memcheck python -m benchmarks.gpu_proof.sanitizer [BACKEND]` looks by hand; `--planted` in
place of a backend writes out of bounds on purpose.
"""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

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
SIZES = (20_000, 4097, 129, 5)
"""Vocabularies"""
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
    subprocess.run([sys.executable, "-m", "benchmarks.gpu_proof.sanitizer", setting.backend.name], check=True)
    with ThreadPoolExecutor(len(_CLEAN)) as threads:
        outputs = list(threads.map(lambda name: _under(tool, name, setting.backend.name), _CLEAN))
    for (name, clean), output in zip(_CLEAN.items(), outputs):
        if "Device not supported" in output:
            proof.skip(name, "compute-sanitizer does not support the device")
            continue
        proof.check(name, clean in output and "all paths taken" in output, last_lines=output.splitlines()[-12:])
    if proof.verdict == "passed":
        output = _under(tool, "memcheck", "--planted")
        found = "Invalid __global__ write" in output
        proof.check("seen: a write out of bounds", found, last_lines=output.splitlines()[-12:])
    proof.summary = "memcheck and racecheck clean over all paths"


def _under(tool: str, check: str, argument: str) -> str:
    """What the tool said; a block of its own for every tensor, so that its ends are the ends of memory."""
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    # Torch probes the driver with calls that fail and mean no harm.
    options = ["--report-api-errors", "no"] if check == "memcheck" else []
    command = [tool, "--tool", check, *options, sys.executable, "-m", "benchmarks.gpu_proof.sanitizer", argument]
    try:
        run = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as late:
        # Bytes, whatever text says.
        said = late.stdout.decode(errors="replace") if isinstance(late.stdout, bytes) else late.stdout
        return f"{said}\nnot done in {_SECONDS} s"
    return run.stdout


def take_all_paths(backend_name: str) -> None:
    """Draws of every kind of row in every form, and steps of a sampler with every kind of request."""
    device = torch.device("cuda")
    setting = Setting(get_backend(backend_name, device), device, small=True)
    for vocab_size in SIZES:
        for number in range(len(FORMS)):
            draw_form(setting, Proof("sanitizer"), vocab_size, number)
    play(setting, 300, seed=0)
    steps = Steps(setting, REQUESTS + EDITED, 4097, 20)
    for _ in range(3):
        steps.step()
    torch.cuda.synchronize()
    print("all paths taken", flush=True)


def draw_form(setting: Setting, _proof: Proof, vocab_size: int, number: int) -> None:
    """Draws rows of every kind in a form of bad rows' proof."""
    # Made on the host: the tool would look at all of torch's kernels too.
    batch = random_batch(torch.Generator().manual_seed(number), 2 * len(KINDS), vocab_size, FORMS[number])
    setting.draw(tree_map_only(Tensor, lambda tensor: tensor.to(setting.device), batch))


def write_out_of_bounds() -> None:
    """One element past the end of a tensor."""
    from benchmarks.gpu_proof.noise_kernel import store_past_the_end

    store_past_the_end(torch.empty(1 << 20, device="cuda"))
    torch.cuda.synchronize()


if __name__ == "__main__":
    wanted = sys.argv[1] if len(sys.argv) > 1 else "triton"
    write_out_of_bounds() if wanted == "--planted" else take_all_paths(wanted)
