"""The command: all parts, one after the other."""

import argparse
import json
import os
import random
import sys
import tempfile
from pathlib import Path

from benchmarks import engine_gpu
from benchmarks.engine_gpu.equality import equality
from benchmarks.engine_gpu.report import Report, conditions, verdict
from benchmarks.engine_gpu.speed import drawlot_speed, transformers_speed
from benchmarks.engine_gpu.split import split
from benchmarks.engine_gpu.work import LLAMA_1B, SMALL, Work, make_engine, make_model


def main(argv: list[str] | None = None) -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_gpu", description=(engine_gpu.__doc__ or "").split("\n")[0]
    )
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
