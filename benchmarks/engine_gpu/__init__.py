"""Decoding on a GPU against transformers' `generate_batch`: `python -m benchmarks.engine_gpu -o FILE`.

A random 1 B Llama (the shape of Llama-3.2-1B, bf16), 64 requests of 512 tokens that draw 128 each with T = 0.8,
top-k 50, top-p 0.9, seeds and logprobs. One line a part on stdout, everything in FILE; a part that fails leaves its
traceback there and the others run. Exit code 1: a part failed, or a goal was missed.
"""
