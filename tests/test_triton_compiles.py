"""Kernels compile for a GPU: Triton's interpreter runs Python, of which the compiler takes a part."""

import pytest

from tests.without_gpu import compiled

pytest.importorskip("triton")

SAMPLES = """
V, DTYPE, PARAMS, WIDE = {}
sampler = Sampler(2, V, backend="triton", use_fp64_gumbel=WIDE)
for i in range(2):
    sampler.add_request(i, SamplingParams(**PARAMS), [1])
index, nothing = torch.arange(2), torch.zeros(2, dtype=torch.int64)
rows = LogitsRows(index, index, nothing, nothing, nothing, torch.arange(3, dtype=torch.int32))
sampler(torch.zeros(2, V, dtype=DTYPE), rows)
"""
VERIFIES = """
K = 4
for method, form, V, params in {}:
    verifier = RejectionSampler(Sampler(2, V, backend="triton"), num_speculative_tokens=K, method=method)
    for i in range(2):
        verifier.sampler.add_request(i, SamplingParams(**params), [1])
    index, local, first = torch.arange(2), torch.arange(K + 1).repeat(2), torch.tensor([0, 5, 10], dtype=torch.int32)
    rows = LogitsRows(index, index.repeat_interleave(K + 1), local, local, local, first)
    q, lse = torch.zeros(2, K, V), torch.zeros(2, K)
    if form == "sparse":
        q = SparseDraftLogits(torch.zeros(2, K, 8, dtype=torch.int64), torch.zeros(2, K, 8))
    laws = {{"point": (), "dense": (q,), "lse": (q, lse), "sparse": (q,)}}[form]
    verifier(torch.zeros(10, V), rows, torch.zeros((2, K), dtype=torch.int64), *laws)
"""
FILTERS = {"top_k": 50, "top_p": 0.9, "logprobs": 0}
OF_SAMPLING = ["scan_kernel", "finish_kernel", "finish_kernel", "whole_rows_kernel"]


@pytest.mark.parametrize(
    "case",
    [f"128256, torch.float32, {FILTERS}, False", f"3, torch.bfloat16, {FILTERS | {'presence_penalty': 1.0}}, True"],
)
def test_sampling(case: str) -> None:
    names = compiled(SAMPLES.format(case))
    assert [name for name in names if name in OF_SAMPLING] == OF_SAMPLING


def test_verification_with_filters() -> None:
    names = compiled(VERIFIES.format([("block", "lse", 1000, FILTERS)]))
    weighed = ["draw_kernel", "weigh_kernel", "settle_weighed_kernel", "columns_kernel"]
    assert [name for name in names if name != "write_kernel"] == [
        "scan_step_kernel",
        *OF_SAMPLING[1:],
        "law_kernel",
        *weighed,
    ]


def test_laws_without_filters() -> None:
    cases = [
        ("block", "dense", 3, {}),
        ("standard", "sparse", 3, {}),
        ("standard", "lse", 128_256, {}),
        ("standard", "point", 128_256, {}),
    ]
    names = compiled(VERIFIES.format(cases))
    assert [names.count(name) for name in ("law_kernel", "weigh_kernel", "whole_rows_kernel")] == [4, 1, 0]
