"""Where a decode step spends its time: the model alone, with the sampler, by kernel; and one read of what it needs."""

import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.engine_gpu.work import Work, start


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
