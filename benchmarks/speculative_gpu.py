"""Speculative decoding on a GPU, by drawlot's kernels: `python -m benchmarks.speculative_gpu -o FILE`.

Every speculator under every rule with the embedded models in float32: 64 prompts of random tokens, 64 tokens each,
greedy and at temperature 0.8. Greedy requests and those of `coupled` have to emit what the engine emits without drafts;
exit code 1 if they do not.
"""

import argparse
import json
import random
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import torch

from drawlot import SamplingParams
from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.entrypoints.sampler_benchmark.environment import environment
from tests.engine.running import run, tokens

SPECULATORS: dict[str, dict[str, str]] = {
    "eagle": {"model": "tiny-eagle"},
    "draft_model": {"model": "tiny-draft"},
    "ngram": {},
}
RULES = ("coupled", "standard", "block")
NUM_DRAFTS = 4


def engine_of(device: str, speculative_config: dict[str, Any] | None = None) -> tuple[Engine, float]:
    """An engine, and the seconds that it took to start."""
    start = time.perf_counter()
    engine = Engine(
        EngineArgs(model="tiny", device=device, dtype="float32", speculative_config=speculative_config, max_num_seqs=64)
    )
    return engine, time.perf_counter() - start


def requests(vocab_size: int, count: int, length: int, temperature: float) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of random tokens, each with a seed of its own."""
    rng = random.Random(0)
    prompts = [[rng.randrange(4, vocab_size) for _ in range(rng.randrange(4, 20))] for _ in range(count)]
    shared = {"temperature": temperature, "max_tokens": length, "ignore_eos": True, "detokenize": False}
    return [(prompt, SamplingParams(seed=seed, **shared)) for seed, prompt in enumerate(prompts)]


def main(arguments: list[str] | None = None) -> int:
    """Run all; 1 if tokens differ that must not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speculative_gpu", description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="tokens of a request")
    given = parser.parse_args(arguments)
    plain, plain_start = engine_of(given.device)
    print(f"without drafts: starts in {plain_start:.1f} s", flush=True)
    asked = {t: requests(plain.vocab_size, given.requests, given.length, t) for t in (0.0, 0.8)}
    expected = {t: tokens(run(plain, of_t)) for t, of_t in asked.items()}
    cases, equal_all = [], True
    for (method, model), rule in product(SPECULATORS.items(), RULES):
        config = {"method": method, "num_speculative_tokens": NUM_DRAFTS, "rejection_sample_method": rule} | model
        engine, started = engine_of(given.device, config)
        assert engine.drafting is not None
        case: dict[str, Any] = {"method": method, "rule": rule, "start_s": round(started, 1)}
        case["backend"] = engine.drafting.verifier.sampler.backend.name
        for temperature, of_t in asked.items():
            run(engine, of_t)
            begin = time.perf_counter()
            outputs = run(engine, of_t)
            seconds = time.perf_counter() - begin
            equal = sum(ours == theirs for ours, theirs in zip(tokens(outputs), expected[temperature]))
            accepted = sum(output.metrics.speculative_decoding.num_accepted_draft_tokens for output in outputs)
            drafted = sum(output.metrics.speculative_decoding.num_draft_tokens for output in outputs)
            must = temperature == 0 or rule == "coupled"
            equal_all &= equal == len(of_t) or not must
            case[f"temperature {temperature}"] = {
                "equal": equal,
                "must_equal": must,
                "of": len(of_t),
                "accepted": round(accepted / max(drafted, 1), 3),
                "tokens_per_s": round(given.requests * given.length / seconds),
            }
        print(json.dumps(case), flush=True)
        cases.append(case)
    report = {
        "environment": environment(torch.device(given.device)),
        "drafts": NUM_DRAFTS,
        "without_drafts_start_s": round(plain_start, 1),
        "cases": cases,
    }
    given.output.write_text(json.dumps(report, indent=1) + "\n")
    return int(not equal_all)


if __name__ == "__main__":
    sys.exit(main())
