"""What tests of FlashInfer share: a stand-in that draws the same law in plain torch, and batches of requests."""

from types import ModuleType, SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from drawlot import LogitsRows, Sampler, SamplingParams
from tests.statistical.draws import EMPTY

V = 300


class FlashInfer(ModuleType):
    """The stand-in. `seen` holds the rows of logits of every call."""

    def __init__(self, version: str = "0.6.14") -> None:
        super().__init__("flashinfer")
        self.__version__ = version
        self.sampling = SimpleNamespace(top_k_top_p_sampling_from_logits=self.draw)
        self.seen: list[Tensor] = []

    def draw(self, logits: Tensor, top_k: Tensor, top_p: Tensor, filter_apply_order: str) -> Tensor:
        assert logits.dtype == torch.float32
        assert logits.is_contiguous()
        assert top_k.dtype == torch.int32
        assert 1 <= top_k.min() <= top_k.max() <= logits.shape[1]
        assert top_p.dtype == torch.float32
        assert 0 < top_p.min() <= top_p.max() <= 1
        self.seen.append(logits)
        best, ids = logits.sort(dim=1, descending=True, stable=True)
        rank = torch.arange(logits.shape[1])
        masked = best.masked_fill(rank >= top_k.unsqueeze(1), EMPTY)
        law = masked.softmax(1)
        counted = law if filter_apply_order == "top_k_first" else best.softmax(1)
        law = law.masked_fill(counted.cumsum(1) - counted >= top_p.unsqueeze(1), 0)
        # The real one draws token 0 from a row of NaN.
        law[:, 0] = torch.where(law.isnan().any(1), 1, law[:, 0])
        drawn = law.nan_to_num(0).multinomial(1)
        return ids.gather(1, drawn).squeeze(1).to(torch.int32)


class Case(NamedTuple):
    """A batch of three requests, in rows 2, 0 and 1 of state; row 3 belongs to one that is greedy and seeded."""

    params: list[SamplingParams]
    reason: str | None = None
    """Why it is not FlashInfer's"""
    fp64: bool = False
    mode: str = "raw_logprobs"


PLAIN, K, P = SamplingParams(), SamplingParams(top_k=5), SamplingParams(top_p=0.9)
BATCHES = {
    "top_k": Case([PLAIN, K, PLAIN]),
    "top_p": Case([PLAIN, PLAIN, P]),
    "both": Case([SamplingParams(top_k=5, top_p=0.5), PLAIN, P]),
    "with min_p, temperature and edits": Case(
        [K, SamplingParams(temperature=0.5, min_p=0.1), SamplingParams(logit_bias={3: 1.0}, repetition_penalty=1.2)]
    ),
    "with raw logprobs": Case([K, SamplingParams(logprobs=3), PLAIN]),
    "a mode that no row asks for": Case([K, P, PLAIN], mode="processed_logprobs"),
    "no filter": Case([PLAIN, PLAIN, PLAIN], "no row has top_k or top_p"),
    "only min_p": Case([PLAIN, SamplingParams(min_p=0.1), PLAIN], "no row has top_k or top_p"),
    "top_k of the whole vocabulary": Case([SamplingParams(top_k=V), PLAIN, PLAIN], "no row has top_k or top_p"),
    "greedy": Case([K, SamplingParams(temperature=0), P], "a row is greedy"),
    "greedy alone": Case([SamplingParams(temperature=0)] * 3, "no row has top_k or top_p"),
    "seeded": Case([K, SamplingParams(seed=0), P], "a row has a seed"),
    "processed logprobs": Case(
        [K, SamplingParams(logprobs=0), P], "processed logprobs are wanted", mode="processed_logprobs"
    ),
    "processed logits": Case(
        [K, P, SamplingParams(logprob_token_ids=[1])], "processed logprobs are wanted", mode="processed_logits"
    ),
    "float64 noise": Case([K, P, PLAIN], "the noise is float64", fp64=True),
}


def sampler_of(case: Case, backend: str = "flashinfer") -> Sampler:
    sampler = Sampler(4, V, backend=backend, logprobs_mode=case.mode, use_fp64_gumbel=case.fp64)
    sampler.add_request(3, SamplingParams(temperature=0, seed=1, min_p=0.5), [1])
    for req_idx, params in zip((2, 0, 1), case.params):
        sampler.add_request(req_idx, params, [1, 2, 3])
    return sampler


def rows_of(*, host: bool = True) -> LogitsRows:
    mapping = torch.tensor([2, -1, 0, 1])
    zeros = torch.zeros_like(mapping)
    cu = torch.arange(5, dtype=torch.int32)
    return LogitsRows(mapping, mapping, zeros, zeros + 3, zeros, cu, [2, -1, 0, 1] if host else None)
