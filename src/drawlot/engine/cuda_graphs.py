"""A step captured as CUDA graphs, one for each size of batch: a replay costs the host one launch."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import torch
from tqdm import tqdm

logger = logging.getLogger("drawlot")
Output = TypeVar("Output")


def batch_sizes(largest: int) -> list[int]:
    """1, 2, 4, 8, 16, 24 .. 64, then four sizes up to each double, and the largest: little padding, few graphs."""
    sizes, size = [], 1
    while size < largest:
        sizes.append(size)
        size += size if size < 8 else max(8, 2 ** (size.bit_length() - 3))
    return [*sizes, largest]


class CudaGraphs(Generic[Output]):
    """Replays of a function that reads and writes memory which never moves."""

    def __init__(self, function: Callable[[int], Output], sizes: Iterable[int], device: torch.device) -> None:
        """Capture.

        Args:
            function: Of the size of the batch. It may not wait for the device; its output is where replays write.
            sizes: For which it can be called.
            device: Of all that it touches.
        """
        begin, memory = time.perf_counter(), torch.cuda.memory_reserved(device)
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Output]] = {}
        with torch.cuda.device(device):
            pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            # The largest first: the others find its memory in the pool.
            for size in tqdm(sorted(sizes, reverse=True), "capturing CUDA graphs", disable=None, leave=False):
                # What a capture cannot: compile kernels, let libraries allocate.
                with torch.cuda.stream(stream):
                    function(size)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=pool, stream=stream):
                    output = function(size)
                self._graphs[size] = graph, output
            torch.cuda.synchronize()
        seconds, memory = time.perf_counter() - begin, torch.cuda.memory_reserved(device) - memory
        logger.info("captured %d CUDA graphs in %.1f s, %.2f GiB", len(self._graphs), seconds, memory / 2**30)

    def __call__(self, size: int) -> Output:
        """Run the function on what the memory holds now; the output is overwritten by the next call of this size."""
        graph, output = self._graphs[size]
        graph.replay()
        return output
