"""transformers' own generation, alone and assisted: one prompt at a time, which is all that assistance can do."""

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any, NamedTuple

import torch

from drawlot.assets import resolve
from drawlot.engine.config import resolve_device


class Rival(NamedTuple):
    """A way to generate with transformers."""

    name: str
    temperature: float
    num_drafts: int
    """0: without assistance"""
    assistance: str
    """prompt lookup, draft model, or nothing"""

    def loaded(self, device: str) -> "Generation":
        """Ready to run; device as for an engine."""
        return Generation(self, resolve_device(device))


def all_rivals(temperatures: Iterable[float], counts: Iterable[int]) -> Iterator[Rival]:
    """Every temperature alone, and with every assistance."""
    counts = list(counts)
    for temperature in temperatures:
        yield Rival("transformers", temperature, 0, "")
        for assistance in ("prompt lookup", "draft model"):
            for count in counts:
                yield Rival(f"transformers {assistance}", temperature, count, assistance)


class Generation:
    """A model of transformers in float32, and how it is asked to generate."""

    def __init__(self, rival: Rival, device: torch.device) -> None:
        # The annotations of transformers are not complete enough for mypy.
        transformers: Any = import_module("transformers")
        auto = transformers.AutoModelForCausalLM
        self._model = auto.from_pretrained(resolve("tiny"), dtype=torch.float32).to(device).eval()
        self._model.register_forward_hook(self._count)
        self.emitted = self.forwards = 0
        count = rival.num_drafts
        self._options: dict[str, Any] = {"do_sample": rival.temperature > 0, "eos_token_id": None, "pad_token_id": 0}
        if rival.temperature > 0:
            self._options |= {"temperature": rival.temperature, "top_k": 0, "top_p": 1.0}
        if rival.assistance == "prompt lookup":
            self._options |= {"prompt_lookup_num_tokens": count, "max_matching_ngram_size": 4}
        if rival.assistance == "draft model":
            drafter = auto.from_pretrained(resolve("tiny-draft"), dtype=torch.float32).to(device).eval()
            drafter.generation_config.update(
                num_assistant_tokens=count,
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
                eos_token_id=None,
            )
            self._options["assistant_model"] = drafter

    def generate(self, prompt: list[int], new_tokens: int) -> list[int]:
        """What follows the prompt."""
        ids = torch.tensor([prompt], device=self._model.device)
        with torch.inference_mode():
            out = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, **self._options
            )
        tokens: list[int] = out[0, len(prompt) :].tolist()
        self.emitted += len(tokens)
        return tokens

    def _count(self, *_: object) -> None:
        self.forwards += 1
