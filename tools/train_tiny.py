"""Trains the embedded models, `tiny` and its draft `tiny-draft`, on what `tools/tiny_data.py` prepared.

    python tools/tiny_data.py                     # anywhere: tokenizer, manifest, token streams
    python tools/train_tiny.py --out src/drawlot/assets --record benchmarks/results/tiny_training.json

Each model keeps the weights of its best held-out loss and is saved in bf16; the saved weights are then
measured in bits per byte on the held-out files, beside `xz -9e`. The seed fixes the initial weights, the
order of the data and the dropout; on a GPU, sums of another order still change the last digits of a loss.
"""

import argparse
import copy
import datetime
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from muon import Muon
from tiny_data import CONTEXT, END, EOT, SPECIAL, VOCAB_SIZE
from tiny_measure import agreement, held_out_nats, scored_windows, xz_bits
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

CODE = ("library", "library_code", "tests")  # ordinary modules twice, with docstrings and without


@dataclass(frozen=True)
class Recipe:
    """A model's shape and how it is trained."""

    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    steps: int
    learning_rate: float
    dropout: float = 0.0
    weight_decay: float = 0.1
    batch_size: int = 64
    teacher_share: float = 0.0  # how much of the loss is the distance from the teacher's distribution


TINY = Recipe(256, 768, layers=6, heads=8, kv_heads=4, steps=8000, learning_rate=8e-3, dropout=0.15, weight_decay=0.4)
DRAFT = Recipe(128, 352, layers=2, heads=4, kv_heads=2, steps=8000, learning_rate=1.2e-2, teacher_share=0.9)


class Data:
    """The token streams, cut into documents."""

    chat_share = 0.06

    def __init__(self, folder: Path) -> None:
        arrays = np.load(folder / "tokens.npz")
        self.documents = {
            name: np.split(arrays[name], arrays[f"{name}_starts"][1:-1]) for name in (*CODE, "chats", "held_out")
        }
        self.newlines = arrays["newlines"]
        texts = json.loads((folder / "held_out.json").read_text())
        self.held_out_files = [text.encode() for text in texts]

    def epoch(self, rng: np.random.Generator) -> np.ndarray:
        """One pass in a fresh order, as rows of CONTEXT + 1 tokens.

        Most rows begin at any line, the way a prompt may; some at the start of each document, with or
        without the end-of-text before it; and a few are conversations.
        """
        files = [file for name in CODE for file in self.documents[name]]
        code, begins = joined([np.concatenate(([EOT], file)) for file in files], rng)
        lines = np.flatnonzero(np.isin(code, self.newlines)) + 1
        nearest_lines = lines[np.searchsorted(lines, np.arange(rng.integers(CONTEXT), lines[-1], CONTEXT))]
        code_rows = rows(code, np.concatenate((nearest_lines, begins + rng.integers(2, size=len(begins)))))
        chats, begins = joined(self.documents["chats"], rng)
        chat_rows = rows(chats, begins[: int(self.chat_share * len(code_rows))])
        return rng.permutation(np.concatenate((code_rows, chat_rows)))


def joined(documents: list[np.ndarray], rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The documents in a random order, and where each begins."""
    pieces = [documents[i] for i in rng.permutation(len(documents))]
    return np.concatenate(pieces), np.cumsum([0, *map(len, pieces[:-1])])


def rows(stream: np.ndarray, starts: np.ndarray) -> np.ndarray:
    starts = starts[starts + CONTEXT < len(stream)]
    return stream[starts[:, None] + np.arange(CONTEXT + 1)]


def build(recipe: Recipe) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=EOT,
        eos_token_id=EOT,
        pad_token_id=EOT,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        bos_token_id=EOT, eos_token_id=[EOT, SPECIAL.index(END)], pad_token_id=EOT
    )
    for layer in model.model.layers:
        for branch in (layer.self_attn.o_proj, layer.mlp.down_proj):
            branch.register_forward_hook(lambda module, _, out: F.dropout(out, recipe.dropout, module.training))
    return model


def batches(data: Data, recipe: Recipe, seed: int) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    while True:
        epoch = data.epoch(rng)
        for start in range(0, len(epoch) - recipe.batch_size + 1, recipe.batch_size):
            yield epoch[start : start + recipe.batch_size]


def optimizers_of(model: LlamaForCausalLM, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms, at one learning rate."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    chosen = set(matrices)
    others = [weight for weight in model.parameters() if weight not in chosen]
    common = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay}
    return [
        Muon(matrices, **common),
        torch.optim.AdamW(others, betas=(0.9, 0.95), **common),
    ]


def train(
    name: str, recipe: Recipe, data: Data, seed: int, device: str, teacher: LlamaForCausalLM | None = None
) -> tuple[LlamaForCausalLM, dict[str, Any]]:
    """The model at its best held-out loss, and the record of how it got there."""
    torch.manual_seed(seed)
    model = build(recipe).to(device)
    steps = recipe.steps
    optimizers = optimizers_of(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 200, 1 - step / steps))
        for optimizer in optimizers
    ]

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        logits = model(inputs, use_cache=False).logits.float().flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten())
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(inputs, use_cache=False).logits.float().flatten(0, 1)
            distance = F.kl_div(logits.log_softmax(-1), wanted.log_softmax(-1), log_target=True, reduction="batchmean")
            loss = torch.lerp(loss, distance, recipe.teacher_share)
        return loss

    compiled = torch.compile(loss_of, disable=device == "cpu")
    windows = scored_windows(data.documents["held_out"])
    best, best_weights, history, began = math.inf, None, [], time.time()
    for step, batch in zip(range(steps), batches(data, recipe, seed)):
        model.train()
        tokens = torch.from_numpy(batch.astype(np.int64)).to(device, non_blocking=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = compiled(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
        model.zero_grad()
        if (step + 1) % max(1, steps // 20) == 0 or step + 1 == steps:
            with torch.autocast(device, dtype=torch.bfloat16):
                nats, count = held_out_nats(model, windows)
            seconds = time.time() - began
            history.append({"step": step + 1, "loss": loss.item(), "held_out": nats / count})
            speed = (step + 1) * batch[:, 1:].size / seconds
            print(
                f"{name} {step + 1}/{steps}: loss {loss.item():.3f}, held out {nats / count:.4f} nats a token, "
                f"{speed:,.0f} tokens/s, {seconds:.0f} s",
                flush=True,
            )
            if nats / count < best:
                best, best_weights = nats / count, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_weights)
    record = {
        "recipe": asdict(recipe),
        "parameters": sum(weight.numel() for weight in model.parameters()),
        "best_held_out_nats_per_token": best,
        "seconds": round(time.time() - began, 1),
        "history": history,
    }
    return model.eval(), record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(".work/tiny"), help="what tiny_data.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="gets tiny/ and tiny-draft/")
    parser.add_argument("--record", type=Path, required=True, help="the training record, JSON")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    data = Data(args.data)
    tiny, tiny_record = train("tiny", TINY, data, args.seed, args.device)
    draft, draft_record = train("tiny-draft", DRAFT, data, args.seed, args.device, teacher=tiny)
    windows = scored_windows(data.documents["held_out"])
    size = sum(map(len, data.held_out_files))
    draft_record["accepted_share"] = agreement(draft, tiny, windows)
    for name, model, record in (("tiny", tiny, tiny_record), ("tiny-draft", draft, draft_record)):
        model.to(torch.bfloat16).save_pretrained(args.out / name)
        saved = LlamaForCausalLM.from_pretrained(args.out / name, dtype=torch.bfloat16).to(args.device)
        record["bits_per_byte"] = held_out_nats(saved, windows)[0] / math.log(2) / size
        print(f"{name}: {record['bits_per_byte']:.4f} bits per byte", flush=True)
    result = {
        "date": datetime.date.today().isoformat(),
        "seed": args.seed,
        "device": torch.cuda.get_device_name() if args.device == "cuda" else args.device,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "held_out_bytes": size,
        "xz_9e_bits_per_byte": {
            "one_archive": xz_bits(b"".join(data.held_out_files)) / size,
            "file_by_file": sum(map(xz_bits, data.held_out_files)) / size,
        },
        "models": {"tiny": tiny_record, "tiny-draft": draft_record},
    }
    args.record.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
