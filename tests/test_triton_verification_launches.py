"""When Triton's verification is captured, warmed up and compiled, and where its inputs must lie."""

import pytest
import torch

from drawlot import InputError, RejectionSampler, Sampler, SamplingParams
from tests.without_gpu import counted

pytest.importorskip("triton")
from tests.test_triton_verification import K, different, interpreted, rows_of, verifiers

pytestmark = [interpreted, pytest.mark.filterwarnings("ignore::RuntimeWarning")]


def test_a_captured_step_is_good_for_requests_that_need_its_launches() -> None:
    fast, _ = verifiers(8, [SamplingParams(), SamplingParams()], ["standard"] * 2)
    sampler, keys = fast.sampler, [fast.capture_key]
    sampler.remove_request(1)
    sampler.add_request(1, SamplingParams(top_p=0.5), [1])
    keys.append(fast.capture_key)
    fast.set_method(1, "block")
    keys.append(fast.capture_key)
    assert len(set(keys)) == 3
    sampler.remove_request(1)
    sampler.add_request(1, SamplingParams(temperature=0, top_p=0.5), [1])
    assert fast.capture_key == keys[0]
    fast.set_method(1, "coupled")
    assert fast.capture_key == keys[0]
    assert RejectionSampler(Sampler(2, 8, backend="torch"), num_speculative_tokens=K).capture_key is None


def test_a_warm_verifier_does_as_a_cold_one() -> None:
    torch.manual_seed(5)
    v = 130
    logits, q = torch.randn(4, v), torch.randn(2, K, v)
    sampler = Sampler(2, v, backend="triton")
    warm = RejectionSampler(sampler, num_speculative_tokens=K)
    warm.warm_up(logits, q, None, torch.full((4, 5), -1, dtype=torch.int32))
    params, methods = [SamplingParams(seed=1, top_p=0.9), SamplingParams(seed=2)], ["standard", "block"]
    _, exact = verifiers(v, params, methods)
    for r, (each, method) in enumerate(zip(params, methods)):
        sampler.add_request(r, each, [1])
        warm.set_method(r, method)
    drafts = torch.tensor([[5, -1, -1, -1], [6, -1, -1, -1]])
    given = logits, rows_of(drafts, [1, 1]), drafts, q
    assert not different(warm(*given), exact(*given)).any()
    with pytest.raises(InputError, match="before the first request"):
        warm.warm_up(logits, q)
    with pytest.raises(InputError, match="target_logits: warm_up needs at least 2 rows; got 1"):
        RejectionSampler(Sampler(2, v, backend="triton"), num_speculative_tokens=K).warm_up(logits[:1])


COMPILATIONS = """
from itertools import product
from drawlot import RejectionSampler, SparseDraftLogits

V, K = 1000, 4
bitmask = torch.full((40, 32), -1, dtype=torch.int32)
dense, sparse = torch.zeros(8, K, V), SparseDraftLogits(torch.zeros(8, K, 8, dtype=torch.int64), torch.zeros(8, K, 8))
later, warm = 0, []
for q, lse in ((None, None), (dense, None), (dense, torch.zeros(8, K)), (sparse, None)):
    sampler = Sampler(8, V, backend="triton")
    verifier = RejectionSampler(sampler, num_speculative_tokens=K, synthetic_rates=[0.5] * K)
    before = len(compiled)
    verifier.warm_up(torch.zeros(2, V), q, lse, bitmask[:2])
    warm.append(len(compiled) - before)
    filters, extras = ({}, {"top_k": 5}, {"temperature": 0.0}), ({}, {"logprobs": 3}, {"presence_penalty": 1.0})
    methods = "standard", "block", "coupled", "synthetic"
    for requests, (some, more, method) in enumerate(product(filters, extras, methods)):
        r = 1 + requests % 8
        for i in range(r):
            sampler.add_request(i, SamplingParams(seed=i, **some, **more), [1])
            verifier.set_method(i, method)
        index, local = torch.arange(r), torch.arange(K + 1).repeat(r)
        first = (K + 1) * torch.arange(r + 1, dtype=torch.int32)
        rows = LogitsRows(index, index.repeat_interleave(K + 1), local, local, local, first)
        drafts = torch.ones((r, K), dtype=torch.int64)
        for mask in (None, bitmask[: len(local)]):
            before = len(compiled)
            verifier(torch.zeros(len(local), V), rows, drafts, q, lse, mask)
            later += len(compiled) - before
        for i in range(r):
            sampler.remove_request(i)
print(min(warm), later, len(launched))
"""


def test_nothing_is_compiled_after_the_warm_up() -> None:
    warm, later, launched = counted(COMPILATIONS)
    # Scan and laws in eight forms at least, and two kernels that weigh for each form of q.
    assert warm >= 20
    assert later == 0
    assert launched > 1000


def test_drafts_on_another_device_are_named() -> None:
    fast, _ = verifiers(8, [SamplingParams()], ["standard"])
    drafts = torch.zeros((1, K), dtype=torch.int64)
    with pytest.raises(InputError, match="drafts: must lie on cpu; got meta"):
        fast(torch.zeros(5, 8), rows_of(drafts, [4]), drafts, torch.zeros((1, K, 8), device="meta"))
