"""What the embedded models are measured by: held-out loss, agreement of draft and model, and xz beside them."""

import lzma
import math

import numpy as np
import torch
import torch.nn.functional as F
from tiny_data import CONTEXT, EOT
from transformers import LlamaForCausalLM

IGNORED = -100  # cross_entropy's mark for a position that is not scored
Windows = tuple[np.ndarray, np.ndarray]


def in_batches(windows: Windows) -> zip:
    return zip(*(np.array_split(side, math.ceil(len(side) / 128)) for side in windows))


def scored_windows(documents: list[np.ndarray]) -> Windows:
    """Inputs and targets that predict each token of each document, and its end, exactly once.

    Windows of CONTEXT tokens overlap by half, so that every token but a document's first has at least half
    a context, or all of the document, before it.
    """
    inputs, targets = [], []
    half = CONTEXT // 2
    for document in documents:
        tokens = np.concatenate(([EOT], document, [EOT])).astype(np.int64)
        for start in range(0, max(1, len(tokens) - 1 - half), half):
            window = tokens[start : start + CONTEXT + 1]
            missing = CONTEXT + 1 - len(window)
            target = np.pad(window[1:], (0, missing), constant_values=IGNORED)
            target[: half if start else 0] = IGNORED
            inputs.append(np.pad(window[:-1], (0, missing), constant_values=EOT))
            targets.append(target)
    return np.stack(inputs), np.stack(targets)


@torch.no_grad()
def held_out_nats(model: LlamaForCausalLM, windows: Windows) -> tuple[float, int]:
    """The summed loss over the scored tokens, in nats, and their number."""
    model.eval()
    total, count = 0.0, 0
    for inputs, targets in in_batches(windows):
        target = torch.from_numpy(targets).to(model.device)
        logits = model(torch.from_numpy(inputs).to(model.device), use_cache=False).logits.float()
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum", ignore_index=IGNORED)
        total += loss.item()
        count += int((targets != IGNORED).sum())
    return total, count


@torch.no_grad()
def agreement(draft: LlamaForCausalLM, model: LlamaForCausalLM, windows: Windows) -> float:
    """The share of its tokens that speculative sampling would accept: the mean overlap of the distributions."""
    total, count = 0.0, 0
    for inputs, targets in in_batches(windows):
        tokens = torch.from_numpy(inputs).to(model.device)
        proposed, wanted = (each(tokens, use_cache=False).logits.float().softmax(-1) for each in (draft, model))
        overlap = torch.minimum(proposed, wanted).sum(-1).cpu()[torch.from_numpy(targets != IGNORED)]
        total, count = total + overlap.sum().item(), count + len(overlap)
    return total / count


def xz_bits(data: bytes) -> int:
    return 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME))
