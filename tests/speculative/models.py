"""Random models of 8 tokens, small enough to enumerate: a target, a drafter that resembles it, an EAGLE head."""

from pathlib import Path

import torch
import transformers

from drawlot.assets import resolve
from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.speculators.eagle_head import EagleHead, EagleHeadConfig, save_head

VOCAB = 8
SPECULATORS = ("ngram", "draft_model", "eagle")
_WIDTH, _CONTEXT = 16, 64
# How far the drafter's weights lie from the target's.
_APART = 0.06


def make_models(folder: Path) -> Path:
    """Write `target`, `draft` and `head`; the tokenizer is the embedded model's, of which 8 ids are in use."""
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=_WIDTH,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.5,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = transformers.LlamaForCausalLM(config)
    tokenizer = transformers.AutoTokenizer.from_pretrained(resolve("tiny"))
    for name in ("target", "draft"):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        for weight in model.parameters():
            weight.data += _APART * torch.randn_like(weight)
    head = EagleHead(EagleHeadConfig(_WIDTH, 24, 2, 1, 8, _CONTEXT, 10000.0, 1e-6))
    save_head(head, folder / "head", folder / "target")
    return folder


def reference_of(folder: Path, name: str) -> transformers.PreTrainedModel:
    """The model as transformers runs it."""
    return transformers.AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32).eval()


def make_engine(folder: Path, speculative_config: dict | None = None, **args: object) -> Engine:
    """An engine on the target; the drafter is the one in the folder."""
    if speculative_config is not None:
        models = {"draft_model": str(folder / "draft"), "eagle": str(folder / "head")}
        name = models.get(speculative_config["method"])
        speculative_config = ({"model": name} if name else {}) | speculative_config
    defaults = {"block_size": 4, "num_kv_blocks": 256, "max_num_seqs": 8, "seed": 0}
    return Engine(EngineArgs(model=str(folder / "target"), speculative_config=speculative_config, **(defaults | args)))
