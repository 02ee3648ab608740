"""Tokens a second: drawlot's engine and transformers' `generate_batch`."""

import logging
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_gpu.work import TEMPERATURE, TOP_K, TOP_P, Work, run_engine

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "CUDA graphs": {"use_cuda_graph": True},
    "CUDA graphs, asynchronous": {"use_cuda_graph": True, "use_async_batching": True},
}


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
