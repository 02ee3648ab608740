"""`EngineArgs`: what a user may set for an engine, defined once.

The options of the command line, their environment variables and `docs/cli.md` are derived from these fields.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from drawlot.engine.fields import argument, check_name, checked
from drawlot.engine.speculative_config import SpeculativeConfig
from drawlot.errors import ParameterError
from drawlot.params import INT64_MIN

DTYPES = ("auto", "float32", "bfloat16", "float16")
LOGPROBS_MODES = ("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits")
SAMPLER_BACKENDS = ("auto", "reference", "torch", "triton", "flashinfer")
DEVICE = re.compile(r"auto|[a-z]+(:\d+)?")


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineArgs:
    """How to build an engine.

    The environment is read by the command line alone (`DRAWLOT_MAX_NUM_SEQS` and so on, see `environment_variable`);
    in Python, what is not given has its default.

    Raises:
        ParameterError: A value breaks its rule; the message names the field, the rule and the value.
        TypeError: An argument that is not listed here; `from_kwargs` names the nearest one instead.
    """

    model: str = argument(
        "tiny", help="An embedded model (tiny, tiny-draft), a folder or a name on the Hugging Face hub."
    )
    tokenizer: str | None = argument(None, help="Folder or name of the tokenizer; the model's own if not set.")
    dtype: str = argument("auto", help="Type of weights and activations; auto is float32 on a CPU.", choices=DTYPES)
    device: str = argument("auto", help="Where to run: auto, cpu, cuda or cuda:N.")
    seed: int | None = argument(
        None,
        help="Source of the seeds of requests that bring none; fresh entropy if not set.",
        low=INT64_MIN,
    )
    max_num_seqs: int = argument(64, help="Sequences that run at the same time, at most.")
    max_num_batched_tokens: int = argument(
        2048, help="Tokens in one step, at most; longer prompts are cut into chunks."
    )
    max_model_len: int | None = argument(None, help="Longest prompt + output in tokens; the model's limit if not set.")
    block_size: int = argument(16, help="Tokens in one block of the KV cache.")
    num_kv_blocks: int | None = argument(None, help="Blocks of the KV cache; chosen by the engine if not set.")
    enable_prefix_caching: bool = argument(True, help="Compute a prefix that prompts share only once.")
    enforce_eager: bool = argument(False, help="On a GPU, decode in plain torch instead of by CUDA graph.")
    logprobs_mode: str = argument("raw_logprobs", help="What the returned logprobs are.", choices=LOGPROBS_MODES)
    max_logprobs: int = argument(20, help="Logprobs that a request may ask for, at most; -1 is any number.", low=-1)
    use_fp64_gumbel: bool = argument(False, help="Compute the noise of the draws in float64.")
    sampler_backend: str = argument("auto", help="Which kernels sample.", choices=SAMPLER_BACKENDS)
    speculative_config: SpeculativeConfig | None = argument(  # noqa: RUF009
        None,
        help='Draft tokens and verify them: {"method": "ngram"} and so on, see docs/speculative_decoding.md.',
    )

    def __post_init__(self) -> None:
        if self.speculative_config is not None:
            object.__setattr__(self, "speculative_config", SpeculativeConfig.of(self.speculative_config))
        for each in fields(self):
            if each.name != "speculative_config":
                object.__setattr__(self, each.name, checked(each, getattr(self, each.name)))
        if not DEVICE.fullmatch(self.device):
            raise ParameterError("device", "must be auto, cpu, cuda or cuda:N", self.device)

    @classmethod
    def from_kwargs(cls, kwargs: Mapping[str, object]) -> Self:
        """Build from keyword arguments.

        Raises:
            ParameterError: A value breaks its rule, or a name is unknown; the message offers the nearest field.
        """
        names = [each.name for each in fields(cls)]
        for name, value in kwargs.items():
            check_name(name, names, "an engine argument", value)
        return cls(**kwargs)  # type: ignore[arg-type]


def environment_variable(name: str) -> str:
    """The variable that sets a field, or an option, on the command line."""
    return f"DRAWLOT_{name.upper()}"
