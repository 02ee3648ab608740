"""The backend beside the CPU's, as samplers of requests, and rows of a step for both."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from drawlot import LogitsRows, Sampler, SamplerOutput, SamplingParams

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INTERPRETED = pytest.mark.skipif(torch.cuda.is_available(), reason="for Triton's interpreter")
V = 300


def rows_of(requests: Sequence[int], positions: Sequence[int], drafts: Sequence[Sequence[int]] = ()) -> LogitsRows:
    """A row for each request and one for each of its drafts; positions are those of first rows."""
    drafts = drafts or [()] * len(requests)
    counts = torch.tensor([1 + len(ids) for ids in drafts])
    local = torch.cat([torch.arange(count) for count in counts])
    index = torch.tensor(requests)
    fields = (
        index,
        index.repeat_interleave(counts),
        local,
        torch.tensor(positions).repeat_interleave(counts) + local,
        torch.tensor([token for ids in drafts for token in (0, *ids)]),
        torch.cat((torch.zeros(1), counts.cumsum(0))).to(torch.int32),
    )
    return LogitsRows(*(field.to(DEVICE) for field in fields))


class Pair:
    """The backend and the CPU's, given the same."""

    def __init__(self, max_num_reqs: int, mode: str = "raw_logprobs", vocab_size: int = V) -> None:
        self.triton = Sampler(max_num_reqs, vocab_size, device=DEVICE, logprobs_mode=mode, backend="triton")
        self.torch = Sampler(max_num_reqs, vocab_size, logprobs_mode=mode, backend="torch")

    def add(self, row: int, params: SamplingParams, prompt: Sequence[int], output: Sequence[int] = (), bad=()) -> None:
        for sampler in (self.triton, self.torch):
            sampler.add_request(row, params, prompt, output, bad_words_token_ids=bad)

    def remove(self, row: int) -> None:
        self.triton.remove_request(row)
        self.torch.remove_request(row)

    def draw(self, logits: torch.Tensor, rows: LogitsRows, bitmask: torch.Tensor | None = None) -> SamplerOutput:
        """What both draw."""
        got = self.triton(logits.to(DEVICE), rows, None if bitmask is None else bitmask.to(DEVICE))
        expected = self.torch(logits, LogitsRows(*(field.cpu() for field in rows[:6])), bitmask)
        assert got.token_ids.tolist() == expected.token_ids.tolist()
        assert got.status.tolist() == expected.status.tolist()
        if expected.logprobs is not None:
            columns = expected.logprobs.logprobs.shape[1]
            assert got.logprobs.selected_token_ranks.tolist() == expected.logprobs.selected_token_ranks.tolist()
            # The backend's columns are those that requests alive want, not only those of the batch.
            ids, values = got.logprobs.logprob_token_ids.cpu(), got.logprobs.logprobs.cpu()
            assert torch.equal(ids[:, :columns], expected.logprobs.logprob_token_ids)
            torch.testing.assert_close(values[:, :columns], expected.logprobs.logprobs, rtol=1e-6, atol=1e-6)
            assert (ids[:, columns:] == -1).all()
            assert (values[:, columns:] == -torch.inf).all()
        return expected

    def commit(self, requests: Sequence[int], tokens: torch.Tensor, num_sampled: Sequence[int]) -> None:
        arguments = torch.tensor(requests), tokens, torch.tensor(num_sampled, dtype=torch.int32)
        self.triton.commit(*(argument.to(DEVICE) for argument in arguments))
        self.torch.commit(*arguments)


def few_tokens(rng: np.random.Generator, n: int) -> torch.Tensor:
    """Logits by which few tokens are likely, so that what was drawn bears on what is drawn next."""
    logits = rng.normal(-9, 1, (n, V)).astype(np.float32)
    logits[:, :10] = rng.normal(0, 1, (n, 10))
    return torch.from_numpy(logits)
