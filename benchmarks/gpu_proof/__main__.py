"""Proves a GPU backend: `python -m benchmarks.gpu_proof -o DIR`, from the root of the repository.

One line a proof on stdout, progress on stderr, a JSON file a proof in DIR. Exit code 1 if any proof failed.
"""

import argparse
import json
import sys
import time
import traceback
from pathlib import Path

import torch

from benchmarks.gpu_proof import badrows, equality, graphs, invariance, laws, predecessors, sanitizer, tail
from benchmarks.gpu_proof.proof import Proof, Setting, conditions
from drawlot.kernels.registry import get_backend

# Bad rows come first: workspaces that outlive a call are then allocated under guard.
PROOFS = {
    "badrows": badrows.prove,
    "badsteps": badrows.prove_steps,
    "badids": badrows.prove_ids,
    "equality": equality.prove,
    "invariance": invariance.prove,
    "idle": invariance.prove_idle_filters,
    "devices": invariance.prove_devices,
    "graphs": graphs.prove,
    "predecessors": predecessors.prove,
    "laws": laws.prove,
    "tail": tail.prove,
    "sanitizer": sanitizer.prove,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the proofs that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_proof", description="Proves a GPU backend.")
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for one JSON file a proof")
    parser.add_argument("--backend", default="triton")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", nargs="+", choices=PROOFS, default=list(PROOFS), metavar="PROOF", help=str([*PROOFS]))
    parser.add_argument("--small", action="store_true", help="sizes for a CPU, to debug the proofs: they prove little")
    given = parser.parse_args(arguments)
    device = torch.device(given.device)
    setting = Setting(get_backend(given.backend, device), device, given.small)
    given.output.mkdir(parents=True, exist_ok=True)
    return max([_prove(name, setting, given.output) for name in given.only])


def _prove(name: str, setting: Setting, folder: Path) -> int:
    """Runs one proof, writes what it found; 1 if it failed."""
    proof, start = Proof(name), time.perf_counter()
    try:
        PROOFS[name](setting, proof)
    except Exception:
        # The other proofs can still tell something.
        proof.check("ran to its end", False, traceback=traceback.format_exc().splitlines())
        traceback.print_exc(file=sys.stderr)
    seconds = round(time.perf_counter() - start, 1)
    report = {
        "proof": name,
        "verdict": proof.verdict,
        "shown": proof.summary,
        "seconds": seconds,
        "small": setting.small,
        "conditions": conditions(setting),
        "checks": proof.checks,
    }
    (folder / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    failed = [check["name"] for check in proof.checks if check["passed"] is False]
    shown = [proof.summary] if proof.verdict == "passed" else failed
    shown += [f"not run: {check}" for check in proof.skipped]
    print(f"{proof.verdict:8} {name:12} {seconds:6.1f} s  {'; '.join(shown)}", flush=True)
    return int(proof.verdict == "FAILED")


if __name__ == "__main__":
    sys.exit(main())
