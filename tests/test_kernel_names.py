"""Names of kernels in Triton's cache: the same in each process, or a kernel that lies there is compiled anew."""

import importlib
import os
import pkgutil
from collections import defaultdict

import pytest
import torch

# Read when Triton is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")
from triton.language import constexpr

import drawlot.kernels.triton as package
from tests.without_gpu import counted


def test_no_constant_has_two_values() -> None:
    """Triton names a kernel by its constants, those of one name in the order of where their modules lie in memory."""
    values = defaultdict[str, dict[str, str]](dict)
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        for name, value in vars(importlib.import_module(found.name)).items():
            if isinstance(value, constexpr):
                values[name][repr(value)] = found.name
    assert len(values) > 100
    assert {name: list(of.values()) for name, of in values.items() if len(of) > 1} == {}


def test_callees_are_named_before_what_calls_them() -> None:
    script = """
import ast
from triton.runtime.jit import JITCallable
from drawlot.kernels.triton import edit_kernels, finish, launch, whole_rows

named = []
cache_key = JITCallable.cache_key.fget

def note(function):
    names = [node.id for node in ast.walk(function.parse()) if isinstance(node, ast.Name)]
    called = [function.fn.__globals__.get(name) for name in names]
    if function.hash is None:
        named.append(all(callee.hash is not None for callee in called if isinstance(callee, JITFunction)))
    return cache_key(function)

JITCallable.cache_key = property(note)
for kernel in (whole_rows.whole_rows_kernel, finish.finish_kernel, edit_kernels.lay_over_kernel):
    launch.Launch(kernel, lambda n, _: n)
print(int(len(named) > 200), named.count(False))
"""
    assert counted(script) == [1, 0]
