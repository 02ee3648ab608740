"""Scripts that run Triton's compiler without a GPU and outside its interpreter, by a driver that does nothing."""

import os
import subprocess
import sys
from pathlib import Path

_CACHE = Path(__file__).parents[1] / ".triton_cache"
"""Of what has been compiled, for the next run"""
_DRIVER = """
from types import SimpleNamespace

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

class Driver:
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    # The handle of a kernel is its place in `loaded`, counted from 1.
    utils = SimpleNamespace(load_binary=lambda name, *args: (None, loaded.append(name) or len(loaded), 0, 0, 0))

class Cuda:
    def cuLaunchKernelEx(config, handle, parameters, extra):
        launched.append(loaded[handle.value - 1])
        programs.append(config._obj.grid[0])
        compiled_before.append(len(compiled))
        given.append(parameters.value)
        return 0

driver.set_active(Driver())
compiled, launched, compiled_before, loaded, given, programs = [], [], [], [], [], []

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, SparseDraftLogits
from drawlot.kernels import registry
from drawlot.kernels.triton import cuda_launch, sample
registry.why_not = lambda *args: None
cuda_launch._driver = lambda: Cuda
sample.num_multiprocessors = lambda device: 32
"""
_COUNTS = """
def count(self, key, *args, **kwargs):
    compiled.append(self.fn.__name__)
    about = SimpleNamespace(
        name=self.fn.__name__, num_warps=1, shared=0, launch_pdl=False, global_scratch_size=0, profile_scratch_size=0
    )
    kernel = SimpleNamespace(metadata=about, kernel=b"", src=SimpleNamespace(signature={}))
    return self.device_caches[0][0].setdefault(key, kernel)

JITFunction._do_compile = count
"""
_COMPILES = """
_compile = JITFunction._do_compile

def compile(self, key, *args, **kwargs):
    kernel = _compile(self, key, *args, **kwargs)
    assert len(kernel.asm["cubin"]) > 1000
    compiled.append(self.fn.__name__)
    return kernel

JITFunction._do_compile = compile
"""
_COMPILES_ONE = """
import re
_compile, told = JITFunction._do_compile, []
{}
def compile(self, key, *args, **kwargs):
    if self.fn.__name__ != "{}":
        return count(self, key)
    kernel = _compile(self, key, *args, **kwargs)
    entry = kernel.asm["ptx"].partition(".entry")[2].partition(")")[0]
    told[:] = [int(bits) // 8 for bits in re.findall(r"\\.param \\.[a-z](\\d+)", entry)]
    return kernel

def tell(handle, i, offset, size):
    if loaded[handle.value - 1] != "{}" or i >= len(told):
        return 1
    size._obj.value = told[i]
    return 0

JITFunction._do_compile = compile
Cuda.cuFuncGetParamInfo = tell
"""
_OVERLAPS = """
from drawlot.kernels.triton import logprobs
from drawlot.kernels.triton.verification import step_verifier
sample.overlaps = logprobs.overlaps = step_verifier.overlaps = lambda device: True
"""
_PRINTS_SASS = """
import subprocess, tempfile, triton
from pathlib import Path

def print_sass(kernel):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile() as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        print(subprocess.run([tool, "-c", file.name], capture_output=True, text=True, check=True).stdout)
"""
_PRINTS_IR = """
def print_ir(kernel):
    print(kernel.asm["ttgir"])
"""
_PRINTS_ONE = """
_compile = JITFunction._do_compile
{}
def compile_one(self, key, *args, **kwargs):
    if self.fn.__name__ != "{}":
        return count(self, key)
    kernel = _compile(self, key, *args, **kwargs)
    {}(kernel)
    return kernel

JITFunction._do_compile = compile_one
"""
_DISASSEMBLES_ONE = """
def compile_and_print(self, *args, **kwargs):
    kernel = compile(self, *args, **kwargs)
    if self.fn.__name__ == "{}":
        print_sass(kernel)
    return kernel

JITFunction._do_compile = compile_and_print
"""


def counted(script: str) -> list[int]:
    """The numbers that a script prints; kernels that it would compile are named in `compiled`."""
    return [int(number) for number in _printed(_DRIVER + _COUNTS + script).split()]


def compiled(script: str) -> list[str]:
    """The names of the kernels that a script compiles for compute capability 9.0, by Triton and ptxas."""
    return _printed(_DRIVER + _COMPILES + _OVERLAPS + script + "\nprint(*compiled)").split()


def compiled_and_disassembled(script: str, kernel: str) -> tuple[list[str], str]:
    """What `compiled` and `disassembled` tell, of one run: whole kernels take long to compile."""
    prepared = _DRIVER + _COMPILES + _PRINTS_SASS + _DISASSEMBLES_ONE.format(kernel) + _OVERLAPS
    sass, _, names = _printed(prepared + script + "\nprint(*compiled)").rstrip().rpartition("\n")
    return names.split(), sass


def disassembled(script: str, kernel: str) -> str:
    """What ptxas makes of a kernel that a script compiles, which may do so in several forms."""
    return _printed(_DRIVER + _PRINTS_SASS + _PRINTS_ONE.format(_COUNTS, kernel, "print_sass") + _OVERLAPS + script)


def intermediate(script: str, kernel: str) -> str:
    """What Triton makes of a kernel before PTX, with the types of all blocks; as for `disassembled`."""
    return _printed(_DRIVER + _PRINTS_IR + _PRINTS_ONE.format(_COUNTS, kernel, "print_ir") + _OVERLAPS + script)


def printed(script: str, kernel: str) -> str:
    """What a script prints; it may look at the arguments of a kernel, which `given` tells the places of."""
    return _printed(_DRIVER + _COMPILES_ONE.format(_COUNTS, kernel, kernel) + _OVERLAPS + script)


def _printed(script: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment.setdefault("TRITON_CACHE_DIR", str(_CACHE))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
