"""`drawlot bench sampler` on a CPU: who is compared with whom, and what keeps wrong tokens from being timed."""

import json
import os
import re
import sys
import types
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from drawlot import LogprobsTensors, SamplingParams
from drawlot.entrypoints.cli import main
from drawlot.entrypoints.sampler_benchmark import Case, benchmark, grid, read_logits, svg, timing, workload
from drawlot.entrypoints.sampler_benchmark.cases import DTYPES
from drawlot.entrypoints.sampler_benchmark.distributions import DISTRIBUTIONS
from drawlot.entrypoints.sampler_benchmark.gate import Gate
from drawlot.entrypoints.sampler_benchmark.mixes import MIXES, row_params
from drawlot.entrypoints.sampler_benchmark.oracle import Oracle
from drawlot.entrypoints.sampler_benchmark.providers import PROVIDERS, Drawn
from drawlot.errors import InputError, ParameterError
from drawlot.kernels.reference.filters import kept_set
from drawlot.testing import chi_square

CPU = torch.device("cpu")
ON_CPU = ["drawlot-torch", "torch"]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Two bursts of one call, on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(timing, "BURSTS", 2)
    monkeypatch.setattr(timing, "BURST_SECONDS", 1e-9)


@pytest.fixture
def multipass():
    """The multi-pass provider with its kernels in Triton's interpreter, which conftest.py asks for."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles here")
    return PROVIDERS["multipass"]


def gate(case):
    return Gate(Oracle(workload.make(case, CPU)))


def draws(provider, gate):
    call = provider.call(gate.oracle.work)
    return [call(logits) for logits in gate.oracle.buffers]


def test_every_mix_and_distribution_is_timed_behind_the_gate():
    cases = grid([8], [1000], mixes=list(MIXES)) + grid([3], [1000], ["bfloat16"], distributions=list(DISTRIBUTIONS))
    told = []
    record = benchmark(cases, ON_CPU, progress=told.append)
    json.dumps(record, allow_nan=False)
    assert len(told) == len(record["results"]) == len(cases)
    for case, result in zip(cases, record["results"]):
        assert result["case"]["mix"] == case.mix
        assert result["failed"] == result["not_run"] == {}
        assert result["bytes"] == case.rows * 1000 * (4 if case.dtype == "float32" else 2)
        assert list(result["providers"]) == ON_CPU
        for each in result["providers"].values():
            assert each["launch"] == "eager"
            assert not each["token_alone"]
            assert each["us"] == pytest.approx(np.median(each["bursts_us"]))
            assert each["share_of_floor"] == pytest.approx(result["floor_us"] / each["us"])


def test_providers_that_cannot_run_say_why(monkeypatch):
    pytest.importorskip("triton")  # now, and not without the variable
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    [result] = benchmark([Case(2, 300)])["results"]
    assert result["not_run"]["flashinfer"] == result["not_run"]["flashinfer-cake"] == "needs a GPU"
    assert result["not_run"]["multipass"] == "needs a GPU, or TRITON_INTERPRET=1"
    assert "needs a CUDA device" in result["not_run"]["drawlot-triton"]
    assert list(result["providers"]) == ON_CPU


@pytest.mark.parametrize("case", [Case(1, 300), Case(70, 300)])
def test_enough_rows_are_checked(case):
    oracle = gate(case).oracle
    assert len(oracle.buffers) * case.rows >= min(64, 2 * case.rows)
    assert len(oracle.kept_rows) == min(32, 2 * case.rows)


def shifted(drawn):
    return drawn._replace(token_ids=(drawn.token_ids + 1) % 300)


@pytest.mark.parametrize("name", ON_CPU)
def test_wrong_tokens_are_not_timed(name, monkeypatch):
    provider = PROVIDERS[name]
    right = type(provider).call

    def wrong(self, work):
        call = right(self, work)
        return lambda logits: shifted(call(logits))

    monkeypatch.setattr(type(provider), "call", wrong)
    [result] = benchmark([Case(8, 300)], [name])["results"]
    assert result["providers"] == {}
    assert result["failed"][name]


def test_a_backend_is_compared_token_by_token_and_logprob_by_logprob():
    checked = gate(Case(8, 300, mix="top20"))
    right = draws(PROVIDERS["drawlot-torch"], checked)
    assert checked.same_tokens("x", right) == []
    [first, *others] = right
    tokens = first.token_ids.clone()
    tokens[5] = (tokens[5] + 1) % 300
    assert any("row 5" in line for line in checked.same_tokens("x", [Drawn(tokens, first.logprobs), *others]))
    assert checked.same_tokens("x", [Drawn(first.token_ids + 1, first.logprobs), *others])
    for change in (
        {"logprobs": first.logprobs.logprobs * (1 + 1e-5)},
        {"selected_token_ranks": first.logprobs.selected_token_ranks + 1},
        {"logprob_token_ids": first.logprobs.logprob_token_ids.flip(1)},
    ):
        assert checked.same_tokens("x", [Drawn(first.token_ids, first.logprobs._replace(**change)), *others])
    assert checked.same_tokens("x", [Drawn(first.token_ids, None), *others])
    assert checked.excused == []


def test_a_near_tie_is_excused_and_told(monkeypatch):
    checked = gate(Case(8, 300))
    right = draws(PROVIDERS["drawlot-torch"], checked)
    tokens = right[0].token_ids.clone()
    tokens[0] = (tokens[0] + 1) % 300
    reference = Oracle.reference

    def close(self, buffer, row):
        return reference(self, buffer, row)._replace(margin=torch.tensor([2.0**-19]))

    monkeypatch.setattr(Oracle, "reference", close)
    # Its logprob is another token's, which is not what is tested here.
    assert checked.same_tokens("x", [Drawn(tokens, right[0].logprobs), *right[1:]]) == []
    assert len(checked.excused) == 1
    assert checked.excused[0].startswith("buffer 0, row 0: x ")


def test_the_torch_backend_itself_is_held_against_the_reference(monkeypatch):
    checked = gate(Case(8, 300))
    checked.oracle.expected = [shifted(drawn) for drawn in checked.oracle.expected]
    wrong = checked.same_tokens("x", checked.oracle.expected)
    assert [line for line in wrong if "reference" in line]


def test_others_may_draw_what_is_kept_and_nothing_else():
    checked = gate(Case(2, 300, mix="k50p90", distribution="normal1"))
    kept = checked.oracle.kept_rows
    batches = len(checked.oracle.buffers)

    def drawn(rank):
        ids = [
            [
                row.values.argsort()[::-1][rank if rank >= 0 else len(row.kept)]
                for (b, _), row in kept.items()
                if b == at
            ]
            for at in range(batches)
        ]
        return [Drawn(torch.tensor(np.array(row)), None) for row in ids]

    assert checked.from_kept_set("x", drawn(0)) == []
    assert len(checked.from_kept_set("x", drawn(-1))) == len(kept)
    outside = [Drawn(torch.full((2,), token), None) for token in (-1, 300)[:batches]]
    assert len(checked.from_kept_set("x", outside)) == len(kept)
    assert checked.excused == []


def test_others_may_break_ties_as_they_like():
    checked = gate(Case(2, 300, distribution="constant"))
    last = [Drawn(torch.full((2,), 299), None) for _ in checked.oracle.buffers]
    assert checked.from_kept_set("x", last) == []
    assert len(checked.excused) == len(checked.oracle.kept_rows)


def test_logprobs_of_others_are_checked():
    checked = gate(Case(4, 300))
    right = draws(PROVIDERS["torch"], checked)
    assert checked.from_kept_set("x", right) == []
    for error in (1e-2, float("nan")):
        wrong = [
            Drawn(each.token_ids, LogprobsTensors(each.logprobs[0], each.logprobs[1] - error, each.logprobs[2]))
            for each in right
        ]
        assert len(checked.from_kept_set("x", wrong)) == len(checked.oracle.kept_rows)


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


def test_a_grammar_lets_rows_draw_nine_tokens_of_ten():
    work = workload.make(Case(16, 1003, mix="grammar"), CPU)
    shifts = torch.arange(32, dtype=torch.int32)
    bits = (work.bitmask.unsqueeze(2) >> shifts).bitwise_and(1).flatten(1).bool()
    assert torch.equal(bits[:, :1003], work.allowed)
    assert not bits[:, 1003:].any()
    assert work.allowed.float().mean() == pytest.approx(0.9, abs=0.01)
    assert work.allowed[:, 0].all()
    assert workload.make(Case(16, 1003), CPU).bitmask is None


def test_who_forgets_the_grammar_is_not_timed(multipass):
    case = Case(32, 300, mix="grammar")
    assert multipass.why_not(workload.make(case, CPU)) == "leaves a grammar's bitmask out"
    checked = gate(case)
    for name in ON_CPU:
        assert checked.from_kept_set(name, draws(PROVIDERS[name], checked)) == []
    forgetful = workload.make(case, CPU)
    forgetful.allowed = forgetful.bitmask = None
    for name in ON_CPU:
        call = PROVIDERS[name].call(forgetful)
        wrong = checked.from_kept_set(name, [call(logits) for logits in checked.oracle.buffers])
        # A token that is not allowed, and logprobs relative to those that are.
        assert any("is not in the kept set" in line for line in wrong)
        assert any("has the logprob" in line for line in wrong)


def test_rows_per_path_are_shares_of_what_the_backend_counts(monkeypatch):
    import drawlot.kernels.torch as backend

    rows = {"listed": 5}
    sample_rows = backend.sample_rows

    def count(logits, *args, **kwargs):
        rows["listed"] += len(logits) - 1
        rows["whole"] = rows.get("whole", 0) + 1
        return sample_rows(logits, *args, **kwargs)

    from drawlot.kernels import registry

    monkeypatch.setattr(backend, "counters", lambda: dict(rows), raising=False)
    monkeypatch.setattr(backend, "sample_rows", count)
    registry._load.cache_clear()
    try:
        [result] = benchmark([Case(4, 300)], ON_CPU)["results"]
    finally:
        registry._load.cache_clear()
    assert result["providers"]["drawlot-torch"]["rows_per_path"] == {"listed": 0.75, "whole": 0.25}
    assert result["providers"]["torch"]["rows_per_path"] is None


def test_rows_have_seeds_of_their_own_and_ids_are_spread():
    params = row_params("ids128", 3, 128_256)
    assert len({row.seed for row in params}) == 3
    ids = params[0].logprob_token_ids
    assert len(ids) == 128
    assert max(ids) > 127_000
    assert len(row_params("ids128", 1, 5)[0].logprob_token_ids) == 5


def test_peaked_rows_are_peaked():
    logits = DISTRIBUTIONS["peaked"](200, 32_000, torch.Generator().manual_seed(0))
    sizes = [len(kept_set(row.numpy(), 1.0, 0, 0.95, 0.0).ids) for row in logits]
    assert np.median(sizes) < 100 < max(sizes) < 32_000


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"rows": 0}, "rows"),
        ({"vocab_size": 0}, "vocab"),
        ({"dtype": "int8"}, "dtype"),
        ({"mix": "x"}, "mix"),
        ({"distribution": "x"}, "distribution"),
    ],
)
def test_cases_are_checked(wrong, named):
    with pytest.raises(ParameterError, match=named):
        Case(**{"rows": 1, **wrong})


def test_recorded_rows_are_taken_in_turn(tmp_path):
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(1))
    np.save(tmp_path / "rows.npy", rows.numpy())
    save_file({"logits": rows.bfloat16(), "other": rows}, tmp_path / "rows.safetensors")
    assert torch.equal(read_logits(tmp_path / "rows.npy"), rows)
    assert torch.equal(read_logits(tmp_path / "rows.safetensors"), rows.bfloat16())
    work = workload.make(Case(2, 50, distribution="recorded"), CPU, rows)
    assert torch.equal(torch.cat(work.buffers), rows[[0, 1, 2, 0]])
    for name, array in (("flat.npy", rows[0].numpy()), ("double.npy", rows.double().numpy()), ("none.txt", None)):
        if array is not None:
            np.save(tmp_path / name, array)
        with pytest.raises(InputError, match=name):
            read_logits(tmp_path / name)


def run(capsys, *arguments):
    code = main(["bench", "sampler", "--rows", "2", *arguments])
    return code, *capsys.readouterr()


def test_the_command_writes_a_table_json_and_a_plot(tmp_path, capsys):
    options = "--vocab", "300,400", "--mix", "k50p90,mixed", "--providers", "drawlot-torch,torch,flashinfer"
    code, out, err = run(capsys, *options, "-o", str(tmp_path / "out.json"))
    assert (code, err) == (0, "")
    assert "2 rows x 400 float32, mixed, normal3" in out
    assert "of the floor" in out
    assert "rows per path" not in out
    assert "not run: flashinfer: needs a GPU" in out
    record = json.loads((tmp_path / "out.json").read_text())
    assert len(record["results"]) == 4
    assert record["environment"]["versions"]["torch"] == torch.__version__
    tree = ElementTree.parse(tmp_path / "out.svg")
    texts = [text.text for text in tree.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("drawlot-torch") == 4
    bars = [
        float(bar.get("width")) for bar in tree.iter("{http://www.w3.org/2000/svg}rect") if bar.get("fill") != "#ffffff"
    ]
    assert len(bars) == 8
    assert all(width > 0 for width in bars)


def test_the_help_knows_all_names(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    words = re.findall(r"[\w-]+", out)
    assert {*PROVIDERS, *MIXES, *DISTRIBUTIONS, *DTYPES} <= set(words)


def test_the_command_writes_json_to_stdout(capsys):
    code, out, err = run(capsys, "--vocab", "300", "--providers", "torch", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["results"][0]["case"]["rows"] == 2


def test_the_command_reads_recorded_rows(tmp_path, capsys):
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(0, 3, (5, 300)).astype(np.float32))
    code, out, err = run(capsys, "--logits", str(tmp_path / "rows.npy"), "--providers", "drawlot-torch")
    assert (code, err) == (0, "")
    assert "2 rows x 300 float32, k50p90, recorded" in out


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["--mix", "x"], 2, "drawlot: mix: must be one of k50p90"),
        (["--vocab", "x"], 2, "drawlot: --vocab must be numbers separated by commas"),
        (["--providers", "x"], 2, "drawlot: providers: must be among drawlot-triton"),
        (["--logits", "a.npy", "--vocab", "5"], 2, "drawlot: --logits brings its own"),
        (["--logits", "no/such.npy"], 1, "drawlot: no/such.npy: No such file or directory"),
        (["-o", "out.svg"], 2, "drawlot: --output must end in .json"),
        (["--graph"], 2, "drawlot: graph: needs a GPU"),
    ],
)
def test_a_mistake_is_one_line(arguments, code, line, capsys):
    got, out, err = run(capsys, *arguments)
    assert (got, out) == (code, "")
    assert err.startswith(line)
    assert err.count("\n") == 1


def test_a_failure_is_told_and_ends_with_1(capsys, monkeypatch):
    def broken(self, work):
        raise RuntimeError("out of luck")

    monkeypatch.setattr(type(PROVIDERS["torch"]), "call", broken)
    code, out, err = run(capsys, "--vocab", "300", "--providers", "torch,drawlot-torch")
    assert (code, err) == (1, "drawlot: failed, and not timed: torch\n")
    assert "FAILED, not timed: torch: RuntimeError: out of luck" in out
    assert "drawlot-torch" in out


def test_a_plot_breaks_off_long_bars():
    bar = {"launch": "graph", "why_eager": None, "token_alone": True, "rows_per_path": None}
    record = benchmark([Case(2, 300)], ["torch"])
    record["results"][0]["providers"] = {"a <b>": {"us": 1.0, **bar}, "c": {"us": 1000.0, **bar}}
    drawn = svg(record)
    assert drawn.count('class="break"') == 1
    assert "a &lt;b&gt;" in drawn
