"""What a user may set for one request: `SamplingParams`, checked once."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real

from drawlot.errors import ParameterError

MAX_CHOICES = 128
MAX_LOGIT_BIAS = 1024
MAX_LOGPROB_TOKEN_IDS = 128
MAX_STOP_STRINGS = 16
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """How to draw the tokens of one request. Defaults, ranges and rules: `docs/semantics.md`, section 6.

    Attributes:
        n: Choices to draw for the prompt, 1..128; greedy requests have one.
        temperature: 0 is greedy (the first token in the order of logits); every positive value is honoured.
        top_p: Keep the smallest set of best tokens that holds this share of the mass, (0, 1]; 1 is off.
        top_k: Keep the k best tokens; 0 and -1 are off.
        min_p: Keep tokens at least this share as probable as the best one, [0, 1]; 0 is off.
        seed: A 64-bit signed seed; the same seed draws the same tokens. None: fresh random bits.
        presence_penalty: Subtracted from the logit of every token already in the output, [-2, 2].
        frequency_penalty: Subtracted once for each time a token is in the output, [-2, 2].
        repetition_penalty: Divides positive and multiplies negative logits of tokens in prompt or output, > 0.
        logit_bias: Token id to a value in [-100, 100] that is added to its logit; at most 1,024 entries.
        allowed_token_ids: The only token ids that may be drawn.
        bad_words: Texts that must not appear in the output (resolved by the engine, refused by the bare sampler).
        min_tokens: No stop token is drawn before this many tokens are.
        max_tokens: Tokens to draw at most; 0 only with `prompt_logprobs`.
        stop: Texts that end the output and are cut from it; at most 16.
        stop_token_ids: Token ids that end the output.
        ignore_eos: Go on after an end-of-text token.
        logprobs: Also return the logprobs of this many best tokens; 0: of the drawn token alone; -1: of all.
        prompt_logprobs: The same for the tokens of the prompt.
        logprob_token_ids: Return the logprobs of exactly these ids, in this order; at most 128, distinct.
        detokenize: Turn the tokens into text.
        skip_special_tokens: Leave special tokens out of that text.

    Raises:
        ParameterError: A value breaks its rule; the message names the field, the rule and the value.
        TypeError: An argument that is not listed here.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    max_tokens: int = 16
    stop: Sequence[str] | str = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        self._number("temperature", lambda v: v >= 0, "must be finite and >= 0")
        self._number("top_p", lambda v: 0 < v <= 1, "must be in (0, 1]")
        self._number("min_p", lambda v: 0 <= v <= 1, "must be in [0, 1]")
        self._number("presence_penalty", lambda v: -2 <= v <= 2, "must be in [-2, 2]")
        self._number("frequency_penalty", lambda v: -2 <= v <= 2, "must be in [-2, 2]")
        self._number("repetition_penalty", lambda v: v > 0, "must be finite and > 0")
        self._integer("n", 1, MAX_CHOICES)
        self._integer("top_k", -1, INT64_MAX)
        self._integer("min_tokens", 0, INT64_MAX)
        self._integer("max_tokens", 0, INT64_MAX)
        if self.seed is not None:
            self._integer("seed", INT64_MIN, INT64_MAX)
        for field in ("logprobs", "prompt_logprobs"):
            if getattr(self, field) is not None:
                self._integer(field, -1, INT64_MAX)
        for field in ("ignore_eos", "detokenize", "skip_special_tokens"):
            if not isinstance(getattr(self, field), bool):
                raise ParameterError(field, "must be True or False", getattr(self, field))
        self._texts("bad_words", None)
        self._texts("stop", MAX_STOP_STRINGS)
        self._token_ids("stop_token_ids", None)
        if self.allowed_token_ids is not None:
            self._token_ids("allowed_token_ids", None)
            if not self.allowed_token_ids:
                raise ParameterError("allowed_token_ids", "must not be empty", self.allowed_token_ids)
        if self.logprob_token_ids is not None:
            self._token_ids("logprob_token_ids", MAX_LOGPROB_TOKEN_IDS)
            self._check_logprob_token_ids(self.logprob_token_ids)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        self._check_together()

    @property
    def is_greedy(self) -> bool:
        """Temperature 0: no noise, no filters."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Some penalty changes logits of tokens seen before."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0 or self.repetition_penalty != 1

    @property
    def num_logprobs(self) -> int | None:
        """Logprob columns beside the drawn token's: `logprobs`, else the length of `logprob_token_ids`, else None."""
        if self.logprobs is None and self.logprob_token_ids is not None:
            return len(self.logprob_token_ids)
        return self.logprobs

    def check_vocab(self, vocab_size: int) -> None:
        """Check every token id against the width of the logits.

        Raises:
            ParameterError: An id is not in [0, vocab_size).
        """
        for field in ("logit_bias", "allowed_token_ids", "stop_token_ids", "logprob_token_ids"):
            for token_id in getattr(self, field) or ():
                if not 0 <= token_id < vocab_size:
                    raise ParameterError(field, f"token ids must be in [0, {vocab_size})", token_id)

    def check_max_logprobs(self, max_logprobs: int) -> None:
        """Check the logprob counts against an engine's limit; -1 allows any.

        Raises:
            ParameterError: `logprobs` or `prompt_logprobs` is above the limit, or -1 where the limit is not.
        """
        for field in ("logprobs", "prompt_logprobs"):
            count = getattr(self, field)
            if count is None or max_logprobs == -1:
                continue
            if field == "logprobs" and self.logprob_token_ids is not None:
                continue  # bounded by MAX_LOGPROB_TOKEN_IDS instead
            if count == -1 or count > max_logprobs:
                raise ParameterError(field, f"must be in [0, {max_logprobs}] (the engine's max_logprobs)", count)

    def _number(self, field: str, valid: Callable[[float], bool], rule: str) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, Real):
            raise ParameterError(field, "must be a number", value)
        number = _as_float(value)
        if not math.isfinite(number) or not valid(number):
            raise ParameterError(field, rule, value)
        object.__setattr__(self, field, number)

    def _integer(self, field: str, low: int, high: int) -> None:
        value = getattr(self, field)
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise ParameterError(field, "must be an integer", value)
        value = int(value)
        if not low <= value <= high:
            limit = "int64" if high == INT64_MAX and low == INT64_MIN else f"in [{low}, {high}]"
            raise ParameterError(field, f"must be {f'>= {low}' if high == INT64_MAX and low > -2 else limit}", value)
        object.__setattr__(self, field, value)

    def _texts(self, field: str, most: int | None) -> None:
        value = getattr(self, field)
        texts = (value,) if isinstance(value, str) else value
        if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
            raise ParameterError(field, "must be a string or a list of strings", value)
        texts = tuple(texts)
        if most is not None and len(texts) > most:
            raise ParameterError(field, f"must hold at most {most} strings", len(texts))
        for text in texts:
            if not isinstance(text, str) or not text:
                raise ParameterError(field, "must hold non-empty strings", text)
        object.__setattr__(self, field, texts)

    def _token_ids(self, field: str, most: int | None) -> None:
        value = getattr(self, field)
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
            raise ParameterError(field, "must be a list of token ids", value)
        ids = tuple(value)
        if most is not None and len(ids) > most:
            raise ParameterError(field, f"must hold at most {most} token ids", len(ids))
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, Integral) or token_id < 0:
                raise ParameterError(field, "must hold token ids (integers >= 0)", token_id)
        object.__setattr__(self, field, tuple(int(i) for i in ids))

    def _check_logprob_token_ids(self, ids: Sequence[int]) -> None:
        if not ids:
            raise ParameterError("logprob_token_ids", "must not be empty", ids)
        if len(set(ids)) != len(ids):
            raise ParameterError("logprob_token_ids", "must be distinct", ids)
        if self.logprobs is not None and self.logprobs != len(ids):
            rule = f"must equal the number of logprob_token_ids ({len(ids)}) where both are set"
            raise ParameterError("logprobs", rule, self.logprobs)

    def _check_together(self) -> None:
        if self.is_greedy and self.n != 1:
            raise ParameterError("n", "must be 1 when temperature is 0 (all choices would be equal)", self.n)
        if self.min_tokens > self.max_tokens:
            raise ParameterError("min_tokens", f"must be at most max_tokens ({self.max_tokens})", self.min_tokens)
        if self.max_tokens == 0 and self.prompt_logprobs is None:
            raise ParameterError("max_tokens", "must be >= 1 (0 only with prompt_logprobs)", self.max_tokens)


class Bias(Mapping[int, float]):
    """A checked `logit_bias`: equal to the dict it was made from, but it cannot change."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[int, float]) -> None:
        self._entries = dict(entries)

    def __getitem__(self, token_id: int) -> float:
        return self._entries[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __hash__(self) -> int:
        return hash(frozenset(self._entries.items()))

    def __repr__(self) -> str:
        return repr(self._entries)


def _as_float(value: Real) -> float:
    """The value as a float, infinite if it is an integer too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _checked_bias(bias: object) -> Bias:
    if not isinstance(bias, Mapping):
        raise ParameterError("logit_bias", "must map token ids to numbers", bias)
    if len(bias) > MAX_LOGIT_BIAS:
        raise ParameterError("logit_bias", f"must hold at most {MAX_LOGIT_BIAS} entries", len(bias))
    for token_id, value in bias.items():
        if isinstance(token_id, bool) or not isinstance(token_id, Integral) or token_id < 0:
            raise ParameterError("logit_bias", "keys must be token ids (integers >= 0)", token_id)
        if isinstance(value, bool) or not isinstance(value, Real) or not -100 <= _as_float(value) <= 100:
            raise ParameterError("logit_bias", f"values must be in [-100, 100] (token id {token_id})", value)
    return Bias({int(token_id): float(value) for token_id, value in bias.items()})
