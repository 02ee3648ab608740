"""What both sides are asked to do, the models that do it, and drawlot's engine with its requests."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

TEMPERATURE, TOP_K, TOP_P = 0.8, 50, 0.9
LLAMA_1B = {
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}
SMALL = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.4,
}
NO_SPECIAL_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}


@dataclass(frozen=True)
class Work:
    """What both sides are asked to do."""

    prompts: list[list[int]]
    new_tokens: int
    dtype: str
    device: str
    repeats: int

    @property
    def generated(self) -> int:
        """Tokens drawn in one run."""
        return len(self.prompts) * self.new_tokens

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))

    def speeds(self, seconds: float, first_tokens_at: float) -> dict[str, float]:
        """Tokens a second of a run, prompts included, and from the first token of every request on."""
        decoded = self.generated - len(self.prompts)
        return {"tokens_per_s": self.generated / seconds, "decode_tokens_per_s": decoded / (seconds - first_tokens_at)}


def make_model(folder: Path, shape: dict[str, Any], dtype: str, device: str) -> None:
    """Write a random Llama."""
    import transformers

    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.LlamaConfig(**shape, **NO_SPECIAL_TOKENS), dtype=getattr(torch, dtype)
        )
    model.save_pretrained(folder)


def make_engine(folder: Path, work: Work, *, enforce_eager: bool = False) -> Any:
    """An engine with room for all requests, whose prompts fit into one step."""
    from drawlot.engine.args import EngineArgs
    from drawlot.engine.engine import Engine

    longest = max(map(len, work.prompts)) + work.new_tokens
    engine = Engine(
        EngineArgs(
            model=str(folder),
            tokenizer="tiny",
            dtype=work.dtype,
            device=work.device,
            max_num_seqs=len(work.prompts),
            max_num_batched_tokens=max(2048, work.prompt_tokens),
            max_model_len=longest,
            enable_prefix_caching=False,
            enforce_eager=enforce_eager,
        )
    )
    if work.device == "cpu" and not enforce_eager:
        from drawlot.engine.decode import Decoder

        # What a GPU would run, without graphs and with interpreted kernels.
        runner = engine._runner
        runner.decoder = Decoder(runner.model, engine.config, runner.target.pools, runner.sampler, capture=False)
    return engine


def start(engine: Any, work: Work) -> None:
    """Queue all requests."""
    from drawlot import SamplingParams

    for index, prompt in enumerate(work.prompts):
        params = SamplingParams(
            temperature=TEMPERATURE,
            top_k=TOP_K,
            top_p=TOP_P,
            seed=index,
            logprobs=0,
            max_tokens=work.new_tokens,
            ignore_eos=True,
            detokenize=False,
        )
        engine.add_request(str(index), prompt, params)


def run_engine(engine: Any, work: Work) -> dict[str, Any]:
    """Run all requests; the host's milliseconds of a mean decode step are `launch`, `wait` and `bookkeeping`."""
    begin = time.perf_counter()
    start(engine, work)
    engine.step()
    first, before = time.perf_counter() - begin, asdict(engine.stats)
    while engine.has_unfinished_requests():
        engine.step()
    seconds, after = time.perf_counter() - begin, asdict(engine.stats)
    steps = work.new_tokens - 1
    parts = {"launch": "forward", "wait": "sampling", "bookkeeping": "bookkeeping"}
    host = {name: 1000 * (after[f"{key}_seconds"] - before[f"{key}_seconds"]) / steps for name, key in parts.items()}
    return work.speeds(seconds, first) | {"step_ms": 1000 * (seconds - first) / steps, "host_ms": host}
