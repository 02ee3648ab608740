"""Peak extra memory of a call, as the kernel sees it: `python -m benchmarks.memory` prints one JSON object.

The peak of the process's resident memory (VmHWM, reset before the call) counts torch, NumPy and the scratch inside
their kernels together, at one moment. It is faithful because malloc is told to give every block of 64 KiB or more
pages of its own and to return them when it is freed, huge pages are off, and the process is pinned to one CPU: the
kernel's counters then lag by at most some hundred KiB. What the first call leaves behind (caches) is added; what a
call writes never to is not counted. Linux with glibc only. As a check from the other side, `allocated` adds the peak
of torch's allocator (profiler) and the peak of NumPy's (tracemalloc), which need not fall together.
"""

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import torch

Call = Callable[[], object]


def measure(num_rows: int, vocab_size: int) -> dict[str, dict[str, float]] | None:
    """resident and allocated of each case, in float32 copies of the rows; a process of its own. None: cannot tell."""
    if sys.platform != "linux":
        return None
    command = [sys.executable, "-m", "benchmarks.memory", f"--rows={num_rows}", f"--vocab={vocab_size}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=Path(__file__).parent.parent, env=environment, capture_output=True, text=True)
    if run.returncode != 0:
        raise RuntimeError(f"the memory of calls could not be measured:\n{run.stderr}")
    result: dict[str, dict[str, float]] = json.loads(run.stdout.splitlines()[-1])
    return result


class Meter:
    """Prepares the process; then `resident` and `allocated` measure calls, in bytes."""

    def __init__(self) -> None:
        libc = ctypes.CDLL(None)
        mmap_threshold, thp_disable = -3, 41
        if libc.mallopt(mmap_threshold, 1 << 16) != 1 or libc.prctl(thp_disable, 1, 0, 0, 0) != 0:
            raise OSError("malloc or the kernel refuses what the meter needs")
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        torch.set_num_threads(1)
        self._trim = libc.malloc_trim
        gc.freeze()  # collecting is quick then

    def resident(self, call: Call, repeat: int = 3) -> int:
        """The highest of a few peaks, and what the first call left behind."""
        before = self._settled("RssAnon")
        call()
        left_behind = max(0, self._settled("RssAnon") - before)
        return left_behind + max(self._peak(call) for _ in range(repeat))

    def _peak(self, call: Call) -> int:
        self._settled("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from here
        before = _status("VmHWM")
        result = call()
        peak = _status("VmHWM") - before
        del result
        return peak

    def _settled(self, key: str) -> int:
        gc.collect()
        self._trim(0)
        return _status(key)


def allocated(call: Call) -> int:
    """The peak of torch's allocator and the peak of NumPy's, added up, in bytes."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            call()
        profiler.export_chrome_trace(str(trace))
        events = [e for e in json.loads(trace.read_text())["traceEvents"] if e.get("name") == "[memory]"]
    live = torch_peak = 0
    for event in sorted(events, key=lambda e: e["ts"]):
        live += event["args"]["Bytes"]
        torch_peak = max(torch_peak, live)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call()
    numpy_peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    return torch_peak + numpy_peak


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel does not report {key}")


def main() -> None:
    """Measure all cases."""
    from benchmarks.cpu_cases import CASES, workload

    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--vocab", type=int, required=True)
    args = parser.parse_args()
    meter = Meter()
    copy = 4 * args.rows * args.vocab
    result = {}
    for case in CASES:
        workload(case, 2, 1024).drawlot()  # code and lazily built tables are in memory before
        work = workload(case, args.rows, args.vocab)
        result[case.name] = {
            "resident": meter.resident(work.drawlot) / copy,
            "allocated": allocated(work.drawlot) / copy,
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
