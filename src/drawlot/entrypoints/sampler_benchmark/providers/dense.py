"""What the providers that work on whole matrices share: penalties by counts of every token, and ids for logprobs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.workload import PROMPT, Workload


@dataclass
class Penalties:
    """N rows of V tokens."""

    counts: Tensor
    """int32 [N, V]: how often each token is in the output"""
    in_prompt: Tensor
    """bool [N, V]"""
    repetition: Tensor
    """float32 [N]; the same for the other two"""
    frequency: Tensor
    presence: Tensor

    @classmethod
    def of(cls, work: Workload) -> "Penalties | None":
        """None if no row has one."""
        if not any(params.has_penalties for params in work.params):
            return None
        history = work.history.to(work.device)
        prompt, output = history[:, :PROMPT], history[:, PROMPT:]
        shape = work.case.rows, work.case.vocab_size
        counts = torch.zeros(shape, dtype=torch.int32, device=work.device)
        counts.scatter_add_(1, output, torch.ones_like(output, dtype=torch.int32))
        in_prompt = torch.zeros(shape, dtype=torch.bool, device=work.device).scatter_(1, prompt, True)
        names = "repetition_penalty", "frequency_penalty", "presence_penalty"
        return cls(counts, in_prompt, *(work.column(name, torch.float32) for name in names))

    def dense(self, x: Tensor) -> Tensor:
        """The values of float32 logits [N, V], in torch."""
        seen = self.in_prompt | (self.counts > 0)
        repetition = self.repetition.unsqueeze(1)
        x = torch.where(seen, torch.where(x > 0, x / repetition, x * repetition), x)
        x = x - self.frequency.unsqueeze(1) * self.counts
        return x - self.presence.unsqueeze(1) * (self.counts > 0)


@dataclass
class LogprobIds:
    """Which columns follow the drawn token's; as wide as the row that asks for most."""

    num_top: int
    custom: Tensor
    """int64 [N, L]"""

    def columns(self, logits: Tensor) -> Tensor:
        """int64 [N, num_top or L]."""
        return logits.topk(self.num_top).indices if self.num_top else self.custom


def logprob_ids(work: Workload) -> LogprobIds | None:
    """None if no row wants logprobs; a mix has rows with top tokens or with ids of their own, never both."""
    if all(params.num_logprobs is None for params in work.params):
        return None
    num_top = max(params.logprobs or 0 for params in work.params)
    ids = [list(params.logprob_token_ids or ()) for params in work.params]
    return LogprobIds(num_top, torch.tensor(ids, dtype=torch.int64, device=work.device).reshape(len(ids), -1))
