"""A wide generator of random (rows, parameters, seeds), for tests that compare backends."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from drawlot import SamplingParams

VOCAB_SIZES = (1, 2, 3, 127, 128, 129, 1000, 4097, 32001)
MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
_BAD_WORDS = ((5,), (1, 2), (0, 1, 0))


@dataclass
class Batch:
    """One call of the sampler."""

    logits: Tensor
    params: list[SamplingParams]
    positions: Tensor
    choices: Tensor
    prompts: list[list[int]]
    outputs: list[list[int]]
    bitmask: Tensor | None
    mode: str
    wide: bool
    note: str = ""
    kwargs: dict[str, object] = field(default_factory=dict)


def random_batch(rng: np.random.Generator, vocab_size: int, rows: int) -> Batch:
    """A batch in which every row differs from every other in kind."""
    logits = np.stack([_logits(rng, vocab_size) for _ in range(rows)])
    tensor, note = _laid_out(rng, torch.from_numpy(logits.astype(np.float32)))
    bitmask = None
    if rng.random() < 0.2:
        words = rng.integers(-(2**31), 2**31, (rows, -(-vocab_size // 32)))
        bitmask = torch.from_numpy(words.astype(np.int32))
    return Batch(
        tensor,
        [_params(rng, vocab_size, tensor[i]) for i in range(rows)],
        torch.from_numpy(rng.choice([0, 1, 7, 100, 2**20, 2**32 - 1, 2**32 + 5, 2**47], rows)),
        torch.from_numpy(rng.integers(0, 128, rows)),
        [rng.integers(0, vocab_size, rng.integers(0, 20)).tolist() for _ in range(rows)],
        [rng.integers(0, vocab_size, rng.integers(0, 20)).tolist() for _ in range(rows)],
        bitmask,
        str(rng.choice(MODES)),
        bool(rng.random() < 0.2),
        note,
    )


def _logits(rng: np.random.Generator, v: int) -> np.ndarray:
    kind = rng.integers(0, 12)
    x = rng.normal(0, rng.choice([0.1, 1, 3, 10]), v)
    if kind == 0:
        x = np.full(v, rng.choice([0.0, -5.0, 1e4, -1e30]))
    elif kind == 1:
        x = np.sort(x)[:: int(rng.choice([1, -1]))].copy()
    elif kind == 2:
        x[rng.random(v) < rng.choice([0.1, 0.9, 0.999])] = -np.inf
    elif kind == 3:
        x = np.full(v, -np.inf)
        x[rng.integers(0, v)] = rng.normal()
    elif kind == 4:
        x += rng.choice([1e4, -1e4])
    elif kind == 5:
        x[rng.integers(0, v)] += 30
    elif kind == 6:
        x = np.round(x)  # many ties
    elif kind == 7:
        x = rng.choice([0.0, -0.0, 1.0], v)
    elif kind == 8 and rng.random() < 0.3:
        x[rng.integers(0, v)] = rng.choice([np.nan, np.inf])
    elif kind == 9:
        x = x * 1e-39  # subnormal
    return x


def _laid_out(rng: np.random.Generator, x: Tensor) -> tuple[Tensor, str]:
    """The rows in some dtype and memory layout."""
    dtype = (torch.float32, torch.float32, torch.bfloat16, torch.float16)[rng.integers(0, 4)]
    x = x.to(dtype)
    n, v = x.shape
    layout = int(rng.integers(0, 4))
    if layout == 1:  # a wider buffer, the rest poisoned
        wide = torch.full((n, v + int(rng.integers(1, 200))), torch.nan, dtype=dtype)
        wide[:, :v] = x
        x = wide[:, :v]
    elif layout == 2:
        x = x.t().contiguous().t()
    elif layout == 3:
        x = x[:1].expand(n, v)
    return x, f"{dtype} layout {layout}"


def _params(rng: np.random.Generator, v: int, row: Tensor) -> SamplingParams:
    def maybe(share: float, value: object, default: object) -> object:
        return value if rng.random() < share else default

    kwargs: dict[str, object] = {
        "seed": int(rng.integers(-(2**63), 2**63)),
        "temperature": float(rng.choice([0, 1e-45, 1e-12, 1e-3, 0.5, 0.8, 1, 1, 1, 1.5, 10, 1e4])),
        "top_k": int(maybe(0.5, rng.choice([-1, 1, 2, 5, 50, 127, 128, 129, 1025, max(1, v - 1), v, v + 1]), 0)),
        "top_p": float(maybe(0.5, rng.choice([1e-9, 0.1, 0.25, 0.5, 0.9, 0.95, 0.999, 1 - 1e-6]), 1.0)),
        "min_p": float(maybe(0.4, rng.choice([1e-30, 1e-6, 0.01, 0.3, 1.0]), 0.0)),
        "max_tokens": 64,
    }
    if rng.random() < 0.15:
        kwargs["logit_bias"] = {int(i): float(rng.uniform(-100, 100)) for i in rng.integers(0, v, 5)}
    if rng.random() < 0.1:
        kwargs["allowed_token_ids"] = rng.integers(0, v, rng.integers(1, 10)).tolist()
    if rng.random() < 0.1:
        kwargs["min_tokens"], kwargs["stop_token_ids"] = 30, rng.integers(0, v, 3).tolist()
    if rng.random() < 0.2:
        kwargs["repetition_penalty"] = float(rng.choice([0.5, 1.3, 1e-30]))
        kwargs["frequency_penalty"] = float(rng.uniform(-2, 2))
        kwargs["presence_penalty"] = float(rng.uniform(-2, 2))
    wanted = rng.integers(0, 5)
    if wanted == 1:
        kwargs["logprobs"] = int(rng.choice([0, 1, 5, 20]))
    elif wanted == 2:
        kwargs["logprob_token_ids"] = rng.choice(v, min(v, 7), replace=False).tolist()
    elif wanted == 3 and v <= 1000:
        kwargs["logprobs"] = -1
    return SamplingParams(**kwargs)  # type: ignore[arg-type]
