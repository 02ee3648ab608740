"""The real FlashInfer behind backend="flashinfer", on a GPU: laws, bad rows, conditions, memory, synchronisation.

Run: PYTHONPATH=src python -m benchmarks.flashinfer_gpu -o flashinfer.json, where FlashInfer is installed
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from drawlot import BackendError, LogitsRows, Sampler, SamplingParams, sample
from drawlot.kernels.registry import why_not
from drawlot.testing import chi_square
from tests.statistical.draws import law_of

EMPTY = float("-inf")
calls = 0  # of FlashInfer's entry point


def watched(function):
    def watch(*args, **kwargs):
        global calls
        calls += 1
        return function(*args, **kwargs)

    return watch


def counts_of(logits, draws, device, dtype=torch.float32, chunk=1 << 16, **params):
    """Counts of draws from one row of logits by the backend, all of them by FlashInfer."""
    global calls
    row = torch.as_tensor(logits).to(dtype).to(device)
    chunk = max(1, min(chunk, draws, (1 << 28) // len(row)))
    counts = torch.zeros(len(row), dtype=torch.int64, device=device)
    before, rounds = calls, -(-draws // chunk)
    for _ in range(rounds):
        out = sample(row.expand(chunk, -1).contiguous(), SamplingParams(**params), backend="flashinfer")
        counts += torch.bincount(out.token_ids, minlength=len(row))
    assert calls - before == rounds, "some batch was not FlashInfer's"
    return counts.cpu().numpy()


def fits(counts, law):
    """Whether the law fits, and no longer does with a draw in a hundred led astray."""
    fit = chi_square(counts, law)
    led = counts - counts // 100
    led[np.where(law > 0, law, 2).argmin()] += counts.sum() - led.sum()
    mutant = chi_square(led, law)
    return {
        "draws": int(counts.sum()),
        "statistic": fit.statistic,
        "low": fit.low,
        "high": fit.high,
        "bins": fit.bins,
        "mutant_statistic": mutant.statistic,
        "ok": bool(fit.ok and not mutant.ok),
    }


LADDER = -0.7 * torch.arange(16.0, dtype=torch.float64)
COUNTS = torch.arange(1.0, 17.0, dtype=torch.float64).log()
SMALL = {
    "top-k": (COUNTS, {"top_k": 11}),
    "top-p": (COUNTS, {"top_p": 0.77}),
    "top-k before top-p": (LADDER, {"temperature": 3.0, "top_k": 5, "top_p": 0.7}),
    "min-p before top-p": (LADDER, {"temperature": 3.0, "top_p": 0.75, "min_p": 0.3}),
    "all filters": (LADDER, {"temperature": 2.0, "top_k": 9, "top_p": 0.95, "min_p": 0.08}),
    "cold": (COUNTS, {"temperature": 0.5, "top_k": 12}),
    "hot": (LADDER, {"temperature": 3.0, "top_k": 14}),
}


def laws(device, draws):
    found = {name: fits(counts_of(x, draws, device, **p), law_of(x.float(), **p)) for name, (x, p) in SMALL.items()}
    for name, (x, p) in {"bfloat16": (LADDER, {"temperature": 1.0, "top_k": 9, "top_p": 0.95})}.items():
        x = x.to(torch.bfloat16)
        found[name] = fits(counts_of(x, draws, device, dtype=torch.bfloat16, **p), law_of(x.double(), **p))
    return found


def wide_laws(device, draws, vocab_size):
    """Live tokens far apart in a wide row, crowded by others that only together weigh something."""
    x = torch.full((vocab_size,), -12.0, dtype=torch.float64)
    live = torch.linspace(0, vocab_size - 1, 40).long()
    x[live] = torch.arange(1.0, 41.0, dtype=torch.float64).log()
    cases = {
        "top-k": {"top_k": 25},
        "top-p": {"top_p": 0.6},
        "both": {"top_k": 30, "top_p": 0.8, "temperature": 0.8},
        "min-p and top-p": {"min_p": 0.2, "top_p": 0.9, "temperature": 1.5},
    }
    return {name: fits(counts_of(x.float(), draws, device, **p), law_of(x.float(), **p)) for name, p in cases.items()}


def mixed_rows(device, draws):
    """Rows of unlike parameters in one batch, each by its own law; one with top_k beside others without."""
    global calls
    vocab_size = 70_000
    x = torch.full((vocab_size,), EMPTY)
    live = torch.linspace(0, vocab_size - 1, 16).long()
    x[live] = LADDER.float()
    kinds = [{"top_k": 5}, {"top_p": 0.9}, {}, {"temperature": 2.5, "top_k": 7, "top_p": 0.8}, {"min_p": 0.2}]
    repeat = 256
    params = [SamplingParams(**kind) for kind in kinds for _ in range(repeat)]
    logits = x.to(device).expand(len(params), -1).contiguous()
    counts = torch.zeros((len(kinds), vocab_size), dtype=torch.int64)
    rounds = -(-draws // repeat)
    sampler = Sampler(len(params), vocab_size, device=device, backend="flashinfer")
    for i, p in enumerate(params):
        sampler.add_request(i, p, [])
    index = torch.arange(len(params), device=device)
    zeros = torch.zeros_like(index)
    cu = torch.arange(len(params) + 1, dtype=torch.int32, device=device)
    rows = LogitsRows(index, index, zeros, zeros, zeros, cu, range(len(params)))
    before = calls
    for _ in range(rounds):
        tokens = sampler(logits, rows).token_ids.view(len(kinds), repeat).cpu()
        for kind, drawn in enumerate(tokens):
            counts[kind] += torch.bincount(drawn, minlength=vocab_size)
    assert calls - before == rounds, "some batch was not FlashInfer's"
    return {str(kind): fits(counts[i].numpy(), law_of(x, **kind)) for i, kind in enumerate(kinds)}


def bad_rows(device):
    """NaN, +inf and empty rows are flagged; what the others keep does not change."""
    found = {}
    for vocab_size in (1000, 128_256):
        good = torch.randn((8, vocab_size), device=device, generator=torch.Generator(device).manual_seed(3)) * 4
        for temperature in (1.0, 0.6):
            x = good.clone()
            x[1, 7], x[2, vocab_size - 1], x[4], x[6] = torch.nan, torch.inf, EMPTY, torch.nan
            before = x.clone()
            ok = True
            for k in (1, 40):
                params = SamplingParams(top_k=k, temperature=temperature, logprobs=2)
                out = sample(x, params, backend="flashinfer")
                kept = good.topk(k, 1).indices
                for row in range(8):
                    bad = {1: 1, 2: 1, 4: 2, 6: 1}.get(row, 0)
                    token = int(out.token_ids[row])
                    ok &= int(out.status[row]) == bad
                    ok &= token == -1 if bad else token in kept[row].tolist()
                alone = sample(good[[0, 3, 5, 7]], params, backend="flashinfer")
                if k == 1:
                    ok &= torch.equal(alone.token_ids, out.token_ids[[0, 3, 5, 7]])
                    ok &= torch.equal(alone.logprobs.logprobs, out.logprobs.logprobs[[0, 3, 5, 7]])
            ok &= bool(((x == before) | (x.isnan() & before.isnan())).all())
            found[f"V={vocab_size} T={temperature}"] = {"ok": bool(ok)}
    return found


def conditions(device):
    """Who draws which batch, and that what falls back draws drawlot's tokens."""
    global calls
    logits = torch.randn((4, 5000), device=device)
    k = SamplingParams(top_k=20)
    batches = {
        "top_k": ([k] * 4, {}, True),
        "top_p": ([SamplingParams()] * 3 + [SamplingParams(top_p=0.5)], {}, True),
        "no filter": ([SamplingParams()] * 4, {}, False),
        "greedy": ([k, k, k, SamplingParams(temperature=0)], {}, False),
        "seeded": ([k, k, k, SamplingParams(top_k=3, seed=1)], {}, False),
        "processed": ([k, k, k, SamplingParams(logprobs=1)], {"logprobs_mode": "processed_logprobs"}, False),
        "float64": ([k] * 4, {"use_fp64_gumbel": True}, False),
    }
    found = {}
    for name, (params, kwargs, expected) in batches.items():
        before = calls
        sample(logits, params, positions=torch.arange(4), backend="flashinfer", **kwargs)
        found[name] = {"by_flashinfer": calls - before, "ok": calls - before == int(expected)}
    seeded = [SamplingParams(top_k=20, seed=seed, logprobs=2) for seed in range(4)]
    pair = [sample(logits, seeded, positions=torch.arange(4), backend=b) for b in ("flashinfer", "auto")]
    same = torch.equal(pair[0].token_ids, pair[1].token_ids)
    found["fallback draws drawlot's tokens"] = {"ok": same and torch.equal(*(o.logprobs.logprobs for o in pair))}
    return found


def peak(call):
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def memory(device):
    """Peak beyond what a bare call of FlashInfer takes, in copies of the logits."""
    n, vocab_size = 64, 128_256
    logits = torch.randn((n, vocab_size), device=device)
    one = logits.numel() * 4
    draw = import_module("flashinfer").sampling.top_k_top_p_sampling_from_logits
    k = torch.full((n,), 50, dtype=torch.int32, device=device)
    p = torch.full((n,), 0.9, device=device)
    bare = peak(lambda: draw(logits, k, p, filter_apply_order="top_k_first"))
    found = {"bare call": {"copies": bare / one, "ok": True}}
    cases = {"as they are": ({}, 0.0), "temperature": ({"temperature": 0.7}, 1.0)}
    for name, (params, most) in cases.items():
        kind = SamplingParams(top_k=50, top_p=0.9, **params)
        extra = (peak(lambda kind=kind: sample(logits, kind, backend="flashinfer")) - bare) / one
        found[name] = {"copies_beyond_it": extra, "ok": extra < most + 0.01}
    return found


def synchronisation(device):
    """Nothing between the call and its tensors waits for the device."""
    n, vocab_size = 8, 128_256
    sampler = Sampler(n, vocab_size, device=device, backend="flashinfer")
    for i in range(n):
        sampler.add_request(i, SamplingParams(top_k=50, top_p=0.9, temperature=0.8, min_p=0.01), [])
    logits = torch.randn((n, vocab_size), device=device)
    index = torch.arange(n, device=device)
    zeros = torch.zeros_like(index)
    cu = torch.arange(n + 1, dtype=torch.int32, device=device)
    rows = LogitsRows(index, index, zeros, zeros, zeros, cu, range(n))
    sampler(logits, rows)
    torch.cuda.set_sync_debug_mode("error")
    try:
        sampler(logits, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return {"sampler call": {"ok": True}}


def capture(device):
    """A captured graph is refused."""
    logits = torch.randn((4, 5000), device=device)
    sampler = Sampler(4, 5000, device=device, backend="flashinfer")
    for i in range(4):
        sampler.add_request(i, SamplingParams(top_k=50), [])
    index = torch.arange(4, device=device)
    zeros = torch.zeros_like(index)
    rows = LogitsRows(index, index, zeros, zeros, zeros, torch.arange(5, dtype=torch.int32, device=device), range(4))
    sampler(logits, rows)
    refused = False
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        try:
            sampler(logits, rows)
        except BackendError:
            refused = True
    sampler(logits, rows)
    return {"refused": {"ok": refused}}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", default="flashinfer.json")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--draws", type=int, default=1 << 24)
    parser.add_argument("--wide-draws", type=int, default=1 << 17)
    args = parser.parse_args()
    device = torch.device(args.device)
    begin = time.perf_counter()
    reason = why_not("flashinfer", device)
    if reason is not None:
        sys.exit(f"flashinfer: {reason}")
    flashinfer = import_module("flashinfer")
    on_gpu = device.type == "cuda"
    result = {
        "gpu": torch.cuda.get_device_name(device) if on_gpu else "none",
        "flashinfer": flashinfer.__version__,
        "torch": torch.__version__,
        "commit": subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "import_seconds": time.perf_counter() - begin,
    }
    draw = "top_k_top_p_sampling_from_logits"
    setattr(flashinfer.sampling, draw, watched(getattr(flashinfer.sampling, draw)))
    torch.manual_seed(2024)
    parts = {
        "laws": lambda: laws(device, args.draws),
        "laws at V=128256": lambda: wide_laws(device, args.wide_draws, 128_256),
        "mixed rows": lambda: mixed_rows(device, args.wide_draws),
        "bad rows": lambda: bad_rows(device),
        "conditions": lambda: conditions(device),
    }
    if on_gpu:
        parts |= {"memory": lambda: memory(device), "synchronisation": lambda: synchronisation(device)}
        parts |= {"capture": lambda: capture(device)}
    failed = False
    for name, part in parts.items():
        begin = time.perf_counter()
        try:
            result[name] = part()
            for case, entry in result[name].items():
                failed |= not entry["ok"]
                shown = " ".join(f"{key}={value:.6g}" for key, value in entry.items() if key != "ok")
                print("ok    " if entry["ok"] else "FAILED", f"{name}: {case}", shown, flush=True)
        except Exception:
            result[name] = traceback.format_exc()
            failed = True
            print("FAILED", name, result[name], flush=True)
        print(f"       {name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr, flush=True)
    result["ok"] = not failed
    Path(args.o).write_text(json.dumps(result, indent=1))
    sys.exit(failed)


main()
