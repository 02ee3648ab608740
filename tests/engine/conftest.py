"""Tiny random models built from their configurations, and engines on them."""

import os
from collections.abc import Callable

import pytest
import torch

# Read when Triton is imported, which the models of transformers do.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

import transformers
from running import VOCAB

from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine

WINDOW = 6
_COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 96,
    # Wide enough that greedy text does not fall into a loop at once.
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_SLIDING = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}


def _configs() -> dict[str, Callable[[], transformers.PreTrainedConfig]]:
    t = transformers
    return {
        "llama": lambda: t.LlamaConfig(**_COMMON),
        "qwen3": lambda: t.Qwen3Config(**_COMMON),
        "mistral": lambda: t.MistralConfig(**_COMMON, sliding_window=WINDOW),
        "gemma3": lambda: t.Gemma3TextConfig(**_COMMON, **_SLIDING, tie_word_embeddings=False),
        "gemma2": lambda: t.Gemma2Config(**_COMMON, **_SLIDING, tie_word_embeddings=False),
        "gpt_oss": lambda: t.GptOssConfig(**_COMMON, **_SLIDING, num_local_experts=4, num_experts_per_tok=2),
        "gpt2": lambda: t.GPT2Config(
            vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=96, initializer_range=0.4, eos_token_id=None
        ),
        # Value heads are narrower than key heads.
        "deepseek_v3": lambda: t.DeepseekV3Config(
            **{**_COMMON, "num_key_value_heads": 4, "head_dim": 4},
            q_lora_rank=None,
            kv_lora_rank=16,
            qk_rope_head_dim=4,
            qk_nope_head_dim=8,
            v_head_dim=6,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
        ),
        "bloom": lambda: t.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4),
        "falcon": lambda: t.FalconConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
        "stablelm": lambda: t.StableLmConfig(**{k: v for k, v in _COMMON.items() if k != "head_dim"}),
        "mamba": lambda: t.MambaConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, state_size=4),
        "rwkv": lambda: t.RwkvConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, attention_hidden_size=32),
        "lfm2": lambda: t.Lfm2Config(
            **{k: v for k, v in _COMMON.items() if k != "head_dim"}, layer_types=["conv", "full_attention", "conv"]
        ),
        "t5": lambda: t.T5Config(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4),
    }


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The folder of a random model, made at its first use."""
    folders: dict[str, str] = {}

    def folder(name: str) -> str:
        if name not in folders:
            torch.manual_seed(sum(map(ord, name)))
            config = _configs()[name]()
            auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
            folders[name] = str(tmp_path_factory.mktemp(name))
            auto.from_config(config).save_pretrained(folders[name])
        return folders[name]

    return folder


@pytest.fixture(scope="session")
def reference(model_folder: Callable[[str], str]) -> Callable[[str], transformers.PreTrainedModel]:
    """The same model as transformers runs it."""
    models: dict[str, transformers.PreTrainedModel] = {}

    def load(name: str) -> transformers.PreTrainedModel:
        if name not in models:
            auto = transformers.AutoModelForCausalLM
            models[name] = auto.from_pretrained(model_folder(name), dtype=torch.float32).eval()
        return models[name]

    return load


@pytest.fixture(scope="session")
def make_engine(model_folder: Callable[[str], str]) -> Callable[..., Engine]:
    """An engine on a random model; the tokenizer is the embedded model's."""

    def make(name: str = "llama", **args: object) -> Engine:
        defaults = {"block_size": 4, "num_kv_blocks": 256, "max_num_seqs": 8, "seed": 0}
        return Engine(EngineArgs(model=model_folder(name), tokenizer="tiny", **(defaults | args)))

    return make
