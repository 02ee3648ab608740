"""Steps of a sampler whose requests come and go: any parameters, drafts, padding rows, long histories, bad words."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_proof.bits import drawn_rows
from benchmarks.gpu_proof.kinds_of_logits import random_logits
from benchmarks.gpu_proof.proof import Setting
from drawlot import LogitsRows, Sampler, SamplingParams
from drawlot.kernels.inputs import SampledRows
from tests.cases import random_batch

STATE_ROWS = 40
NUM_STEPS = 4
"""Of a play"""


class Step(NamedTuple):
    """The arguments of one call of a sampler."""

    logits: Tensor
    rows: LogitsRows
    bitmask: Tensor | None


class Script:
    """What happens to a sampler: the same for every sampler that is led through it with the same tokens."""

    def __init__(self, setting: Setting, vocab_size: int, seed: int) -> None:
        self.vocab_size = vocab_size
        self._device = setting.device
        self._generator = setting.generator(seed)
        self._rng = np.random.default_rng(seed)
        self._length: dict[int, int] = {}
        """Tokens so far of the request in each state row"""

    def arrivals(self, samplers: Sequence[Sampler]) -> None:
        """Some requests leave; others take rows, those just freed among them."""
        for row in [row for row in self._length if self._rng.random() < 0.2]:
            del self._length[row]
            for sampler in samplers:
                sampler.remove_request(row)
        free = self._rng.permutation([row for row in range(STATE_ROWS) if row not in self._length])
        new = random_batch(self._rng, self.vocab_size, max(1, len(free) - 3))
        for row, params, prompt, output, choice in zip(
            free.tolist(), new.params, new.prompts, new.outputs, new.choices.tolist()
        ):
            if self._rng.random() < 0.1:
                prompt = self._rng.integers(0, self.vocab_size, 700).tolist()
            words = self._bad_words(output)
            if self._rng.random() < 0.4:
                params, words = self._lowered(params), []
            self._length[row] = len(prompt) + len(output)
            for sampler in samplers:
                sampler.add_request(row, params, prompt, output, choice, words)

    def step(self) -> Step:
        """Rows of some requests in any order, some with drafts; now and then a row of no request."""
        requests = [-1 if self._rng.random() < 0.1 else row for row in self._rng.permutation(list(self._length))]
        requests = requests[: int(self._rng.integers(1, len(requests) + 1))]
        counts = [1 if row < 0 else 1 + int(self._rng.choice([0, 0, 0, 1, 4])) for row in requests]
        first = np.repeat([self._length.get(row, 0) for row in requests], counts)
        cu = np.concatenate(([0], np.cumsum(counts)))
        local = np.arange(cu[-1]) - np.repeat(cu[:-1], counts)
        tokens = self._rng.integers(0, self.vocab_size, cu[-1])
        parts = np.array(requests), np.repeat(requests, counts), local, first + local, tokens
        rows = LogitsRows(*map(self._upload, parts), self._upload(cu).to(torch.int32))
        bitmask = None
        if self._rng.random() < 0.3:
            shape = len(local), -(-self.vocab_size // 32)
            words = torch.randint(-(2**31), 2**31, shape, generator=self._generator, device=self._device)
            bitmask = words.to(torch.int32)
        logits = random_logits(self._generator, len(local), self.vocab_size)
        order = torch.randperm(len(local), generator=self._generator, device=self._device)
        dtype = torch.float32 if self._rng.random() < 0.5 else torch.bfloat16
        return Step(logits[order].to(dtype), rows, bitmask)

    def commit(self, samplers: Sequence[Sampler], rows: LogitsRows, token_ids: Tensor) -> None:
        """Emits some of the tokens [N] that were drawn, the first ones of each request, up to the first bad row."""
        requests, cu, drawn = rows.idx_mapping.tolist(), rows.cu_num_logits.tolist(), token_ids.tolist()
        table, num_sampled = np.full((len(requests), 5), -1), np.zeros(len(requests))
        for i, request in enumerate(requests):
            good = list(takewhile(lambda token: token >= 0, drawn[cu[i] : cu[i + 1]]))
            # Of any number of tokens by one draw: what follows is the same whatever is drawn, and compiled ahead.
            num_sampled[i] = int(self._rng.random() * (len(good) + 1))
            table[i, : len(good)] = good
            if request >= 0:
                self._length[request] += int(num_sampled[i])
        for sampler in samplers:
            sampler.commit(rows.idx_mapping, self._upload(table), self._upload(num_sampled).to(torch.int32))

    def _lowered(self, params: SamplingParams) -> SamplingParams:
        """The same with penalties that lower values, few tokens kept, and no other edits."""
        return replace(
            params,
            temperature=max(params.temperature, 1e-3),
            top_k=int(self._rng.choice([1, 2, 5, 20, 50, 127, 128])),
            repetition_penalty=float(self._rng.choice([1.0, 1.2, 3.0])),
            frequency_penalty=float(self._rng.choice([0.0, 0.5])),
            presence_penalty=float(self._rng.choice([0.0, 1.5])),
            logit_bias=None,
            allowed_token_ids=None,
            min_tokens=0,
        )

    def _bad_words(self, output: list[int]) -> list[list[int]]:
        """Words of one token, and longer ones of which the output so far ends with all but the last token."""
        if self._rng.random() < 0.7:
            return []
        last = self._rng.integers(0, self.vocab_size, 3).tolist()
        return [[last[0]], [*output[-1:], last[1]], [*output[-3:], last[2]]]

    def _upload(self, part: np.ndarray) -> Tensor:
        return torch.from_numpy(part.astype(np.int64)).to(self._device)


def sampler_of(setting: Setting, vocab_size: int, seed: int) -> Sampler:
    """The product's, of a play; odd seeds have float64 noise."""
    backend = setting.backend.name
    return Sampler(STATE_ROWS, vocab_size, device=setting.device, use_fp64_gumbel=seed % 2 == 1, backend=backend)


def play(setting: Setting, vocab_size: int, seed: int) -> list[SampledRows]:
    """What the product's sampler draws in the steps of a script, for the rows that belong to requests."""
    sampler, script, drawn = sampler_of(setting, vocab_size, seed), Script(setting, vocab_size, seed), []
    for _ in range(NUM_STEPS):
        script.arrivals([sampler])
        step = script.step()
        out = sampler(*step)
        drawn.append(drawn_rows(out))
        script.commit([sampler], step.rows, out.token_ids)
    return drawn
