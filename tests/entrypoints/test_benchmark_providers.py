"""Who is compared with drawlot in `drawlot bench sampler`: each draws by the law that it is asked for."""

import sys
import types
from dataclasses import replace

import numpy as np
import pytest
import torch
from benchmark_gate import CPU, draws, gate

from drawlot import SamplingParams
from drawlot.entrypoints.sampler_benchmark import Case, workload
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES
from drawlot.entrypoints.sampler_benchmark.providers import PROVIDERS
from drawlot.kernels.reference.filters import kept_set
from drawlot.testing import chi_square


def law(values, params):
    """Probabilities of all tokens, by the reference."""
    kept = kept_set(values, params.temperature, params.top_k, params.top_p, params.min_p)
    probabilities = np.zeros(len(values))
    probabilities[kept.ids] = np.exp(kept.z) / np.exp(kept.z).sum()
    return probabilities


def counted(provider, mix, rows):
    """How often each token of one row of logits is drawn, and the logits."""
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(3)) * 1.5
    work = workload.make(Case(rows, 40, mix=mix, distribution="recorded"), CPU, logits)
    drawn = provider.call(work)(work.buffers[0])
    return np.bincount(drawn.token_ids, minlength=40), logits[0].numpy()


@pytest.mark.parametrize("mix", ["no-filter", "k50p90", "top-p", "min-p", "flat"])
def test_plain_torch_draws_by_the_law(mix, monkeypatch):
    monkeypatch.setitem(MIXES, "k50p90", (replace(MIXES["k50p90"][0], top_k=7),))
    torch.manual_seed(5)
    counts, values = counted(PROVIDERS["torch"], mix, 20_000)
    assert chi_square(counts, law(values, MIXES[mix][0])).ok


def murmur3(seed, *words):
    """MurmurHash3_x86_32 of little-endian words, uint32."""

    def rotated(x, by):
        return (x << np.uint32(by)) | (x >> np.uint32(32 - by))

    state = np.uint32(seed)
    for word in words:
        word = rotated(np.uint32(word) * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        state = rotated(state ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    state = state ^ np.uint32(4 * len(words))
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state ^ (state >> np.uint32(16))


@np.errstate(over="ignore")
def gumbel(seed, position, ids):
    word = murmur3(seed & 0xFFFFFFFF, np.uint32(seed >> 32), np.uint32(position), ids)
    return -np.log(-np.log1p(-(word + 0.5) / 2.0**32))


@np.errstate(over="ignore")
def test_the_noise_of_the_multi_pass_pipeline_is_a_hash(multipass):
    assert murmur3(0, int.from_bytes(b"test", "little")) == 0xBA6BD213
    work = workload.make(Case(8, 3000, mix="no-logprobs", distribution="normal1"), CPU)
    for i, params in enumerate(work.params):
        work.params[i] = replace(params, temperature=1.0, top_k=0, top_p=1.0, seed=params.seed << 30)
    drawn = multipass.call(work)(work.buffers[0]).token_ids
    ids = np.arange(3000, dtype=np.uint32)
    for row, token, params in zip(work.buffers[0].numpy(), drawn.tolist(), work.params):
        assert token == np.argmax(row + gumbel(params.seed, workload.PROMPT + workload.OUTPUT, ids))


def test_that_hash_draws_by_the_law():
    values = np.random.default_rng(3).normal(0, 1.5, 40)
    ids = np.arange(40, dtype=np.uint32)
    counts = np.zeros(40)
    for seed in range(1000, 21_000):
        counts[np.argmax(values + gumbel(seed, 512, ids))] += 1
    assert chi_square(counts, law(values, SamplingParams())).ok


@np.errstate(over="ignore")
def test_the_noise_is_exact_where_it_wins(multipass):
    from drawlot.entrypoints.sampler_benchmark.providers.multipass_kernels import gumbel_kernel

    rows, blocks, block = 2, 6, 1024
    x, temperature = torch.zeros(rows, blocks * block), torch.ones(rows)
    seeds, positions = torch.tensor([5, 2**40 + 7]), torch.tensor([0, 99])
    best, best_ids = torch.empty(rows, blocks), torch.empty(rows, blocks, dtype=torch.int64)
    gumbel_kernel[rows, blocks](x, temperature, seeds, positions, best, best_ids, blocks * block, blocks, BLOCK=block)
    ids = np.arange(blocks * block, dtype=np.uint32)
    for row in range(rows):
        noise = gumbel(int(seeds[row]), int(positions[row]), ids).reshape(blocks, block)
        np.testing.assert_allclose(best[row].numpy(), noise.max(1), rtol=1e-5)
        assert (best_ids[row].numpy() == noise.argmax(1) + np.arange(blocks) * block).all()


def test_the_multi_pass_pipeline_penalises_and_cuts_by_min_p(multipass):
    from drawlot.entrypoints.sampler_benchmark.providers import multipass_kernels as kernels
    from drawlot.entrypoints.sampler_benchmark.providers.dense import Penalties

    work = workload.make(Case(8, 700, mix="mixed", distribution="normal1"), CPU)
    penalties = Penalties.of(work)
    x = work.buffers[0].clone()
    kernels.penalties_kernel[8, 2](
        x,
        penalties.counts,
        penalties.in_prompt,
        penalties.repetition,
        penalties.frequency,
        penalties.presence,
        700,
        BLOCK=512,
    )
    torch.testing.assert_close(x, penalties.dense(work.buffers[0]), rtol=1e-6, atol=1e-6)
    assert (x != work.buffers[0]).any(1).tolist() == [params.has_penalties for params in work.params]
    masked, min_p = work.buffers[0].clone(), torch.tensor([0.0, 0.05, 0.3, 1.0] * 2)
    kernels.min_p_kernel[8,](masked, min_p, 700, BLOCK=256)
    for row, got, line in zip(work.buffers[0], masked, min_p.tolist()):
        kept = kept_set(row.numpy(), 1.0, 0, 1.0, line).ids
        assert set((got > -torch.inf).nonzero().flatten().tolist()) == set(kept.tolist())


@pytest.mark.parametrize("mix", ["mixed", "top20", "ids128", "min-p", "greedy"])
def test_the_multi_pass_pipeline_passes_the_gate(mix, multipass):
    checked = gate(Case(8, 500, "bfloat16" if mix == "top20" else "float32", mix))
    checked.oracle.work.buffers = checked.oracle.work.buffers[:1]
    drawn = draws(multipass, checked)
    assert checked.from_kept_set("multipass", drawn) == []
    expected = checked.oracle.expected[0].logprobs
    if mix in ("top20", "ids128"):
        torch.testing.assert_close(drawn[0].logprobs.logprobs[:, 1:], expected.logprobs[:, 1:], rtol=1e-5, atol=1e-5)


def hard_rows(v, generator):
    normal = torch.randn(v, generator=generator)
    yield 3 * normal
    yield torch.round(2 * normal)
    yield torch.full((v,), 1.5)
    yield (3 * normal).sort(descending=True).values
    yield -2 * torch.rand(v, generator=generator).log()
    yield normal.masked_fill(torch.rand(v, generator=generator) < 0.5, -torch.inf)


@pytest.mark.parametrize(("k", "p"), [(5, 1.0), (50, 0.901), (700, 0.901), (700, 0.501), (50, 0.101), (699, 0.951)])
def test_the_mask_is_the_kept_set(k, p, multipass):
    from drawlot.entrypoints.sampler_benchmark.providers.multipass_filter import top_k_top_p_kernel

    x = torch.stack(list(hard_rows(700, torch.Generator().manual_seed(k))))
    masked, scratch = x.clone(), torch.empty_like(x)
    top_k = torch.full((len(x),), k, dtype=torch.int32)
    top_p = torch.full((len(x),), p)
    top_k_top_p_kernel[(len(x),)](masked, scratch, top_k, top_p, 700, BLOCK=256)
    for row, got in zip(x, masked):
        kept = kept_set(row.numpy(), 1.0, k if k < 700 else 0, p, 0.0)
        assert kept.margin > 1e-6, "a case on the boundary tests rounding"
        assert set((got > -torch.inf).nonzero().flatten().tolist()) == set(kept.ids.tolist())
        assert torch.equal(got[kept.ids], row[kept.ids])


def test_ties_of_a_higher_line_are_not_those_of_a_lower(multipass):
    from drawlot.entrypoints.sampler_benchmark.providers.multipass_filter import top_k_top_p_kernel

    # k = 6 keeps one of the ones; half of the mass is reached by the third of the twos.
    row = torch.tensor([[0.0] * 9 + [2.0] * 5 + [1.0] * 10])
    scratch = torch.empty_like(row)
    top_k_top_p_kernel[1,](row, scratch, torch.tensor([6], dtype=torch.int32), torch.tensor([0.5]), 24, BLOCK=16)
    assert (row[0] > -torch.inf).nonzero().flatten().tolist() == [9, 10, 11]


def stand_in():
    """flashinfer.sampling and its cake, by plain torch; only names and arguments are theirs."""
    sampling, cake = types.ModuleType("flashinfer.sampling"), types.ModuleType("flashinfer.cake_sampling")

    def kept(probs, top_k, top_p, min_p=None):
        best, ids = probs.sort(-1, descending=True)
        if min_p is not None:
            best = best.masked_fill(best < min_p.unsqueeze(1) * best[:, :1], 0)
        best = best.masked_fill(torch.arange(probs.shape[1]) >= top_k.unsqueeze(1), 0)
        best = best / best.sum(-1, keepdim=True)
        best = best.masked_fill(best.cumsum(-1) - best >= top_p.unsqueeze(1), 0)
        return ids.gather(1, torch.multinomial(best, 1)).squeeze(1).int()

    def everything(probs):
        return torch.full((len(probs),), probs.shape[1])

    def softmax(logits, temperature=None, enable_pdl=None):
        return (logits.float() / temperature.unsqueeze(1)).softmax(-1)

    def top_k_top_p_sampling_from_logits(logits, top_k, top_p, indices=None, filter_apply_order="", *, seed, offset):
        assert filter_apply_order == "top_k_first"
        return kept(logits.softmax(-1), top_k, top_p)

    def top_p_sampling_from_probs(probs, top_p, *, seed, offset):
        return kept(probs, everything(probs), top_p)

    def min_p_sampling_from_probs(probs, min_p, *, seed, offset):
        return kept(probs, everything(probs), torch.full((len(probs),), 2.0), min_p)

    def sampling_from_logits(logits, *, seed, offset):
        return torch.multinomial(logits.softmax(-1), 1).squeeze(1).int()

    def top_k_top_p_sampling_from_probs(probs, top_k, top_p, *, top_k_max, philox_seed, philox_offset):
        assert top_k_max == top_k.max()
        return kept(probs, top_k, top_p)

    for function in (
        softmax,
        top_k_top_p_sampling_from_logits,
        top_p_sampling_from_probs,
        min_p_sampling_from_probs,
        sampling_from_logits,
    ):
        setattr(sampling, function.__name__, function)
    cake.top_k_top_p_sampling_from_probs = top_k_top_p_sampling_from_probs
    return {"flashinfer": types.ModuleType("flashinfer"), sampling.__name__: sampling, cake.__name__: cake}


@pytest.mark.parametrize(
    ("name", "mix"),
    [
        ("flashinfer", "k50p90"),
        ("flashinfer", "top-p"),
        ("flashinfer", "min-p"),
        ("flashinfer", "no-filter"),
        ("flashinfer-cake", "k50p90"),
    ],
)
def test_flashinfer_is_asked_for_the_same_law(name, mix, monkeypatch):
    for module_name, module in stand_in().items():
        monkeypatch.setitem(sys.modules, module_name, module)
    torch.manual_seed(5)
    monkeypatch.setitem(MIXES, "k50p90", (replace(MIXES["k50p90"][0], top_k=7),))
    counts, values = counted(PROVIDERS[name], mix, 20_000)
    assert chi_square(counts, law(values, MIXES[mix][0])).ok


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        ("k50p90", None),
        ("top-p", None),
        ("greedy", "has no greedy rows and no penalties"),
        ("mixed", "has no greedy rows and no penalties"),
        ("top20", "has no logprobs"),
        ("ids128", "has no logprobs"),
        ("grammar", "has no bitmask"),
    ],
)
def test_flashinfer_is_not_asked_for_what_it_does_not_do(mix, reason):
    from drawlot.entrypoints.sampler_benchmark.providers.flashinfer import _beyond_flashinfer

    assert _beyond_flashinfer(workload.make(Case(8, 300, mix=mix), CPU)) == reason
