"""Sequences that drafting and verifying write, step by step, and how well they fit the target's own law.

Only many draws can tell whether noise is fresh: every draw taken alone has its law whatever it shares with others. The
chi-square's rate of false alarms is `testing.FALSE_ALARM_RATE`; the seeds are fixed.
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams
from drawlot.testing import chi_square
from drawlot.testing.fit import Fit
from drawlot.verification import DraftSampler

K, NUM_CHOICES, TEMPERATURE = 3, 128, 0.8


class Writers:
    """Requests of a chain: the law of a token depends on the token before it alone."""

    def __init__(self, backend: str, num_requests: int, *, v: int, length: int, mismatch: float) -> None:
        random = np.random.default_rng(3)
        target, drafter = random.normal(0, 0.4, (2, v, v)).astype(np.float32)
        self.target, self.drafter = torch.from_numpy(target), torch.from_numpy(target + mismatch * drafter)
        self.v, self.length = v, length
        self.num_requests = num_requests
        self.sampler = Sampler(num_requests, v, backend=backend)
        for r in range(num_requests):
            self.sampler.add_request(
                r, SamplingParams(seed=r // NUM_CHOICES, temperature=TEMPERATURE), (), (), choice_index=r % NUM_CHOICES
            )

    @cached_property
    def law(self) -> np.ndarray:
        """[v, .., v]: of the first tokens, the one before them being 0."""
        p = (self.target.double() / TEMPERATURE).softmax(1).numpy()
        law = p[0]
        for _ in range(self.length - 1):
            law = law[..., None] * p
        return law

    def fit(self, method: str, *, coupled: bool = False) -> Fit:
        """How the sequences fit the law."""
        counts = np.zeros((self.v,) * self.length)
        np.add.at(counts, tuple(self.write(method, coupled=coupled).T), 1)
        return chi_square(counts, self.law)

    def write(self, method: str, *, coupled: bool = False) -> np.ndarray:
        """int64 [num_requests, length]."""
        n, each, columns = self.num_requests, torch.arange(self.num_requests), torch.arange(K + 1)
        verifier = RejectionSampler(self.sampler, num_speculative_tokens=K, method=method)
        draws = DraftSampler(self.sampler, num_speculative_tokens=K, coupled=coupled)
        tokens, length = torch.zeros((n, self.length + K + 1), dtype=torch.int64), torch.zeros(n, dtype=torch.int64)
        while int(length.min()) < self.length:
            # The finished ones write their last tokens once more.
            anchors = length.clamp(max=self.length - 1)
            last = torch.where(anchors > 0, tokens[each, (anchors - 1).clamp(min=0)], 0)
            inputs = [last]
            for step in range(K):
                inputs.append(draws.draw(self.drafter[inputs[-1]], each, anchors, step))
            given = torch.stack(inputs, 1)
            rows = LogitsRows(
                each,
                each.repeat_interleave(K + 1),
                columns.repeat(n),
                (anchors.unsqueeze(1) + columns).flatten(),
                given.flatten(),
                torch.arange(n + 1, dtype=torch.int32) * (K + 1),
            )
            out = verifier(self.target[given.flatten()], rows, given[:, 1:].contiguous(), draws.draft_logits)
            unfinished = length < self.length
            self._append(tokens, length, out.sampled_token_ids, unfinished)
            length = torch.where(unfinished, length + out.num_sampled, length)
        return tokens[:, : self.length].numpy()

    @staticmethod
    def _append(tokens: Tensor, length: Tensor, sampled: Tensor, which: Tensor) -> None:
        row, column = ((sampled >= 0) & which.unsqueeze(1)).nonzero(as_tuple=True)
        tokens[row, length[row] + column] = sampled[row, column]
