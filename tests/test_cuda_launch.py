"""The CUDA driver finds the arguments of kernels where launches say."""

import gc
import weakref

import pytest
import torch

pytest.importorskip("triton")
from drawlot.kernels.triton.arguments import Overlay, RowEdits, Rows
from drawlot.kernels.triton.launch import Packed, Template, pack
from tests.without_gpu import counted, printed

STEPS = """
import ctypes
V, most = 1000, 40
sampler = Sampler(most, V, backend="triton")
for i in range(most):
    sampler.add_request(i, SamplingParams(seed=i, {}), [1, 2, 3])
index, memory = torch.arange(most), torch.zeros(most + 8, V + 24)
asked = sampler._steps._numbers.table[-1]
floats, ints = sampler._steps._floats, sampler._steps._ints
seen = set()
for step, n in enumerate((1, 3, 16, 3, 40)):
    logits, positions, which = memory[step : step + n], (index + step)[:n], index.clone()[:n]
    rows = LogitsRows(which, which, positions, positions, positions, index)
    launched.clear(), given.clear()
    sampler(logits, rows)
    at = given[launched.index("scan_kernel")]
    numbers = [ctypes.c_int64.from_address(where).value for where in (ctypes.c_int64 * {}).from_address(at)]
    # What Triton adds.
    assert numbers[-2:] == [0, 0]
    assert launched[0] == ("write_kernel" if step == 0 else "scan_kernel")
    # `Rows` without what is constant: logits, stride, V, tiles, the bitmask's stride; then edits; then `States`.
    assert numbers[:5] == [logits.data_ptr(), V + 24, V, 8, 0], numbers
    states = [tensor.data_ptr() for tensor in (floats, ints, asked)] + [most, which.data_ptr(), positions.data_ptr()]
    found = [i for i in range(len(numbers)) if numbers[i : i + 6] == states]
    assert len(found) == 1, (numbers, states)
    seen.add((logits.data_ptr(), which.data_ptr()))
print(len(seen), found[0])
"""

KINDS = """
from drawlot.kernels.triton.launch import Launch, pack
from drawlot.kernels.triton.state_table import asked_kernel
handles = []
Cuda.cuLaunchKernelEx = lambda config, handle, parameters, extra: handles.append(handle.value) or 0
single, double = torch.zeros(4), torch.zeros(4, dtype=torch.float64)
launch = Launch(asked_kernel, lambda n, _: n, None, double, 4, BLOCK=128)
for first, second in 2 * [(single, single), (double, single), (single, double)]:
    launch(4, pack(first), pack(second))
print(*handles)
"""

CHANGED = """
_load = cuda_launch._sizes_of_parameters
def changed(handle, count):
    told and {}
    return _load(handle, count)
cuda_launch._sizes_of_parameters = changed
import sys
sys.excepthook = lambda kind, error, where: (print(error, flush=True), os._exit(0))
import os
"""


@pytest.mark.parametrize(("asks", "place", "count"), [("top_k=9", 5, 21), ("logit_bias={3: 1.0}", 31, 47)])
def test_the_driver_is_given_the_arguments_of_each_step(asks: str, place: int, count: int) -> None:
    num_seen, found = map(int, printed(STEPS.format(asks, count), "scan_kernel").split())
    assert num_seen == 5
    assert found == place


def test_a_launch_knows_kernels_by_the_types_of_its_arguments() -> None:
    assert counted(KINDS) == 2 * [1, 2, 3]


def rows_of(first: int, *, masked: bool, edited: bool) -> Rows:
    """Some rows of the same memory."""
    logits, bitmask = torch.zeros(8, 64)[first:], torch.zeros(8, 4, dtype=torch.int32)[first:]
    numbers = torch.zeros(8, dtype=torch.int64)[first:]
    edits = pack(RowEdits(pack(torch.zeros(3)), numbers, numbers, numbers, numbers)) if edited else None
    lines = torch.zeros(8, 64, dtype=torch.int32)
    overlay = Overlay(lines[0], lines, torch.zeros(8, 64), 2, 64) if edited else None
    return Rows(logits, 64, 64, 1, bitmask if masked else None, 4 * masked, overlay, None, edits)


@pytest.mark.parametrize("edited", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_template_packs_as_if_nothing_were_known(masked: bool, edited: bool) -> None:
    given = rows_of(0, masked=masked, edited=edited)
    template = Template(given, "logits", "bitmask", "edits_of")
    for first in (0, 2, 5):
        other = rows_of(first, masked=masked, edited=edited)
        fields = other.logits, other.bitmask, other.edits_of
        expected = pack(given._replace(logits=fields[0], bitmask=fields[1], edits_of=fields[2]))
        packed = template.packed(*fields)
        assert packed.numbers.tolist() == expected.numbers.tolist()
        assert (packed.kind, packed.stand_in) == (expected.kind, expected.stand_in)
        assert isinstance(packed, Packed)
        assert packed.argument()[:5] == expected.argument()[:5]
        assert packed.argument().edits_of is fields[2]


def test_a_template_keeps_no_logits() -> None:
    rows = rows_of(0, masked=True, edited=False)
    template, kept = (
        Template(rows, "logits", "bitmask", "edits_of"),
        [weakref.ref(rows.logits), weakref.ref(rows.bitmask)],
    )
    packed = template.packed(rows.logits, rows.bitmask, None)
    assert all(tensor() is not None for tensor in kept)
    del rows, packed
    gc.collect()
    assert [tensor() for tensor in kept] == [None, None]
    assert template._others[:5] == (None, 64, 64, 1, None)


FORMS = """
def count_forms(self, key, signature, device, constants, *args, **kwargs):
    names = [name for name in ("LOWERS", "ASIDE", "AHEAD") if name in self.arg_names]
    about = {name: int(constants[self.arg_names.index(name),]) for name in names}
    kernel = count(self, key, signature, device, constants, *args, **kwargs)
    kernel.metadata.name = (self.fn.__name__, about)
    return kernel

JITFunction._do_compile = count_forms
V, most = 1000, 80
sampler = Sampler(most, V, backend="triton", logprobs_mode="MODE")
for i in range(most):
    sampler.add_request(i, SamplingParams(logprobs=5, ASKS), [1])
index, logits = torch.arange(most), torch.zeros(most, V)
for n in (1, 16, 17, 32, 33, 64, 65, 80, 33, 1):
    part = index[:n]
    launched.clear(), programs.clear()
    sampler(logits[:n], LogitsRows(part, part, part, part, 0 * part, torch.zeros(n + 1, dtype=torch.int32)))
    scan, finish = ([name for name, _ in launched].index(kernel) for kernel in ("scan_kernel", "finish_kernel"))
    of_scan, of_finish = launched[scan][1], launched[finish][1]
    assert of_scan["LOWERS"] == of_finish["LOWERS"]
    # A row of so small a vocabulary has one program.
    assert programs[scan] == n + of_scan["AHEAD"]
    print(n, of_scan["LOWERS"], of_finish["ASIDE"], of_scan["AHEAD"])
"""


def forms_of(asks: str, mode: str) -> list[list[int]]:
    """Of steps of so many rows: whether they are lowered and told aside, and how many have programs ahead."""
    told = printed(FORMS.replace("ASKS", asks).replace("MODE", mode), "finish_kernel")
    return [[int(number) for number in line.split()] for line in told.splitlines()]


SIZES = (1, 16, 17, 32, 33, 64, 65, 80, 33, 1)


@pytest.mark.parametrize(("asks", "edits"), [("top_k=9", 0), ("top_k=9, repetition_penalty=1 + i % 2 / 5", 1)])
@pytest.mark.parametrize("top_aside", [0, 1])
def test_rows_are_lowered_told_aside_and_read_ahead_by_how_many_they_are(asks: str, edits: int, top_aside: int) -> None:
    """More than 32 are lowered, 17 to 32 read ahead, where a request asks so; up to 16 have two programs each."""
    given = asks.replace("top_k=9", "top_k=9, temperature=i % 2") if top_aside else asks
    expected = [[n, int(n > 32) * edits, int(n <= 16) * top_aside, 8 * int(16 < n <= 32) * edits] for n in SIZES]
    assert forms_of(given, "raw_logprobs") == expected


def test_edited_rows_of_any_number_are_read_ahead_where_none_is_lowered() -> None:
    told = forms_of("top_k=9, repetition_penalty=1.2", "processed_logprobs")
    assert [[lowers, ahead] for _, lowers, _, ahead in told] == [[0, 8 * int(n > 16)] for n in SIZES]


@pytest.mark.parametrize("change", ["told.pop(0)", "told.insert(2, 8)"])
def test_other_arguments_than_those_known_are_refused(change: str) -> None:
    script = STEPS.format("top_k=9", 18).replace("import ctypes", f"import ctypes\n{CHANGED}".format(change), 1)
    assert printed(script, "scan_kernel").startswith("scan_kernel: this version of Triton passes arguments in an")
