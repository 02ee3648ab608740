"""Kernels compile for a GPU: Triton's interpreter runs Python, of which the compiler takes a part."""

import ast
import re
from itertools import pairwise
from pathlib import Path

import pytest

from tests.left_apart import left_apart
from tests.without_gpu import compiled, compiled_and_disassembled, disassembled

pytest.importorskip("triton")
import drawlot.kernels.triton

SAMPLES = """
V = 128_256
sampler = Sampler(2, V, backend="triton")
for i in range(2):
    sampler.add_request(i, SamplingParams(top_k=50, top_p=0.9, logprobs=0), [1])
index, nothing = torch.arange(2), torch.zeros(2, dtype=torch.int64)
rows = LogitsRows(index, index, nothing, nothing, nothing, torch.arange(3, dtype=torch.int32))
sampler(torch.zeros(2, V), rows)
"""
VERIFIES = """
K = 4
for method, form, V, dtype, wide, params in {}:
    sampler = Sampler(2, V, backend="triton", use_fp64_gumbel=wide)
    verifier = RejectionSampler(sampler, num_speculative_tokens=K, method=method)
    for i in range(2):
        sampler.add_request(i, SamplingParams(**params), [1])
    index, local, first = torch.arange(2), torch.arange(K + 1).repeat(2), torch.tensor([0, 5, 10], dtype=torch.int32)
    rows = LogitsRows(index, index.repeat_interleave(K + 1), local, local, local, first)
    q, lse = torch.zeros(2, K, V), torch.zeros(2, K)
    if form == "sparse":
        q = SparseDraftLogits(torch.zeros(2, K, 8, dtype=torch.int64), torch.zeros(2, K, 8))
    laws = {{"point": (), "dense": (q,), "lse": (q, lse), "sparse": (q,)}}[form]
    verifier(torch.zeros(10, V, dtype=getattr(torch, dtype)), rows, torch.zeros((2, K), dtype=torch.int64), *laws)
"""
LAID_BEFORE = """
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SparseBias
n, V = 2, {}
zeros, ones = torch.zeros(n, dtype=torch.int64), torch.ones(n, dtype=torch.float64)
params = RowParams(ones, zeros + 5, ones, 0 * ones, zeros, zeros, zeros, zeros)
edits = Edits(bias=SparseBias(torch.arange(n), zeros + 9, torch.ones(n)))
wanted = LogprobsWanted("raw_logprobs", zeros == 0, zeros, zeros.unsqueeze(1)[:, :0], 0)
sample.sample_rows(torch.zeros(n, V, dtype=torch.{}), params, edits, wanted)
"""
OF_FINISH = ["finish_kernel"] * 3 + ["whole_rows_kernel"]


def test_sampling() -> None:
    names, sass = compiled_and_disassembled(SAMPLES, "finish_kernel")
    assert [name for name in names if name != "write_kernel"] == ["scan_kernel", *OF_FINISH]
    assert_together(sass, 3)


def assert_together(sass: str, num_forms: int) -> None:
    """No barrier of a finish is reached by a part of a warp."""
    forms = sass.split(".text.finish_kernel:")[1:]
    assert [left_apart(form) for form in forms] == num_forms * [[]]


def test_a_finish_without_logprobs_leaves_no_threads_apart() -> None:
    assert_together(disassembled(SAMPLES.replace("logprobs=0", "repetition_penalty=1.2"), "finish_kernel"), 4)


def test_whole_rows_leave_no_threads_apart() -> None:
    """Functions in machine code among them: behind one there may be a barrier."""
    sass = disassembled(SAMPLES, "whole_rows_kernel")
    assert "RET." in sass
    assert left_apart(sass) == []


def forms_of_scan(asks: str, dtype: str) -> list[str]:
    """Machine code of scans: of half-width logits one for many rows, one for fewer, and two for few that are edited."""
    script = SAMPLES.replace("logprobs=0", asks).replace("zeros(2, V)", f"zeros(2, V, dtype=torch.{dtype})")
    forms = disassembled(script, "scan_kernel").split(".text.scan_kernel:")[1:]
    assert len(forms) == (1 if dtype == "float32" else 2) + 2 * ("penalty" in asks)
    return forms


@pytest.mark.parametrize("asks", ["logprobs=0", "logprobs=None"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scans_load_logits_before_they_wait(dtype: str, asks: str) -> None:
    """What a request asks for may take two loads in turn, and ptxas likes to put both before the loads of logits."""
    for form in forms_of_scan(asks, dtype):
        loads, branch, _ = form.partition("BRA")
        assert branch
        # Half of the number of the request, and what is asked for by the one that the row is mostly of.
        asked = "LDG.E" if asks == "logprobs=None" else "LDG.E.64"
        assert sorted(re.findall(r"LDG[.A-Z0-9]*", loads)) == sorted(["LDG.E", asked, *4 * ["LDG.E.EF.128"]])


def test_edited_rows_load_what_edits_read_before_logits() -> None:
    """Loads come back in turn: behind logits the words of touched tokens would wait for memory."""
    for form in forms_of_scan("logprobs=0, repetition_penalty=1.2", "float32"):
        # Rows that are edited wait for one another; the code of others may come before them.
        edited, barrier, _ = form.partition("BAR.SYNC")
        assert barrier
        loads = re.findall(r"LDG[.A-Z0-9]*", edited)
        assert loads[loads.index("LDG.E.128") :].count("LDG.E.EF.128") == 4
        # Of rows that are edited, and of others.
        assert form.count("LDG.E.EF.128") == 8


def test_half_width_logits_are_loaded_first() -> None:
    """Behind nothing that is asked of a row: scans that edit were quicker so, of float32 logits slower."""
    for form in forms_of_scan("logprobs=0, repetition_penalty=1.2", "bfloat16"):
        loads = re.findall(r"LDG[.A-Z0-9]*", form)
        assert loads.index("LDG.E.128") > loads.index("LDG.E.EF.128")
        assert loads.count("LDG.E.EF.128") == 4


def test_programs_of_a_scan_with_edits_find_places() -> None:
    """Twelve of float32 on a multiprocessor, and four beside a finish, which else begins when one of them has ended."""
    forms = forms_of_scan("logprobs=0, repetition_penalty=1.2", "float32")
    registers = 1 + max(int(number) for form in forms for number in re.findall(r"\bR(\d+)\b", form))
    # They are given eight at a time, of 65,536.
    given = -(-registers // 8) * 8
    assert 12 * 128 * given <= 65_536
    assert 4 * 128 * given + 256 * 160 <= 65_536


def test_scans_with_edits_spill_little() -> None:
    """Under CI's version 9 and 22 registers, and of float32 none where edits are laid over rows before."""
    for dtype, most in (("float32", 12), ("bfloat16", 25)):
        for form in forms_of_scan("logprobs=0, repetition_penalty=1.2", dtype):
            assert form.count("STL") <= most
    assert "STL" not in disassembled(LAID_BEFORE.format(128_256, "float32"), "scan_kernel")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("asks", ["", ", repetition_penalty=1.2"])
def test_threads_of_a_scan_exchange_no_tokens(asks: str, dtype: str) -> None:
    """Each has a part of all slices of a tile, and lays edits over tokens of its own, whatever Triton does with ties.

    With edits they wait for each other to know how often there is something to lay, and where few tokens are allowed;
    and in programs ahead, which half-width scans of many rows have, for a maximum and a sum.
    """
    most = {"": 0, "float32": 3, "bfloat16": 6}[asks and dtype]
    numbers = [form.count("BAR.SYNC") for form in forms_of_scan("logprobs=0" + asks, dtype)]
    assert max(numbers) <= most
    assert sum(number > 3 for number in numbers) == (2 if most > 3 else 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_last_programs_of_a_scan_alone_let_the_finish_be_set_up(dtype: str) -> None:
    """For thousands of programs it takes a microsecond or more, also in a scan that is not set up early itself."""
    forms = forms_of_scan("logprobs=0", dtype)
    waits = [len(re.findall("ACQBULK", form)) for form in forms]
    assert waits == ([1] if dtype == "float32" else [1, 0])
    assert [len(re.findall(r"@!?P\d PREEXIT", form)) for form in forms] == [1] * len(forms)
    assert [len(re.findall("PREEXIT", form)) for form in forms] == [1] * len(forms)


def test_a_finish_lets_whole_rows_start_when_its_row_is_decided() -> None:
    """Not when it begins: they would ask whether all rows are decided, beside these, until they are."""
    forms = disassembled(SAMPLES, "finish_kernel").split(".text.finish_kernel:")[1:]
    assert len(forms) == 3
    for form in forms:
        order = re.findall(r"ACQBULK|PREEXIT|REDG?\.E|ATOMG?\.E", form)
        assert order[0] == "ACQBULK"
        before = [each for each, other in pairwise(order) if other == "PREEXIT"]
        assert set(before) == {"REDG.E"}


def test_reads_of_whole_rows_leave_the_cache_to_others() -> None:
    """They would push the code of kernels out, and who runs it next would wait for it, 128 bytes after 128 bytes."""
    sass = disassembled(SAMPLES, "whole_rows_kernel")
    # A part is four loads a thread: the first one, and the next in the loop for one proposal and in that for two.
    assert sass.count("LDG.E.EF.128") >= 12


def test_lists_are_stored_place_by_place() -> None:
    """Threads would exchange places that are not said to be four side by side; a mask of such takes it for true."""
    forms = disassembled(SAMPLES, "finish_kernel").split(".text.finish_kernel:")[1:]
    before, after = zip(*(form.split("ACQBULK") for form in forms), strict=True)
    # Zeros of ranges are; and noise of 1,024 tiles, by 256 threads or 128, while the scan still runs.
    assert {each for form in after for each in _wide_stores(form)} <= {"RZ"}
    assert sorted(len([each for each in _wide_stores(form) if each != "RZ"]) for form in before) == [1, 1, 2]


def _wide_stores(sass: str) -> list[str]:
    """What is stored 16 bytes at a time."""
    return re.findall(r"STG\.E\.128 \S+, (\w+)", sass)


def test_requests_with_edits() -> None:
    edits = 'repetition_penalty=1.2, logit_bias={3: 1.0}, bad_words=["no"]'
    script = SAMPLES.replace("logprobs=0), [1]", f"logprobs=5, {edits}), [1], bad_words_token_ids=[[1, 2]]")
    names, sass = compiled_and_disassembled(script, "finish_kernel")
    # For few rows two scans and two finishes that lower none. Rows may have two programs; none has fewer warps.
    of_finish = ["finish_kernel"] * 2 + OF_FINISH
    assert names == ["write_kernel", "bad_words_kernel", *3 * ["scan_kernel"], *of_finish]
    assert_together(sass, 5)


def test_rows_with_edits() -> None:
    script = LAID_BEFORE.format(1000, "bfloat16")
    assert compiled(script) == ["asked_kernel", "scan_kernel", "scan_kernel", *OF_FINISH]


def test_verification_with_filters_of_few_tokens() -> None:
    # 3 tokens: numbers that are 1 are constants for the compiler.
    params = {"top_k": 2, "top_p": 0.9, "logprobs": 0, "repetition_penalty": 1.2}
    names = compiled(VERIFIES.format([("block", "lse", 3, "bfloat16", True, params)]))
    laws = ["law_kernel", "whole_rows_kernel", "law_kernel"]
    expected = ["lay_over_kernel", "scan_step_kernel", *laws, "weigh_kernel", "settle_weighed_kernel", "columns_kernel"]
    assert [name for name in names if name in expected] == expected


def test_laws_without_filters() -> None:
    cases = [
        ("block", "dense", 3, "float32", False, {}),
        ("standard", "sparse", 3, "float16", False, {}),
        ("standard", "lse", 128_256, "float32", False, {}),
        ("standard", "point", 128_256, "float32", True, {"presence_penalty": 1.0}),
    ]
    names = compiled(VERIFIES.format(cases))
    assert [names.count(name) for name in ("law_kernel", "weigh_kernel", "whole_rows_kernel")] == [4, 1, 0]


def test_no_kernel_writes_a_minus_zero() -> None:
    # As a literal it is a zero for the compiler, and only for it: in the interpreter it has its sign.
    for path in Path(drawlot.kernels.triton.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.UnaryOp)
                and isinstance(node.op, ast.USub)
                and isinstance(node.operand, ast.Constant)
            ):
                assert node.operand.value != 0, f"{path.name}, line {node.lineno}"
