"""The rows of logits that are timed, and the same draw by drawlot and by transformers' official processors."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from drawlot import LogitsRows, Sampler, SamplerOutput, SamplingParams, sample

HISTORY = 512
"""Tokens before each row, which repetition penalties read."""


@dataclass(frozen=True)
class Case:
    """Rows drawn in one call. The targets are the least speed-up and the largest share of a logsumexp's time."""

    name: str
    params: SamplingParams | Sequence[SamplingParams]
    """One for all rows (`sample` is timed), or one a row, repeated as needed (`Sampler` is timed)"""
    spread: float = 3.0
    """Standard deviation of the normal logits"""
    speedup: float | None = None
    goal: float | None = None
    logsumexps: float | None = None


FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, logprobs=0)
CASES = (
    Case("k=50, p=0.9, logprob", FILTERED, speedup=25, goal=40, logsumexps=2.5),
    Case("no filter", SamplingParams(temperature=0.8), speedup=10),
    Case("min-p 0.05", SamplingParams(temperature=0.8, min_p=0.05), speedup=10),
    Case(
        "mixed rows",
        (
            SamplingParams(temperature=0),
            SamplingParams(),
            SamplingParams(temperature=0.8, top_k=50),
            SamplingParams(temperature=0.8, top_p=0.9),
            SamplingParams(temperature=0.8, min_p=0.05),
            SamplingParams(temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.2),
            SamplingParams(temperature=0.7, top_p=0.95, logit_bias=dict.fromkeys(range(16), 2.0)),
            SamplingParams(temperature=0.7, repetition_penalty=1.1),
        ),
        speedup=10,
    ),
    Case("top-p 0.9, N(0, 3)", SamplingParams(top_p=0.9), speedup=6),
    Case("no filter, 20 logprobs", SamplingParams(temperature=0.8, logprobs=20)),
    Case("top-p 0.9, N(0, 1)", SamplingParams(top_p=0.9), spread=1.0, speedup=2),
)


@dataclass
class Workload:
    """A case with its tensors."""

    case: Case
    logits: Tensor
    """float32 [N, V]"""
    history: Tensor
    """int64 [N, HISTORY]"""
    params: list[SamplingParams] = field(init=False)
    rows: LogitsRows = field(init=False)

    def __post_init__(self) -> None:
        n = len(self.logits)
        given = self.case.params
        kinds = [given] if isinstance(given, SamplingParams) else list(given)
        self.params = [replace(kinds[i % len(kinds)], seed=7) for i in range(n)]
        index, no_drafts = torch.arange(n), torch.zeros(n, dtype=torch.int64)
        positions = HISTORY + index  # they differ, so that rows of one seed do not share their noise
        self.rows = LogitsRows(index, index, no_drafts, positions, no_drafts, torch.arange(n + 1, dtype=torch.int32))
        self._sampler = self.sampler("auto")
        self.pipelines = [_pipeline(params) for params in self.params]

    def sampler(self, backend: str) -> Sampler:
        """A sampler that holds the rows."""
        sampler = Sampler(len(self.logits), self.logits.shape[1], backend=backend)
        for i, params in enumerate(self.params):
            sampler.add_request(i, params, self.history[i].tolist())
        return sampler

    def drawlot(self) -> SamplerOutput:
        """One step as a user of drawlot runs it."""
        if isinstance(self.case.params, SamplingParams):
            return sample(self.logits, self.params[0], positions=self.rows.positions)
        return self._sampler(self.logits, self.rows)

    def transformers(self) -> list[tuple[Tensor, ...]]:
        """The same step: all rows at once where they agree; otherwise row by row, as it has no parameters a row."""
        if isinstance(self.case.params, SamplingParams):
            return [_draw(self.logits, self.history, self.pipelines[0], self.params[0])]
        n = len(self.logits)
        return [
            _draw(self.logits[i : i + 1], self.history[i : i + 1], self.pipelines[i], self.params[i]) for i in range(n)
        ]

    def logsumexp(self) -> Tensor:
        """One read of the rows, and an exponential for each logit."""
        return torch.logsumexp(self.logits, -1)


def workload(case: Case, num_rows: int, vocab_size: int) -> Workload:
    """The case on logits that are the same in every run."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * case.spread
    history = torch.randint(vocab_size, (num_rows, HISTORY), generator=generator)
    return Workload(case, logits, history)


def _pipeline(params: SamplingParams) -> list[Any]:
    """The processors that `generate` would build, in its order."""
    processors: list[Any] = []
    if params.logit_bias:
        processors.append(SequenceBiasLogitsProcessor({(i,): bias for i, bias in params.logit_bias.items()}))
    if params.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature not in (0, 1):
        processors.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k > 0:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        processors.append(TopPLogitsWarper(params.top_p))
    if params.min_p > 0:
        processors.append(MinPLogitsWarper(params.min_p))
    return processors


def _draw(logits: Tensor, history: Tensor, processors: list[Any], params: SamplingParams) -> tuple[Tensor, ...]:
    scores = logits
    for processor in processors:
        scores = processor(history, scores)
    tokens = scores.argmax(-1, keepdim=True) if params.is_greedy else torch.multinomial(scores.softmax(-1), 1)
    if params.logprobs is None:
        return (tokens,)
    logprobs = logits.log_softmax(-1)
    best = logprobs.topk(params.logprobs) if params.logprobs else ()
    return tokens, logprobs.gather(1, tokens), *best
