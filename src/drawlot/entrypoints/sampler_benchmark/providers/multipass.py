"""A multi-pass pipeline in the manner of vLLM's V2 runner, written anew from its description, in Triton and torch.

Each stage is a launch over [N, V]: a float32 copy, penalties, temperature, min-p, the top-k/top-p mask, Gumbel noise on
every token with an arg max by blocks; then for logprobs topk, a log-softmax at the ids, and a count for the rank. Like
its model it leaves out a stage that no row needs and works on the raw logits where none is left. Not reproduced: the
grammar bitmask and bad words, counts packed in bits for the prompt (a bool here), and the pipeline of seven launches
that splits rows with top-p alone over several programs; compaction before the search stands in for it.
"""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.providers.dense import Penalties, logprob_ids
from drawlot.entrypoints.sampler_benchmark.providers.interface import Call, Drawn
from drawlot.entrypoints.sampler_benchmark.workload import Workload
from drawlot.outputs import LogprobsTensors

_ELEMENTS = 4096
_ROW = 8192
_SEARCH = 4096
_GUMBEL = 1024


class MultiPass:
    """What most engines do today."""

    name = "multipass"
    same_tokens = False

    def why_not(self, work: Workload) -> str | None:
        """Its kernels are Triton's."""
        if find_spec("triton") is None:
            return "needs triton"
        if work.bitmask is not None:
            return "leaves a grammar's bitmask out"
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return None if work.device.type == "cuda" or interpreted else "needs a GPU, or TRITON_INTERPRET=1"

    def rows_per_path(self, work: Workload) -> dict[str, int] | None:
        """It does not count."""
        return None

    def call(self, work: Workload) -> Call:
        """Parameters lie on the device as an engine keeps them."""
        from drawlot.entrypoints.sampler_benchmark.providers import multipass_kernels as kernels
        from drawlot.entrypoints.sampler_benchmark.providers.multipass_filter import top_k_top_p_kernel

        n, vocab_size = work.case.rows, work.case.vocab_size
        device = work.device
        tiled, blocks = (n, -(-vocab_size // _ELEMENTS)), -(-vocab_size // _GUMBEL)
        temperature = work.column("temperature", torch.float32)
        seeds, positions = work.column("seed", torch.int64), work.rows.positions
        top_k = work.column("top_k", torch.int32)
        top_k = torch.where((top_k > 0) & (top_k < vocab_size), top_k, vocab_size)
        top_p, min_p = work.column("top_p", torch.float32), work.column("min_p", torch.float32)
        penalties, asked = Penalties.of(work), logprob_ids(work)
        tempered = any(params.temperature not in (0, 1) for params in work.params)
        masked, some_min_p = work.some("top_k", 0) or work.some("top_p", 1), work.some("min_p", 0)
        scratch = torch.empty((n, vocab_size), device=device) if masked else None

        def processed(logits: Tensor) -> Tensor:
            if not (tempered or masked or some_min_p or penalties):
                return logits
            x = torch.empty_like(logits, dtype=torch.float32).copy_(logits)
            if penalties is not None:
                kernels.penalties_kernel[tiled](
                    x,
                    penalties.counts,
                    penalties.in_prompt,
                    penalties.repetition,
                    penalties.frequency,
                    penalties.presence,
                    vocab_size,
                    BLOCK=_ELEMENTS,
                    num_warps=8,
                )
            if tempered:
                kernels.temperature_kernel[tiled](x, temperature, vocab_size, BLOCK=_ELEMENTS, num_warps=8)
            if some_min_p:
                kernels.min_p_kernel[(n,)](x, min_p, vocab_size, BLOCK=_ROW, num_warps=16)
            if masked:
                top_k_top_p_kernel[(n,)](x, scratch, top_k, top_p, vocab_size, BLOCK=_SEARCH, num_warps=16)
            return x

        def draw(x: Tensor) -> Tensor:
            best = torch.empty((n, blocks), device=device)
            best_ids = torch.empty((n, blocks), dtype=torch.int64, device=device)
            kernels.gumbel_kernel[(n, blocks)](
                x, temperature, seeds, positions, best, best_ids, vocab_size, blocks, BLOCK=_GUMBEL
            )
            return best_ids.gather(1, best.argmax(1, keepdim=True))

        def call(logits: Tensor) -> Drawn:
            token = draw(processed(logits))
            if asked is None:
                return Drawn(token.squeeze(1), None)
            ids = torch.cat((token, asked.columns(logits)), 1)
            logprobs = torch.empty(ids.shape, device=device)
            ranks = torch.empty(n, dtype=torch.int64, device=device)
            columns = ids.shape[1]
            kernels.logprobs_kernel[(n,)](
                logits,
                ids,
                logprobs,
                vocab_size,
                columns,
                BLOCK=_ROW,
                COLUMNS=1 << (columns - 1).bit_length(),
                num_warps=16,
            )
            kernels.ranks_kernel[(n,)](logits, token, ranks, vocab_size, BLOCK=_ROW, num_warps=16)
            return Drawn(token.squeeze(1), LogprobsTensors(ids, logprobs, ranks))

        return call
