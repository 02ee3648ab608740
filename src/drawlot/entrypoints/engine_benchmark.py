"""How fast the engine decodes, and what its steps spend their time on, next to transformers' own `generate_batch`.

Both sides run the same float32 weights on the same prompts to the same number of new tokens, share no prefixes and take
turns. Each is warm when it is measured.
"""

import argparse
import inspect
import logging
import time
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from statistics import median
from typing import Any, NamedTuple

import torch

from drawlot.assets import resolve
from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.errors import BackendError, ParameterError
from drawlot.params import SamplingParams

TOP_K, TOP_P = 50, 0.9
BASELINES = ("paged|sdpa", "paged|eager")
PARTS = ("forward", "sampling", "bookkeeping", "detokenize")


class Workload(NamedTuple):
    """What both sides are asked to do."""

    prompts: list[list[int]]
    max_tokens: int

    @property
    def decoded(self) -> int:
        """Tokens drawn after the first of each request."""
        return len(self.prompts) * (self.max_tokens - 1)


class Run(NamedTuple):
    """One run of the engine, from the first token of every request on."""

    seconds: float
    step_seconds: dict[str, float]
    """The parts of a mean step"""


def measure(
    model: str, device: str, requests: int, prompt_tokens: int, new_tokens: int, repeats: int, baseline: bool
) -> dict[str, Any]:
    """Medians of `repeats` interleaved runs, as JSON shows them; speeds are tokens a second.

    Raises:
        ParameterError: Prompt and new tokens are more than the model's context.
        BackendError: `generate_batch` of transformers cannot run here.
        DrawlotError: What `Engine` raises.
    """
    engine = Engine(
        EngineArgs(
            model=model,
            device=device,
            dtype="float32",
            max_num_seqs=requests,
            # All prompts fit into one step, so that all requests begin and end together; the same below.
            max_num_batched_tokens=max(2048, requests * prompt_tokens),
            enable_prefix_caching=False,
        )
    )
    longest = engine.config.max_model_len
    if prompt_tokens + new_tokens > longest:
        raise ParameterError("new_tokens", f"must be at most {longest - prompt_tokens} after that prompt", new_tokens)
    work = workload(engine.tokenizer, requests, prompt_tokens, new_tokens)
    rivals = {name: Baseline(model, engine.config.device, name, work) for name in BASELINES} if baseline else {}
    run_engine(engine, work)
    runs: list[Run] = []
    rival_seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(repeats):
        runs.append(run_engine(engine, work))
        for name, rival in rivals.items():
            rival_seconds[name].append(rival.run())
    seconds = [run.seconds for run in runs]
    rival_speeds = {name: work.decoded / median(each) for name, each in rival_seconds.items()}
    speed = work.decoded / median(seconds)
    return {
        "model": model,
        "device": str(engine.config.device),
        "threads": torch.get_num_threads(),
        "requests": requests,
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "tokens_per_s": speed,
        "step_ms": {part: 1000 * median(run.step_seconds[part] for run in runs) for part in PARTS},
        "transformers_tokens_per_s": rival_speeds,
        "ratio": speed / max(rival_speeds.values()) if rival_speeds else None,
        "seconds": {"drawlot": seconds, **rival_seconds},
    }


def workload(tokenizer: Any, requests: int, prompt_tokens: int, new_tokens: int) -> Workload:
    """Prompts of equal length, cut from the source of a module of the standard library."""
    ids = tokenizer.encode(inspect.getsource(argparse), add_special_tokens=False, verbose=False)
    starts = range(0, requests * prompt_tokens, prompt_tokens)
    return Workload([[ids[(start + i) % len(ids)] for i in range(prompt_tokens)] for start in starts], new_tokens)


def run_engine(engine: Engine, work: Workload) -> Run:
    """Run drawlot's engine, which has no other requests."""
    params = SamplingParams(top_k=TOP_K, top_p=TOP_P, max_tokens=work.max_tokens, ignore_eos=True)
    for index, prompt in enumerate(work.prompts):
        engine.add_request(str(index), prompt, params)
    engine.step()
    before, begin = asdict(engine.stats), time.perf_counter()
    while engine.has_unfinished_requests():
        engine.step()
    seconds, after = time.perf_counter() - begin, asdict(engine.stats)
    steps = after["steps"] - before["steps"]
    return Run(seconds, {part: (after[f"{part}_seconds"] - before[f"{part}_seconds"]) / steps for part in PARTS})


class Baseline:
    """transformers' continuous batching with one of its attention functions, set for this workload."""

    def __init__(self, model: str, device: torch.device, attention: str, work: Workload) -> None:
        if device.type == "cpu" and find_spec("psutil") is None:
            raise BackendError("transformers' generate_batch needs psutil on a CPU: install it, or give --no-baseline")
        # The annotations of transformers are not complete enough for mypy.
        transformers: Any = import_module("transformers")
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        self.work = work
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            resolve(model), dtype=torch.float32, attn_implementation=attention
        )
        self.model.to(device)
        block_size = 32
        blocks = sum(-(-(len(prompt) + work.max_tokens) // block_size) for prompt in work.prompts)
        self.settings = {
            "generation_config": transformers.GenerationConfig(
                do_sample=True,
                top_k=TOP_K,
                top_p=TOP_P,
                max_new_tokens=work.max_tokens,
                eos_token_id=-1,
                pad_token_id=0,
            ),
            "continuous_batching_config": transformers.ContinuousBatchingConfig(
                block_size=block_size,
                num_blocks=2 * blocks,
                max_batch_tokens=max(2048, sum(map(len, work.prompts))),
                allow_block_sharing=False,
            ),
        }

    def run(self) -> float:
        """Seconds from the first token of every request on, after a run that warms up.

        The thread that transformers keeps for the next call is gone when this returns.
        """
        self._token_times()
        times = self._token_times()
        self.model.destroy_cached_continuous_batching_manager()
        return max(of_request[-1] for of_request in times) - max(of_request[0] for of_request in times)

    def _token_times(self) -> list[list[float]]:
        outputs = self.model.generate_batch(
            self.work.prompts, persistent_manager=True, record_timestamps=True, **self.settings
        ).values()
        if {len(output.generated_tokens) for output in outputs} != {self.work.max_tokens}:
            raise BackendError("transformers' generate_batch ended some requests early")
        return [output.timestamps for output in outputs]
