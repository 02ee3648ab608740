"""What the engine returns for a request; field names as in vLLM."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from drawlot.engine.metrics import SpeculativeMetrics

FinishReason = Literal["stop", "length", "abort", "error"]


class Logprob(NamedTuple):
    """One token's logprob at one position."""

    logprob: float
    rank: int | None
    """1 is the best token; None for a token of `logprob_token_ids` that was not drawn"""
    decoded_token: str | None
    """None where the request does not detokenize"""


LogprobsAtPosition = dict[int, Logprob]
"""Token id to logprob: first the drawn token (of a prompt: the token that stands there), then the others."""


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One choice, from its first token to now."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    """Sum of the drawn tokens' logprobs; None where the request or `logprobs_mode` asks for none"""
    logprobs: list[LogprobsAtPosition] | None
    finish_reason: FinishReason | None = None
    """None while it grows. The engine itself never reports "abort": an aborted request has no further output."""
    stop_reason: int | str | None = None
    """The stop token id or stop string that ended it (None for an end-of-text token), or what the error was"""


@dataclass(slots=True, kw_only=True)
class RequestMetrics:
    """What the engine measured of a request."""

    speculative_decoding: SpeculativeMetrics | None = None
    """None where the request does not draft"""


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request, from its prompt to now."""

    request_id: str
    prompt: str | None
    """None if the prompt came as token ids"""
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsAtPosition | None] | None
    """One entry a prompt token, the first None; None until the whole prompt is read, or if not asked for"""
    outputs: list[CompletionOutput]
    finished: bool
    label_logprobs: list[float] | None = None
    """Of a scoring request: the labels' logprobs over the whole vocabulary right after the prompt, in their order"""
    metrics: RequestMetrics | None = None
    """What was measured until now; it goes on counting"""
