"""What the EAGLE head is measured by: tokens that greedy verification emits a step, on files kept out of training."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from eagle_chain import Chain, shifted
from torch import Tensor
from transformers import LlamaForCausalLM

from drawlot.speculators.eagle_head import EagleHead

PROMPT, ANSWER = 128, 128
BATCH = 128
DRAFTS = 4


def prompts_of(documents: list[np.ndarray], every: int = 2048) -> Tensor:
    """int64 [B, PROMPT]: the beginning of each document that is long enough, and again every so many tokens."""
    cut = [
        document[start : start + PROMPT]
        for document in documents
        for start in range(0, len(document) - PROMPT + 1, every)
    ]
    return torch.from_numpy(np.stack(cut).astype(np.int64))


@torch.no_grad()
def greedy(target: LlamaForCausalLM, prompts: Tensor, count: int) -> Tensor:
    """int64 [B, P + count]: the prompts and the target's own greedy continuation, across ends of documents."""
    tokens, cache = [prompts], None
    for _ in range(count):
        out = target(tokens[-1], past_key_values=cache, use_cache=True, logits_to_keep=1)
        tokens.append(out.logits.argmax(-1))
        cache = out.past_key_values
    return torch.cat(tokens, 1)


@torch.no_grad()
def hits(head: EagleHead, target: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """bool [B, L, DRAFTS]: whether draft s of the chain that begins at each position is the token that follows.

    The chain at t has read the target's state there and token t + 1; its draft s stands for token t + 2 + s.
    `tokens` [B, L] is greedy text of the target, so a hit is what greedy verification accepts.
    """
    chain = Chain(head, target.model(tokens[:, :-1], use_cache=False).last_hidden_state)
    drafted, found = tokens[:, 1:], torch.zeros(*tokens.shape, DRAFTS, dtype=torch.bool, device=tokens.device)
    for step in range(DRAFTS):
        states = chain.step(target.get_input_embeddings()(drafted))
        drafted = target.get_output_embeddings()(states).argmax(-1)
        right = drafted[:, step:-1] == tokens[:, step + 2 :]
        found[:, : right.shape[1], step] = right
        drafted = shifted(drafted)
    return found


def accepted_in_turn(hit: np.ndarray, begin: int, last: int) -> list[int]:
    """Accepted drafts of each step of one request.

    Args:
        hit: bool [L, DRAFTS], of its sequence.
        begin: The position of the last prompt token; the token after it has been drawn already.
        last: The position of the last token that is to be emitted.
    """
    accepted = []
    while begin + 1 < last:
        row = hit[begin]
        count = DRAFTS if row.all() else int(row.argmin())
        accepted.append(min(count, last - begin - 2))
        begin += accepted[-1] + 1
    return accepted


def acceptance(head: EagleHead, target: LlamaForCausalLM, answers: Tensor) -> dict[str, Any]:
    """Greedy verification of DRAFTS drafts a step along the target's greedy answers, each up to its end of text.

    Args:
        head, target: In evaluation mode.
        answers: int64 [B, PROMPT + ANSWER], from `greedy`.
    """
    accepted = []
    for batch in answers.split(BATCH):
        for row, hit in zip(batch.cpu().numpy(), hits(head, target, batch).cpu().numpy()):
            ends = np.flatnonzero(np.isin(row[PROMPT:], target.generation_config.eos_token_id))
            last = PROMPT + int(ends[0]) if len(ends) else len(row) - 1
            accepted.extend(accepted_in_turn(hit, PROMPT - 1, last))
    reached = [sum(count >= position for count in accepted) for position in range(DRAFTS + 1)]
    return {
        "drafts": DRAFTS,
        "prompts": len(answers),
        "steps": len(accepted),
        "mean_emitted_tokens": 1 + sum(accepted) / len(accepted),
        "accepted_by_position": [count / len(accepted) for count in reached[1:]],
        "accepted_if_reached": [count / max(1, before) for before, count in pairwise(reached)],
    }
