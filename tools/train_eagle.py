"""Trains `tiny-eagle`, the EAGLE-style head of the embedded model `tiny`, on what `tools/tiny_data.py` prepared.

    python tools/tiny_data.py                     # anywhere: tokenizer, manifest, token streams
    PYTHONPATH=src python tools/train_eagle.py --minutes 8 -o .work/tiny-eagle

Half of the rows are the corpus; the other half go over to `tiny`'s own greedy text, which is what it drafts for at
temperature 0. Chains of drafts start at every position. The head keeps its best held-out weights, is saved in bf16,
loaded again and measured. The seed fixes the initial weights and the order of the data; on a GPU, sums of another
order still change the last digits of a loss. Where time runs out before the steps do, the learning rate falls with it.
"""

import argparse
import copy
import datetime
import hashlib
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from eagle_chain import Chain
from eagle_measure import ANSWER, BATCH, acceptance, greedy, prompts_of
from muon import Muon
from tiny_data import CONTEXT
from torch import Tensor
from train_tiny import Data
from transformers import LlamaForCausalLM

from drawlot.assets import resolve
from drawlot.speculators.eagle_head import WEIGHTS, EagleHead, EagleHeadConfig, load_head, save_head


@dataclass(frozen=True)
class Recipe:
    """The head's free size and how it is trained."""

    intermediate_size: int = 832
    steps: int = 8000
    learning_rate: float = 8e-3
    weight_decay: float = 0.1
    batch_size: int = 64  # half corpus, half greedy
    greedy_rows: int = 16384
    greedy_prompt: int = 256
    chain: int = 4
    later_weight: float = 0.8  # of each step of a chain, against the one before
    regression_weight: float = 0.5  # of the distance between states, against the cross entropy
    evaluations: int = 20


class Progress:
    """How much of the steps or of the time is used, whichever is more, and a line about it every few seconds."""

    def __init__(self, steps: int, seconds: float) -> None:
        self._steps, self._seconds = steps, seconds
        self._began = time.time()
        self._printed = 0.0

    @property
    def seconds(self) -> float:
        return time.time() - self._began

    def share(self, step: int) -> float:
        return min(1.0, max(step / self._steps, self.seconds / self._seconds))

    def say(self, text: str, now: bool = True) -> None:
        if now or self.seconds - self._printed > 5:
            self._printed = self.seconds
            print(f"{self.seconds:6.1f} s: {text}", flush=True)


def new_head(target: LlamaForCausalLM, recipe: Recipe) -> EagleHead:
    config = target.config
    head = EagleHead(
        EagleHeadConfig(
            hidden_size=config.hidden_size,
            intermediate_size=recipe.intermediate_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_theta=config.rope_parameters["rope_theta"],
            rms_norm_eps=config.rms_norm_eps,
        )
    )
    head.output_norm.load_state_dict(target.model.norm.state_dict())
    return head.to(target.device)


def loss_of(head: EagleHead, target: LlamaForCausalLM, recipe: Recipe, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of rows [B, CONTEXT + 1], and the cross entropy of each step of the chain, in nats a token."""
    with torch.no_grad():
        hidden = target.model(tokens[:, :-1], use_cache=False).last_hidden_state
        wanted = target.lm_head(hidden).float().softmax(-1)
        embeddings = target.model.embed_tokens(tokens[:, 1:])
    chain = Chain(head, hidden)
    loss, entropies = torch.zeros((), device=tokens.device), []
    for step in range(recipe.chain):
        # Position t gives what stands at t + 1. The last one's is outside; the first ones have no chain of this length.
        given = chain.step(embeddings)[:, step:-1]
        logits = target.lm_head(given).float()
        entropy = F.cross_entropy(logits.flatten(0, 1), wanted[:, step + 1 :].flatten(0, 1))
        distance = F.smooth_l1_loss(given.float(), hidden[:, step + 1 :].float())
        loss = loss + recipe.later_weight**step * (entropy + recipe.regression_weight * distance)
        entropies.append(entropy.detach())
    return loss, torch.stack(entropies)


def greedy_rows(
    target: LlamaForCausalLM, data: Data, recipe: Recipe, rng: np.random.Generator, progress: Progress
) -> np.ndarray:
    """uint16 [rows, CONTEXT + 1]: beginnings of training rows that the target continues.

    No more than will be read, and no batch is begun when a third of the time has gone.
    """
    count = min(recipe.greedy_rows, recipe.steps * recipe.batch_size // 2)
    prompts = torch.from_numpy(data.epoch(rng)[:count, : recipe.greedy_prompt].astype(np.int64))
    made: list[Tensor] = []
    for batch in prompts.split(1024):
        if made and progress.share(0) > 1 / 3:
            break
        made.append(greedy(target, batch.to(target.device), CONTEXT + 1 - recipe.greedy_prompt).cpu())
        progress.say(f"{sum(map(len, made))} rows of greedy text", now=False)
    return torch.cat(made).numpy().astype(np.uint16)


def batches(data: Data, greedy_text: np.ndarray, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Half of each from the corpus, half greedy, both in a new order at every pass."""

    def forever(epoch: Any) -> Iterator[np.ndarray]:
        while True:
            rows = epoch()
            for start in range(0, len(rows) - size // 2 + 1, size // 2):
                yield rows[start : start + size // 2]

    for pair in zip(forever(lambda: data.epoch(rng)), forever(lambda: rng.permutation(greedy_text))):
        yield np.concatenate(pair)


def train(
    target: LlamaForCausalLM, data: Data, recipe: Recipe, seed: int, answers: Tensor, progress: Progress
) -> tuple[EagleHead, dict[str, Any]]:
    """The head at its best held-out acceptance, and the record of how it got there."""
    device = target.device.type
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    head = new_head(target, recipe)
    greedy_text = greedy_rows(target, data, recipe, rng, progress)
    progress.say(f"{len(greedy_text)} rows of greedy text")

    matrices = [weight for weight in head.parameters() if weight.ndim == 2]
    norms = [weight for weight in head.parameters() if weight.ndim == 1]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=recipe.learning_rate, weight_decay=recipe.weight_decay),
        torch.optim.AdamW(norms, lr=recipe.learning_rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    compiled = torch.compile(loss_of, disable=device == "cpu")
    best, best_weights, history, due, step = -math.inf, None, [], 1, 0
    for batch in batches(data, greedy_text, recipe.batch_size, rng):
        share = progress.share(step)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate * min((step + 1) / 200, 1 - share)
        head.train()
        tokens = torch.from_numpy(batch.astype(np.int64)).to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss, entropies = compiled(head, target, recipe, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        head.zero_grad()
        step += 1
        share = progress.share(step)
        if share * recipe.evaluations >= due or share == 1:
            due = math.floor(share * recipe.evaluations) + 1
            measured = acceptance(head.eval(), target, answers)
            emitted = measured["mean_emitted_tokens"]
            history.append({"step": step, "cross_entropy": entropies.tolist(), **measured})
            progress.say(
                f"step {step}: cross entropy {shown(entropies.tolist())}, {emitted:.3f} tokens a step held out"
            )
            if emitted > best:
                best, best_weights = emitted, copy.deepcopy(head.state_dict())
            if share == 1:
                break
        elif step % 10 == 0:
            progress.say(f"step {step}: loss {loss.item():.3f}, cross entropy {shown(entropies.tolist())}", now=False)
    head.load_state_dict(best_weights)
    return head.eval(), {"steps": step, "best_held_out_emitted_tokens": best, "history": history}


def shown(values: list[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(".work/tiny"), help="what tiny_data.py wrote")
    parser.add_argument("-o", "--out", type=Path, required=True, help="gets model.safetensors and training.json")
    parser.add_argument("--steps", type=int, default=Recipe.steps)
    parser.add_argument("--minutes", type=float, required=True, help="it ends by then, with the best head so far")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    recipe = replace(Recipe(), steps=args.steps)
    progress = Progress(recipe.steps, 60 * args.minutes)
    folder = Path(resolve("tiny"))
    target = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).to(args.device).eval().requires_grad_(False)
    data = Data(args.data)
    prompts = prompts_of(data.documents["held_out"])
    answers = torch.cat([greedy(target, batch, ANSWER) for batch in prompts.to(args.device).split(BATCH)])
    progress.say(f"{len(answers)} held-out prompts answered")

    head, training = train(target, data, recipe, args.seed, answers, progress)
    save_head(head, args.out, folder)
    measured = acceptance(load_head(args.out, folder).to(args.device), target, answers)
    result = {
        "date": datetime.date.today().isoformat(),
        "seed": args.seed,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "target_sha256": hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest(),
        "recipe": asdict(recipe),
        "parameters": sum(weight.numel() for weight in head.parameters()),
        "bytes": (args.out / WEIGHTS).stat().st_size,
        "held_out": measured,
        "seconds": round(progress.seconds, 1),
        "training": training,
    }
    (args.out / "training.json").write_text(json.dumps(result, indent=1) + "\n")
    progress.say(f"saved in {args.out}: {measured['mean_emitted_tokens']:.3f} tokens a step held out")


if __name__ == "__main__":
    main()
