"""Decoding on a GPU against transformers' `generate_batch`: `python -m benchmarks.engine_gpu -o FILE`.

A random 1 B Llama (the shape of Llama-3.2-1B, bf16), 64 requests of 512 tokens that draw 128 each with T = 0.8,
top-k 50, top-p 0.9, seeds and logprobs. One line a part on stdout, everything in FILE; a part that fails leaves its
traceback there and the others run. Exit code 1: a part failed, or a goal was missed.
"""

import argparse
import datetime
import json
import logging
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.9
MOST_SAMPLING, LEAST_SPEEDUP = 0.03, 1.5
LLAMA_1B = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}
SMALL = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.4,
}
NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
# Of transformers' continuous batching, with the attention that it offers where flash-attn is not installed.
SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "CUDA graphs": {"use_cuda_graph": True},
    "CUDA graphs, asynchronous": {"use_cuda_graph": True, "use_async_batching": True},
}


@dataclass(frozen=True)
class Work:
    """What both sides are asked to do."""

    prompts: list[list[int]]
    new_tokens: int
    dtype: str
    device: str
    repeats: int

    @property
    def generated(self) -> int:
        """Tokens drawn in one run."""
        return len(self.prompts) * self.new_tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    def speeds(self, seconds: float, first_tokens_at: float) -> dict[str, float]:
        """Tokens a second of a run, prompts included, and from the first token of every request on."""
        decoded = self.generated - len(self.prompts)
        return {"tokens_per_s": self.generated / seconds, "decode_tokens_per_s": decoded / (seconds - first_tokens_at)}


def make_model(folder: Path, shape: dict[str, Any], dtype: str, device: str) -> None:
    """Write a random Llama."""
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**shape, **NO_SPECIAL_TOKENS), dtype=getattr(torch, dtype)
        )
    model.save_pretrained(folder)


def make_engine(folder: Path, work: Work, *, enforce_eager: bool = False) -> Any:
    """An engine with room for all requests, whose prompts fit into one step."""
    from drawlot.engine.args import EngineArgs
    from drawlot.engine.engine import Engine

    longest = max(map(len, work.prompts)) + work.new_tokens
    engine = Engine(
        EngineArgs(
            model=str(folder),
            tokenizer="tiny",
            dtype=work.dtype,
            device=work.device,
            max_num_seqs=len(work.prompts),
            max_num_batched_tokens=max(2048, work.prompt_tokens),
            max_model_len=longest,
            enable_prefix_caching=False,
            enforce_eager=enforce_eager,
        )
    )
    if work.device == "cpu" and not enforce_eager:
        from drawlot.engine.decode import Decoder

        # What a GPU would run, without graphs and with interpreted kernels.
        runner = engine._runner
        runner.decoder = Decoder(runner.model, engine.config, runner.target.pools, runner.sampler, capture=False)
    return engine


def start(engine: Any, work: Work) -> None:
    """Queue all requests."""
    from drawlot import SamplingParams

    for index, prompt in enumerate(work.prompts):
        params = SamplingParams(
            temperature=TEMPERATURE,
            top_k=TOP_K,
            top_p=TOP_P,
            seed=index,
            logprobs=0,
            max_tokens=work.new_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        engine.add_request(str(index), prompt, params)


def run_engine(engine: Any, work: Work) -> dict[str, Any]:
    """Run all requests; the host's milliseconds of a mean decode step are `launch`, `wait` and `bookkeeping`."""
    begin = time.perf_counter()
    start(engine, work)
    engine.step()
    first, before = time.perf_counter() - begin, asdict(engine.stats)
    while engine.has_unfinished_requests():
        engine.step()
    seconds, after = time.perf_counter() - begin, asdict(engine.stats)
    steps = work.new_tokens - 1
    parts = {"launch": "forward", "wait": "sampling", "bookkeeping": "bookkeeping"}
    host = {name: 1000 * (after[f"{key}_seconds"] - before[f"{key}_seconds"]) / steps for name, key in parts.items()}
    return work.speeds(seconds, first) | {"step_ms": 1000 * (seconds - first) / steps, "host_ms": host}


def drawlot_speed(engine: Any, work: Work) -> dict[str, Any]:
    """The run of median speed, after one that warms up."""
    run_engine(engine, work)
    runs = sorted((run_engine(engine, work) for _ in range(work.repeats)), key=lambda run: run["tokens_per_s"])
    return runs[len(runs) // 2] | {"all_tokens_per_s": [run["tokens_per_s"] for run in runs]}


def transformers_speed(folder: Path, work: Work) -> dict[str, Any]:
    """`generate_batch` with its best settings: every setting is tried, each warm when it is timed."""
    import transformers

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, work.dtype), attn_implementation="paged|sdpa"
    ).to(work.device)
    generation = transformers.GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=TOP_K,
        top_p=TOP_P,
        max_new_tokens=work.new_tokens,
        eos_token_id=-1,
        pad_token_id=0,
    )
    block_size = 32
    blocks = sum(-(-(len(prompt) + work.new_tokens) // block_size) for prompt in work.prompts)
    results: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        if setting and work.device == "cpu":
            continue
        batching = transformers.ContinuousBatchingConfig(
            block_size=block_size,
            num_blocks=2 * blocks,
            max_batch_tokens=min(8192, max(2048, work.prompt_tokens)),
            allow_block_sharing=False,
            return_logprobs=True,
            seed=0,
            **setting,
        )
        try:
            results[name] = _generate_batch_speed(model, work, generation, batching)
        # One setting that does not run leaves the others.
        except Exception:
            results[name] = {"error": traceback.format_exc().splitlines()}
        model.destroy_cached_continuous_batching_manager()
    speeds = {name: result["tokens_per_s"] for name, result in results.items() if "tokens_per_s" in result}
    if not speeds:
        raise RuntimeError(f"no setting of generate_batch ran: {results}")
    best = max(speeds, key=lambda name: speeds[name])
    return {"attention": "paged|sdpa", "best": best, **results[best], "settings": results}


def _generate_batch_speed(model: Any, work: Work, generation: Any, batching: Any) -> dict[str, Any]:
    runs = []
    for _ in range(1 + work.repeats):
        begin = time.perf_counter()
        outputs = model.generate_batch(
            work.prompts,
            generation_config=generation,
            continuous_batching_config=batching,
            persistent_manager=True,
            record_timestamps=True,
        ).values()
        lengths = {len(output.generated_tokens) for output in outputs}
        if len(outputs) != len(work.prompts) or lengths != {work.new_tokens}:
            raise RuntimeError(f"{len(outputs)} of {len(work.prompts)} requests came back, of {lengths} tokens")
        if any(len(output.logprobs) != work.new_tokens for output in outputs):
            raise RuntimeError("logprobs are missing")
        # Up to the last token: the call itself goes on to stop a thread.
        times = [output.timestamps for output in outputs]
        first, last = max(line[0] for line in times), max(line[-1] for line in times)
        runs.append(work.speeds(last - begin, first - begin))
    runs = sorted(runs[1:], key=lambda run: run["tokens_per_s"])
    return runs[len(runs) // 2] | {"all_tokens_per_s": [run["tokens_per_s"] for run in runs]}


def equality(folder: Path, work: Work) -> dict[str, Any]:
    """Seeded tokens of a small float32 model by graph, against the same engine in plain torch."""
    from drawlot import SamplingParams

    rng = random.Random(1)
    small = Work(
        [[rng.randrange(512) for _ in range(rng.randrange(1, 40))] for _ in range(12)], 24, "float32", work.device, 1
    )
    # Twelve requests share fewer rows, end after different numbers of tokens and at some stop tokens.
    tokens: dict[bool, dict[str, list[int]]] = {True: {}, False: {}}
    for enforce_eager, found in tokens.items():
        engine = make_engine(folder, small, enforce_eager=enforce_eager)
        for index, prompt in enumerate(small.prompts):
            params = SamplingParams(
                seed=index, top_p=0.95, max_tokens=5 + index, stop_token_ids=range(20), detokenize=False
            )
            engine.add_request(str(index), prompt, params)
        while engine.has_unfinished_requests():
            found |= {output.request_id: output.outputs[0].token_ids for output in engine.step() if output.finished}
    differing = [(found, tokens[False][key]) for key, found in tokens[True].items() if found != tokens[False][key]]
    if differing:
        raise RuntimeError(f"tokens in plain torch and by graph differ: {differing}")
    return {"requests": len(small.prompts), "tokens": sum(map(len, tokens[True].values())), "equal": True}


def split(engine: Any, work: Work) -> dict[str, Any]:
    """A decode step half way through the run: its forward alone, and with the sampler behind it, as graphs."""
    start(engine, work)
    for _ in range(1 + work.new_tokens // 2):
        engine.step()
    decoder, size = engine._runner.decoder, len(work.prompts)
    result: dict[str, Any] = {"context": len(work.prompts[0]) + work.new_tokens // 2}
    with torch.inference_mode():
        logits, rows = decoder.forward(size)
        result["sampling_eager_ms"] = timed([lambda: decoder._draw(logits, rows)], work)[0]
        forward = captured(decoder.forward, size, work)
        result["forward_ms"] = timed([forward], work)[0]
        result |= floor(engine, work, result["context"])
        result["kernels_of_the_forward"] = kernels(forward, work)
        try:
            step = captured(decoder.step, size, work)
            result["forward_ms"], result["step_ms"] = timed([forward, step], work)
            result["sampling_ms"] = result["step_ms"] - result["forward_ms"]
            result["sampling_share"] = result["sampling_ms"] / result["step_ms"]
            result["kernels_of_the_step"] = kernels(step, work)
        except Exception:
            result["error"] = traceback.format_exc().splitlines()
    for index in range(len(work.prompts)):
        engine.abort(str(index))
    return result


def captured(function: Callable[[int], object], size: int, work: Work) -> Callable[[], object]:
    """A replay of the function on a GPU; the function itself on a CPU."""
    if work.device == "cpu":
        return lambda: function(size)
    from drawlot.engine.cuda_graphs import CudaGraphs

    graphs = CudaGraphs(function, [size], torch.device(work.device))
    return lambda: graphs(size)


def timed(functions: list[Callable[[], object]], work: Work, rounds: int = 7, burst: int = 20) -> list[float]:
    """Milliseconds of a call, medians of bursts that take turns."""
    if work.device == "cpu":
        rounds, burst = 1, 1
    found: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, times in zip(functions, found):
            function()
            times.append(_burst(function, burst, work) / burst)
    return [median(times) for times in found]


def _burst(function: Callable[[], object], count: int, work: Work) -> float:
    if work.device == "cpu":
        begin = time.perf_counter()
        for _ in range(count):
            function()
        return 1000 * (time.perf_counter() - begin)
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    before.record()
    for _ in range(count):
        function()
    after.record()
    torch.cuda.synchronize()
    return before.elapsed_time(after)


def floor(engine: Any, work: Work, context: int) -> dict[str, float]:
    """Bytes that a step must read, weights and cache, and the time that one read of as many takes here."""
    model = engine._runner.model
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    a_token = sum(half[0, 0].numel() * half.element_size() for pool in engine._runner.target.pools for half in pool)
    total = weights + len(work.prompts) * context * a_token
    buffer = torch.ones(2**20 if work.device == "cpu" else 2**30, device=work.device)
    read = timed([buffer.sum], work)[0]
    per_s = buffer.numel() * buffer.element_size() / read * 1000
    return {
        "weight_bytes": weights,
        "cache_bytes": total - weights,
        "read_bytes_per_s": per_s,
        "floor_ms": 1000 * total / per_s,
    }


def kernels(function: Callable[[], object], work: Work, count: int = 5) -> list[dict[str, Any]] | str:
    """Launches and microseconds of each kernel in one call, the longest first; why not, where they cannot be seen."""
    if work.device == "cpu":
        return "no GPU"
    function()
    torch.cuda.synchronize()
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for _ in range(count):
                function()
            torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error)
    found: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            found[event.name].append(event.device_time)
    table = [
        {"kernel": name[:100], "launches": len(times) / count, "microseconds": sum(times) / count}
        for name, times in found.items()
    ]
    return sorted(table, key=lambda line: -line["microseconds"])[:30]


def conditions(work: Work) -> dict[str, Any]:
    """What the numbers depend on."""
    import transformers
    import triton

    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": torch.cuda.get_device_name() if work.device == "cuda" else f"CPU ({platform.processor()})",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "transformers": transformers.__version__,
        "commit": os.environ.get("COMMIT", commit or "unknown"),
        "date": datetime.date.today().isoformat(),
        "requests": len(work.prompts),
        "prompt_tokens": len(work.prompts[0]),
        "new_tokens": work.new_tokens,
        "dtype": work.dtype,
        "sampling": {"temperature": TEMPERATURE, "top_k": TOP_K, "top_p": TOP_P, "logprobs": 0},
    }


class Report:
    """Runs the parts, each whatever became of the others, and keeps what they find."""

    def __init__(self, file: Path) -> None:
        self.found: dict[str, Any] = {}
        self.failed: list[str] = []
        self._file = file
        self._begin = time.perf_counter()

    def part(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the part returns; None if it failed."""
        print(f"{time.perf_counter() - self._begin:6.1f} s  {name} ...", file=sys.stderr, flush=True)
        result = None
        try:
            result = function(*args, **kwargs)
            # An engine is no finding.
            self.found[name] = result if isinstance(result, dict) else {}
        except Exception:
            traceback.print_exc(file=sys.stderr)
            self.found[name] = {"error": traceback.format_exc().splitlines()}
        if "error" in self.found[name]:
            self.failed.append(name)
        self.write()
        return result

    def write(self) -> None:
        """Also what is unfinished: the machine may be taken away."""
        self.found["seconds"] = time.perf_counter() - self._begin
        self._file.write_text(json.dumps(self.found, indent=1, default=str) + "\n")


def verdict(found: dict[str, Any]) -> dict[str, Any]:
    """The goals, with None for what was not measured."""
    rival, own = found.get("transformers", {}).get("tokens_per_s"), found.get("drawlot", {}).get("tokens_per_s")
    ratio = own / rival if own and rival else None
    share = found.get("split", {}).get("sampling_share")
    rival, own = (found.get(name, {}).get("decode_tokens_per_s") for name in ("transformers", "drawlot"))
    return {
        "times_generate_batch": ratio,
        "times_generate_batch_decoding": own / rival if own and rival else None,
        "sampling_share": share,
        "met": ratio is not None and ratio >= LEAST_SPEEDUP and share is not None and share < MOST_SAMPLING,
    }


def main(argv: list[str] | None = None) -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_gpu", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file for everything that is found")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--toy", action="store_true", help="a tiny float32 model on the CPU, to test this program")
    args = parser.parse_args(argv)
    if args.toy:
        # Read when Triton is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    shape, dtype, device = (SMALL, "float32", "cpu") if args.toy else (LLAMA_1B, "bfloat16", "cuda")
    rng = random.Random(0)
    prompts = [[rng.randrange(shape["vocab_size"]) for _ in range(args.prompt_tokens)] for _ in range(args.requests)]
    work = Work(prompts, args.new_tokens, dtype, device, args.repeats)
    report = Report(args.output)
    with tempfile.TemporaryDirectory() as folder:
        big, small = Path(folder) / "big", Path(folder) / "small"
        report.part("conditions", conditions, work)
        report.part("small model", make_model, small, SMALL, "float32", device)
        report.part("equality", equality, small, work)
        report.part("model", make_model, big, shape, dtype, device)
        report.part("transformers", transformers_speed, big, work)
        report.part("plain torch", lambda: drawlot_speed(make_engine(big, work, enforce_eager=True), work))
        engine = report.part("engine", make_engine, big, work)
        if engine is not None:
            report.part("drawlot", drawlot_speed, engine, work)
            report.part("split", split, engine, work)
    found = report.found
    found["toy"], found["goals"] = args.toy, verdict(found)
    report.write()
    for name in ("transformers", "plain torch", "drawlot"):
        print(f"{name:13}{found.get(name, {}).get('tokens_per_s', float('nan')):10.0f} tokens/s")
    print(
        json.dumps({key: value for key, value in found.get("split", {}).items() if isinstance(value, float)}, indent=1)
    )
    print(json.dumps(found["goals"]))
    if report.failed:
        print(f"failed: {', '.join(report.failed)}")
    return 1 if report.failed or not (args.toy or found["goals"]["met"]) else 0


if __name__ == "__main__":
    sys.exit(main())
