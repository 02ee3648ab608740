"""Proofs of a GPU backend against the semantics: `python -m benchmarks.gpu_proof -o DIR`."""
