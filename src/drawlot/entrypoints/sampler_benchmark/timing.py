"""Repeated bursts of a step over rotating buffers, the providers in turn, so that drift meets them all."""

import gc
import itertools
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from drawlot.entrypoints.sampler_benchmark.providers import Call, Drawn

BURSTS = 15
BURST_SECONDS = 0.01


@dataclass
class Round:
    """What is repeated in a burst: a graph's steps, one for each buffer, or the next eager step."""

    run: Callable[[], object]
    steps: int
    launch: str
    """graph or eager"""
    drawn: list[Drawn]
    """What the steps drew, in the order of the buffers"""
    call: Call
    """Kept, since a graph replays in the memory of what it captured"""
    why_eager: str | None = None
    """Why a GPU's graph cannot hold it, where that was asked for"""


def make_round(call: Call, buffers: Sequence[Tensor], checked: int, graph: bool) -> Round:
    """Warm up, and capture a CUDA graph if wanted and possible; `checked` buffers have their tokens in `drawn`."""
    call(buffers[0])
    reason = _host_waits(call, buffers[0]) if graph else None
    if graph and reason is None:
        return _captured(call, buffers)

    turn = itertools.cycle(buffers)
    return Round(
        lambda: call(next(turn)), 1, "eager", [_copied(call(logits)) for logits in buffers[:checked]], call, reason
    )


def _captured(call: Call, buffers: Sequence[Tensor]) -> Round:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(buffers[0])
    torch.cuda.current_stream().wait_stream(stream)
    # Copies of what is drawn are checked, since a step may write where the one before it did; they are not timed.
    checked, timed = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(checked):
        drawn = [_copied(call(logits)) for logits in buffers]
    with torch.cuda.graph(timed):
        last = [call(logits) for logits in buffers][-1]
    for each in drawn:
        each.token_ids.fill_(-2)
    checked.replay()
    last.token_ids.fill_(-2)
    timed.replay()
    torch.cuda.synchronize()
    if bool((last.token_ids == -2).any()):
        raise RuntimeError("the graph that is timed does not write its tokens")
    return Round(timed.replay, len(buffers), "graph", drawn, call)


def _copied(drawn: Drawn) -> Drawn:
    copies: Drawn = tree_map_only(Tensor, torch.clone, drawn)
    return copies


def _host_waits(call: Call, logits: Tensor) -> str | None:
    """Why a step cannot be captured: it makes the host wait for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode of torch is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            call(logits)
        except RuntimeError as error:
            if "synchronizing" not in str(error):
                raise
            return "the host waits for the device within a step"
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return None


def time_in_turn(rounds: Mapping[str, Round], device: torch.device) -> dict[str, list[float]]:
    """Microseconds a step, one entry a burst; their median is the figure."""
    burst = _cuda_burst if device.type == "cuda" else _cpu_burst
    repeats = {name: max(1, math.ceil(BURST_SECONDS / burst(each, 1))) for name, each in rounds.items()}
    seconds: dict[str, list[float]] = {name: [] for name in rounds}
    gc.collect()
    gc.disable()
    try:
        for _ in range(BURSTS):
            for name, each in rounds.items():
                seconds[name].append(burst(each, repeats[name]) / (repeats[name] * each.steps))
    finally:
        gc.enable()
    return {name: [1e6 * each for each in bursts] for name, bursts in seconds.items()}


def _cpu_burst(each: Round, repeats: int) -> float:
    begin = time.perf_counter()
    for _ in range(repeats):
        each.run()
    return time.perf_counter() - begin


def _cuda_burst(each: Round, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    for _ in range(repeats):
        each.run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000
