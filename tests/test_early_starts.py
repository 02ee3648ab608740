"""Programs that begin before the launch before them has ended leave alone what it reads and writes."""

import inspect
import re
from typing import Any

import pytest
import torch

from drawlot import RejectionSampler, Sampler, SamplingParams
from tests.kernel_mutant import KernelMutant
from tests.test_triton_verification import rows_of

triton = pytest.importorskip("triton")
columns = pytest.importorskip("drawlot.kernels.triton.columns")
edit_kernels = pytest.importorskip("drawlot.kernels.triton.edit_kernels")
finish = pytest.importorskip("drawlot.kernels.triton.finish")
scan = pytest.importorskip("drawlot.kernels.triton.scan")
laws = pytest.importorskip("drawlot.kernels.triton.verification.laws")
early_starts = pytest.importorskip("tests.early_starts")
pytestmark = [
    pytest.mark.skipif(not triton.knobs.runtime.interpret, reason="for Triton's interpreter"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

PARAMS: list[dict[str, Any]] = [
    {},
    {"top_k": 9, "logprobs": 2},
    {"temperature": 0.0},
    {"top_p": 0.9, "frequency_penalty": 1.0},
    {},
]
METHODS = ["block", "block", "standard", "standard", "coupled"]


def steps() -> list[Any]:
    """A sampled step and one with drafts."""
    torch.manual_seed(0)
    v, counts = 300, [2, 1, 2, 2, 0]
    sampler = Sampler(len(counts), v, backend="triton")
    verifier = RejectionSampler(sampler, num_speculative_tokens=2)
    for r, (params, method) in enumerate(zip(PARAMS, METHODS)):
        sampler.add_request(r, SamplingParams(seed=r, **params), [1])
        verifier.set_method(r, method)
    drafts = torch.randint(0, v, (len(counts), 2))
    rows = rows_of(drafts, counts)
    launches: list[Any]
    with early_starts.touched_by_launches(edit_kernels, scan, laws, finish, columns) as launches:
        verifier(torch.randn(sum(counts) + len(counts), v), rows, drafts, torch.randn(len(counts), 2, v))
        sampler(torch.randn(len(counts), v), rows_of(drafts, [0] * len(counts)))
    return launches


def test_nothing_is_touched_too_early() -> None:
    launches = steps()
    early = {each.kernel for each in launches if each.early_reads}
    assert {"law_kernel", "finish_kernel"} <= early, early
    assert early_starts.touched_too_early(launches) == []


def who_touches_what_is_not_ours() -> set[str]:
    """Of the kernels that may come first in a step, those that touch anything before all before them has ended."""
    first = [each for each in steps() if each.kernel in ("lay_over_kernel", "scan_kernel", "scan_step_kernel")]
    # A sampled step lays edits over its rows in its scan.
    assert len(first) == 3
    assert all(each.reads and each.writes for each in first)
    return {each.kernel for each in first if each.early_reads or each.early_writes}


def test_who_may_come_first_touches_nothing_early() -> None:
    assert who_touches_what_is_not_ours() == set()


def following_late(kernel: Any, indent: str, until: str) -> KernelMutant:
    """A kernel that follows the launch before it only where its source comes to `until`."""
    source = inspect.getsource(kernel.fn)
    follows = next(line for line in source.splitlines(keepends=True) if re.match(rf"{indent}follow\w*\(", line))
    early = source.split(follows)[1].split(until)[0]
    assert "tl.load(" in early or "count" in early
    return KernelMutant("follows late", kernel, follows + early, early + follows)


def test_counting_before_the_scan_has_cleared_is_seen() -> None:
    with following_late(laws.law_kernel, 8 * " ", "        if column == 0:").planted():
        assert early_starts.touched_too_early(steps()) == ["law_kernel"]


@pytest.mark.parametrize(
    ("kernel", "until", "seen"),
    [
        (scan.scan_block, "    if state >= 0:", {"scan_kernel", "scan_step_kernel"}),
        (edit_kernels.lay_over_kernel, "    if slot < 0:", {"lay_over_kernel"}),
    ],
    ids=["scan", "edits"],
)
def test_who_may_come_first_and_touches_something_early_is_seen(kernel: Any, until: str, seen: set[str]) -> None:
    with following_late(kernel, 4 * " ", until).planted():
        assert who_touches_what_is_not_ours() == seen
