"""A step captured as CUDA graphs, one for each size of batch: a replay costs the host one launch."""

import logging
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

import torch
from tqdm import tqdm

logger = logging.getLogger("drawlot")
Output = TypeVar("Output")
_MOST_GRAPHS = 1024


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


class GraphsByKey(Generic[Output]):
    """Replays of a function whose kernels depend on more than a size: it is captured when it has run with a key."""

    def __init__(self, function: Callable[[int], Output], key: Callable[[], Hashable], device: torch.device) -> None:
        """Capture nothing yet.

        Args:
            function: As for `CudaGraphs`, small: it is captured between two steps.
            key: A capture is good while this is what it was; None: there is none to make.
            device: Of all that it touches.
        """
        self._function, self._key, self._device = function, key, device
        self._graphs: dict[tuple[int, Hashable], tuple[torch.cuda.CUDAGraph, Output]] = {}

    def __call__(self, size: int) -> Output:
        """Run the function, by graph from the second time on; as `CudaGraphs`."""
        found = self._graphs.get((size, self._key()))
        if found is not None:
            found[0].replay()
            return found[1]
        output = self._function(size)
        # The run may have made room, and so another key.
        key = self._key()
        if key is not None:
            if len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.clear()
            self._graphs[size, key] = self._capture(size)
        return output

    def _capture(self, size: int) -> tuple[torch.cuda.CUDAGraph, Output]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            # Not `torch.cuda.graph`, which waits for the device and collects garbage: requests are under way.
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                output = self._function(size)
                graph.capture_end()
            torch.cuda.current_stream().wait_stream(stream)
        return graph, output
