"""Random ragged batches of drafts in which every request differs from every other in kind."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from drawlot import LogitsRows, RejectionSampler, Sampler, SamplingParams, SparseDraftLogits, VerifierOutput
from tests.cases import MODES, _laid_out, _logits, _params

METHODS = ("standard", "block", "coupled", "synthetic")
RATES = (0.9, 0.7, 0.7, 0.2)
K = len(RATES)
BAD_WORDS = ((5,), (1, 2), (0, 1, 0))


@dataclass
class Batch:
    """One call of the verifier."""

    logits: Tensor
    rows: LogitsRows
    drafts: Tensor
    draft_logits: Tensor | SparseDraftLogits | None
    draft_lse: Tensor | None
    bitmask: Tensor | None
    params: list[SamplingParams]
    methods: list[str]
    prompts: list[list[int]]
    outputs: list[list[int]]
    bad_words: list[list[list[int]]]
    mode: str
    wide: bool
    note: str
    state_rows: list[int]

    def verify(self, backend: str) -> VerifierOutput:
        vocab_size = self.logits.shape[1]
        sampler = Sampler(
            len(self.params), vocab_size, logprobs_mode=self.mode, use_fp64_gumbel=self.wide, backend=backend
        )
        verifier = RejectionSampler(sampler, num_speculative_tokens=K, synthetic_rates=RATES)
        for r, params in enumerate(self.params):
            s = self.state_rows[r]
            sampler.add_request(s, params, self.prompts[r], self.outputs[r], r % 128, self.bad_words[r])
            verifier.set_method(s, self.methods[r])
        return verifier(self.logits, self.rows, self.drafts, self.draft_logits, self.draft_lse, self.bitmask)


def random_batch(rng: np.random.Generator, v: int, requests: int) -> Batch:
    counts = rng.integers(0, K + 1, requests)
    first = np.concatenate(([0], np.cumsum(counts + 1)))
    base = [_logits(rng, v) for _ in range(first[-1])]
    logits, note = _laid_out(rng, torch.from_numpy(np.stack(base).astype(np.float32)))
    state_rows = rng.permutation(requests)
    draft_logits, lse = _draft_logits(rng, v, state_rows, first, base)
    drafts = np.full((requests, K), -1)
    inputs = np.zeros(first[-1], np.int64)
    for r, n in enumerate(counts):
        for j in range(n):
            row = np.nan_to_num(base[first[r] + j], nan=0.0, posinf=0.0, neginf=-1e30)
            # Often a likely token, so that long prefixes are accepted.
            token = int(row.argmax()) if rng.random() < 0.5 else int(rng.integers(0, v))
            if isinstance(draft_logits, SparseDraftLogits) and rng.random() < 0.7:
                token = max(0, int(draft_logits.token_ids[state_rows[r], j, 0]))
            inputs[first[r] + j + 1] = token
            drafts[r, j] = rng.choice([token, -1, -2 - token], p=[0.9, 0.05, 0.05])
    expanded = np.repeat(np.arange(requests), counts + 1)
    local = np.concatenate([np.arange(n + 1) for n in counts])
    anchors = rng.choice([0, 1, 7, 2**20, 2**32 - 2, 2**47], requests)
    skipped = rng.random(requests) < 0.05
    rows = LogitsRows(
        torch.from_numpy(np.where(skipped, -1, state_rows)),
        torch.from_numpy(np.where(skipped[expanded], -1, state_rows[expanded])),
        torch.from_numpy(local),
        torch.from_numpy(anchors[expanded] + local),
        torch.from_numpy(inputs),
        torch.from_numpy(first.astype(np.int32)),
    )
    bitmask = None
    if rng.random() < 0.2:
        words = rng.integers(-(2**31), 2**31, (first[-1], -(-v // 32)))
        bitmask = torch.from_numpy(words.astype(np.int32))
    history = [[rng.integers(0, v, rng.integers(0, 20)).tolist() for _ in range(requests)] for _ in range(2)]
    words_of = [[[t % v for t in word] for word in BAD_WORDS] if rng.random() < 0.1 else [] for _ in range(requests)]
    return Batch(
        logits,
        rows,
        torch.from_numpy(drafts),
        draft_logits,
        lse,
        bitmask,
        [_params(rng, v, logits[first[r]]) for r in range(requests)],
        [str(rng.choice(METHODS)) for _ in range(requests)],
        *history,
        words_of,
        str(rng.choice(MODES)),
        bool(rng.random() < 0.2),
        note,
        state_rows.tolist(),
    )


def _draft_logits(
    rng: np.random.Generator, v: int, state_rows: np.ndarray, first: np.ndarray, base: list[np.ndarray]
) -> tuple[Tensor | SparseDraftLogits | None, Tensor | None]:
    """Point masses, dense or sparse laws: some near the target's, some unlike them, a few broken."""
    kind = rng.choice(["point", "dense", "sparse"], p=[0.3, 0.45, 0.25])
    if kind == "point":
        return None, None
    lines = np.zeros((len(state_rows), K, v), np.float32)
    for r, s in enumerate(state_rows):
        for j in range(K):
            near = base[min(first[r] + j, first[-1] - 1)]
            lines[s, j] = _logits(rng, v) if rng.random() < 0.4 else near + rng.normal(0, 0.5, v)
    dense = torch.from_numpy(lines).to((torch.float32, torch.float32, torch.bfloat16, torch.float16)[rng.integers(4)])
    if kind == "dense":
        if rng.random() < 0.3:
            dense = torch.nn.functional.pad(dense, (0, 5), value=torch.nan)  # wider lines are cut
        lse = dense[..., :v].float().logsumexp(2) if rng.random() < 0.5 else None
        return dense, lse
    m = min(v, int(rng.integers(1, 9)))
    top = dense.nan_to_num(0.0).topk(m, dim=2)
    ids = torch.where(torch.from_numpy(rng.random(top.indices.shape) < 0.1), -1, top.indices)
    values = dense.gather(2, top.indices)
    lse = values.float().masked_fill(ids < 0, -torch.inf).logsumexp(2) if rng.random() < 0.5 else None
    return SparseDraftLogits(ids, values), lse
