"""Checks a request once and completes it; nothing below admission raises for what a request contains."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from drawlot.engine.config import EngineConfig, ModelLimits
from drawlot.engine.detokenizer import Detokenizer
from drawlot.engine.metrics import SpeculativeMetrics
from drawlot.engine.outputs import RequestMetrics
from drawlot.engine.request import Choice, Request
from drawlot.engine.tokenizer import TokenDecoder
from drawlot.errors import ParameterError
from drawlot.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams


class Admission:
    """Turns what callers pass into requests."""

    def __init__(
        self, config: EngineConfig, limits: ModelLimits, tokenizer: Any, decoder: TokenDecoder, seed: int | None
    ) -> None:
        self.config = config
        self.limits = limits
        self.tokenizer = tokenizer
        self.decoder = decoder
        # Random takes the absolute value of an int, so that -1 and 1 would share a stream.
        self._seeds = random.SystemRandom() if seed is None else random.Random(seed % 2**64)

    def request(
        self, request_id: str, prompt: str | Sequence[int], params: SamplingParams, use_speculation: bool = True
    ) -> Request:
        """A request to draw.

        Raises:
            ParameterError: The prompt or a parameter does not fit the model or the engine.
        """
        token_ids = self._tokenize(prompt) if isinstance(prompt, str) else self._token_ids("prompt", prompt)
        params.check_vocab(self.limits.vocab_size)
        params.check_max_logprobs(self.config.max_logprobs)
        if params.stop and not params.detokenize:
            raise ParameterError("stop", "needs detokenize", params.stop)
        draws = params.max_tokens > 0
        self._check_length(token_ids, self.config.max_model_len - draws)
        max_tokens = min(params.max_tokens, self.config.max_model_len - len(token_ids))
        self._check_blocks(len(token_ids) + max(0, max_tokens - 1))
        eos_token_ids = frozenset() if params.ignore_eos else self.limits.eos_token_ids
        stop_token_ids = eos_token_ids.union(params.stop_token_ids)
        max_drafts = self._max_drafts(use_speculation)
        request = Request(
            request_id=request_id,
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=token_ids,
            params=replace(
                params,
                seed=self._seeds.getrandbits(64) - 2**63 if params.seed is None else params.seed,
                stop_token_ids=sorted(stop_token_ids),
            ),
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            eos_token_ids=eos_token_ids,
            bad_words_token_ids=self._bad_words(params.bad_words),
            max_drafts=max_drafts,
            metrics=RequestMetrics(speculative_decoding=SpeculativeMetrics() if max_drafts else None),
            prompt_logprobs=[] if params.prompt_logprobs is None else [None],
        )
        self._add_choices(request, params.n)
        return request

    def scoring_request(
        self, request_id: str, prompt_token_ids: Sequence[int], label_token_ids: Sequence[int]
    ) -> Request:
        """A request that draws nothing.

        Raises:
            ParameterError: The prompt does not fit, there are no labels or too many, or verification is synthetic.
        """
        speculative = self.config.speculative
        if speculative is not None and speculative.rejection_sample_method == "synthetic":
            rule = "synthetic, which is for benchmarks, gives no scores"
            raise ParameterError("speculative_config.rejection_sample_method", rule, "synthetic")
        token_ids = self._token_ids("prompt", prompt_token_ids)
        labels = self._token_ids("label_token_ids", label_token_ids)
        if not 1 <= len(labels) <= MAX_LOGPROB_TOKEN_IDS:
            rule = f"must hold 1 to {MAX_LOGPROB_TOKEN_IDS} token ids"
            raise ParameterError("label_token_ids", rule, f"{len(labels)} ids")
        self._check_length(token_ids, self.config.max_model_len)
        self._check_blocks(len(token_ids))
        request = Request(
            request_id=request_id,
            prompt=None,
            prompt_token_ids=token_ids,
            params=SamplingParams(seed=0, detokenize=False),
            max_tokens=0,
            label_token_ids=labels,
        )
        self._add_choices(request, 1)
        return request

    def _max_drafts(self, use_speculation: bool) -> int:
        if not isinstance(use_speculation, bool):
            raise ParameterError("use_speculation", "must be True or False", use_speculation)
        speculative = self.config.speculative
        return speculative.num_speculative_tokens if speculative is not None and use_speculation else 0

    def _add_choices(self, request: Request, count: int) -> None:
        params, prompt = request.params, request.prompt_token_ids
        decode = self.decoder.decode if params.skip_special_tokens else self.decoder.decode_with_special_tokens
        request.choices = [
            Choice(
                request=request,
                index=index,
                token_ids=list(prompt),
                detokenizer=Detokenizer(decode, prompt, params.stop) if params.detokenize else None,
            )
            for index in range(count)
        ]

    def _tokenize(self, prompt: str) -> list[int]:
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise ParameterError("prompt", "must be valid Unicode", prompt) from None
        ids: list[int] = self.tokenizer.encode(prompt, verbose=False)
        return self._token_ids("prompt", ids)

    def _token_ids(self, field: str, ids: Iterable[int]) -> list[int]:
        vocab_size = self.limits.vocab_size
        checked: list[int] = []
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, Integral) or not 0 <= token_id < vocab_size:
                raise ParameterError(field, f"must hold token ids in [0, {vocab_size})", token_id)
            checked.append(int(token_id))
        return checked

    def _check_length(self, prompt_token_ids: list[int], longest: int) -> None:
        if not 1 <= len(prompt_token_ids) <= longest:
            rule = f"must have 1 to {longest} tokens (max_model_len is {self.config.max_model_len})"
            raise ParameterError("prompt", rule, f"{len(prompt_token_ids)} tokens")

    def _check_blocks(self, num_tokens: int) -> None:
        most = self.config.num_kv_blocks * self.config.block_size
        if num_tokens > most:
            rule = f"with the output, must fit in the KV cache of {most} tokens (num_kv_blocks)"
            raise ParameterError("prompt", rule, f"{num_tokens} tokens")

    def _bad_words(self, words: Sequence[str]) -> list[list[int]]:
        """A word is another token at the beginning of a text than after a space: both are bad."""
        found = {}
        for word in words:
            for text in (word, " " + word.lstrip()):
                ids = self.tokenizer.encode(text, add_special_tokens=False)
                if ids:
                    found[tuple(ids)] = list(ids)
        return list(found.values())
