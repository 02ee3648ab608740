"""Compiles for a GPU on a machine that has none: `TRITON_CACHE_DIR=DIR python -m benchmarks.compile_ahead CASE...`.

Cases are those of `variants_gpu`, forms of `gpu_proof.long_equality` (raw:128256, steps:4097), and proofs of
`gpu_proof` that compile much (all but equality and tail). Run from the root of the repository, under the version of
Triton that the GPU's machine has, whose cache DIR then is. PYTHONPATH may name another copy of drawlot. For compute
capability 9.0, 132 multiprocessors. Where the GPU's machine has another version of Python, so that its wheel of Triton
is another one, `--wheel` tells where that lies unpacked: names in the cache depend on it. `pack_cache` packs it, or of
it what some runs of this used: each appends the names to the file of `--names`.
"""

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import cache, driver

from benchmarks import verify_gpu
from benchmarks.gpu_proof import ahead, long_equality
from benchmarks.gpu_proof.proof import Setting
from benchmarks.gpu_proof.random_rows import random_batch
from benchmarks.variants_gpu import VERIFIED, VOCAB_SIZE, parts_of
from drawlot.entrypoints.sampler_benchmark import workload
from drawlot.entrypoints.sampler_benchmark.cases import Case
from drawlot.kernels import registry
from drawlot.kernels.triton.launch import compiling_ahead

_ROWS = 8
"""Of a case, at most: launches of all sizes are compiled at once, and a mix has so many kinds"""
_PROCESSORS = 132


class _Driver:
    """As much of one as compiling asks for."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)


class NotingCache(cache.FileCacheManager):  # type: ignore[misc]
    """The cache, which notes the names under which it is asked for kernels."""

    names: ClassVar[set[str]] = set()

    def get_group(self, filename: str) -> dict[str, str] | None:
        """As the cache's own."""
        self.names.add(self.key)
        group: dict[str, str] | None = super().get_group(filename)
        return group


def pretend() -> None:
    """From now on the CPU is taken for a GPU, by whom launches are chosen."""
    from drawlot.kernels.triton import sample, workspace
    from drawlot.kernels.triton.verification import step_verifier

    driver.set_active(_Driver())
    registry.why_not = lambda *_args: None
    answers = {
        "overlaps": True,
        "num_multiprocessors": _PROCESSORS,
        "rows_aside": _PROCESSORS // 2,
        "programs_together": 2 * _PROCESSORS,
        "programs_beside": _PROCESSORS // 2,
    }
    asked = [*(module for name, module in sys.modules.items() if name.startswith("drawlot.kernels.triton"))]
    assert {sample, workspace, step_verifier} <= set(asked)
    for module in asked:
        for name, answer in answers.items():
            if hasattr(module, name):
                setattr(module, name, lambda _device, answer=answer: answer)


def compile_case(name: str) -> None:
    """All that a case launches.

    Raises:
        ValueError: There is no such case.
    """
    cpu = torch.device("cpu")
    if name in ahead.PROOFS:
        ahead.compile_proof(name, registry.get_backend("triton", cpu))
        return
    if ":" in name:
        form, vocab_size = long_equality.form_of(name)
        backend = registry.get_backend("triton", cpu)
        if form is None:
            setting = Setting(backend, cpu, small=False)
            long_equality.compile_plays(setting, vocab_size)
            return
        batch = random_batch(torch.Generator().manual_seed(0), _ROWS, vocab_size, form)
        with compiling_ahead():
            backend.sample_rows(batch.logits, batch.params, batch.edits, batch.wanted, wide=batch.wide)
        return
    kind, number, others = parts_of(name)
    if kind in VERIFIED:
        case = replace(VERIFIED[kind], requests=min(number, _ROWS))
        inputs = verify_gpu.Inputs.random(case, VOCAB_SIZE, torch.Generator().manual_seed(0))
        verifier = verify_gpu.verifier_of(case, VOCAB_SIZE, cpu, "triton")
        with compiling_ahead():
            verifier(*inputs)
        return
    work = workload.make(Case(min(number, _ROWS), mix=kind, **others), cpu)
    sampler = work.sampler("triton")
    with compiling_ahead():
        sampler(work.buffers[0], work.rows, work.bitmask)


def main(arguments: list[str] | None = None) -> None:
    """Compiles, a line a case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile_ahead", description=__doc__)
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--wheel", type=Path, help="unpacked, of the Triton that will look for what is compiled here")
    parser.add_argument("--names", type=Path, help="appends the kernels' names in the cache to this file, a line each")
    given = parser.parse_args(arguments)
    try:
        for name in given.cases:
            if name not in ahead.PROOFS:
                (long_equality.form_of if ":" in name else parts_of)(name)
    except ValueError as error:
        parser.error(f"cases: {error}; proofs are {', '.join(ahead.PROOFS)}")
    if given.wheel is not None and not (given.wheel / "triton").is_dir():
        parser.error(f"--wheel: needs a folder that holds triton; got {given.wheel}")
    pretend()
    knobs.cache.manager_class = NotingCache
    if given.wheel is not None:
        # The key is made of the files beside this one.
        cache.triton_key.cache_clear()
        cache.__file__ = str(given.wheel / "triton" / "runtime" / "cache.py")
    for name in given.cases:
        start = time.perf_counter()
        compile_case(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    if given.names is not None:
        with given.names.open("a") as file:
            file.writelines(f"{name}\n" for name in sorted(NotingCache.names))


if __name__ == "__main__":
    main()
