"""What a GPU's machine would launch is compiled on one without: here the compiler is replaced, and asked what for."""

import pytest

from benchmarks.gpu_proof import long_equality
from tests.without_gpu import counted

pytest.importorskip("triton")
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
        # One finish more for few rows, which may have two programs each.
        ("mixed-64-v4096", [1, 0, 4, 1]),
        ("raw+bf16:4097", [2, 0, 4, 1]),
        ("verify-filters-8", [0, 1, 0, 1]),
    ],
)
def test_all_forms_of_a_case(case: str, kernels: list[int]) -> None:
    assert counted(SCRIPT.format([case])) == kernels


def test_forms_that_there_are_not() -> None:
    for name in ("raw", "raw:x", "cooked:128"):
        with pytest.raises(ValueError, match="is no form; one is raw:V"):
            long_equality.form_of(name)
