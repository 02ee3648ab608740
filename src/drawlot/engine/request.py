"""A request and its choices: what is asked, and how far each choice has come."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from drawlot.engine.detokenizer import Detokenizer
from drawlot.engine.outputs import (
    CompletionOutput,
    FinishReason,
    LogprobsAtPosition,
    RequestMetrics,
    RequestOutput,
)
from drawlot.params import SamplingParams


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """What was asked, checked and complete. `params` has a seed, and its stop ids include the end-of-text ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    """No more than the model's context leaves"""
    stop_token_ids: frozenset[int] = frozenset()
    """End-of-text ids included, unless ignored"""
    eos_token_ids: frozenset[int] = frozenset()
    """Those of `stop_token_ids` that are no `stop_reason`"""
    bad_words_token_ids: Sequence[Sequence[int]] = ()
    label_token_ids: Sequence[int] = ()
    """Of a scoring request: nothing is drawn"""
    label_logprobs: list[float] | None = None
    max_drafts: int = 0
    """Drafts of a step, at most; 0: the request does without"""
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    prompt_logprobs: list[LogprobsAtPosition | None] = field(default_factory=list)
    choices: list["Choice"] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        """No choice goes on."""
        return all(choice.finish_reason is not None for choice in self.choices)

    @property
    def needs_prompt_logprobs(self) -> bool:
        """Some rows of the prompt are still to be read."""
        return self.params.prompt_logprobs is not None and len(self.prompt_logprobs) < len(self.prompt_token_ids)

    def output(self) -> RequestOutput:
        """The request as its user sees it now."""
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=self.prompt_token_ids,
            prompt_logprobs=None
            if self.params.prompt_logprobs is None or self.needs_prompt_logprobs
            else self.prompt_logprobs,
            outputs=[choice.output() for choice in self.choices],
            finished=self.finished,
            label_logprobs=self.label_logprobs,
            metrics=self.metrics,
        )


@dataclass(eq=False, slots=True, kw_only=True)
class Choice:
    """One of a request's `n` choices: the unit that is scheduled, owns cache blocks and draws tokens."""

    request: Request
    index: int
    token_ids: list[int]
    """Prompt, then output"""
    detokenizer: Detokenizer | None
    """None where the request does not detokenize"""
    row: int = -1
    """Its row in the tables of cache and sampler while it runs"""
    blocks: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed: int = 0
    """Tokens whose keys and values are in the cache, or will be after the steps that are under way"""
    num_cached: int = 0
    """Tokens, of those, in blocks that the prefix cache knows"""
    logprobs: list[LogprobsAtPosition] = field(default_factory=list)
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def num_output(self) -> int:
        """Tokens drawn."""
        return len(self.token_ids) - len(self.request.prompt_token_ids)

    @property
    def num_drafts(self) -> int:
        """Drafts that its next step wants: at most all tokens but one that it may still draw.

        None before the first token, so that this one does not depend on how its prompt was cut into chunks.
        """
        return min(self.request.max_drafts, self.request.max_tokens - self.num_output - 1) if self.num_output else 0

    @property
    def awaits_token(self) -> bool:
        """A step that is under way draws its next token."""
        return self.num_computed == len(self.token_ids)

    @property
    def reads_prompt_logprobs(self) -> bool:
        """The next chunk of this choice is to give logprobs of the prompt; the first choice does it for all."""
        return self.index == 0 and self.request.needs_prompt_logprobs

    def finish(self, reason: FinishReason, stop_reason: int | str | None = None) -> None:
        """Draw no more."""
        self.finish_reason = reason
        self.stop_reason = stop_reason
        if self.detokenizer is not None:
            self.detokenizer.finish()

    def output(self) -> CompletionOutput:
        """The choice as its user sees it now."""
        return CompletionOutput(
            index=self.index,
            text="" if self.detokenizer is None else self.detokenizer.visible_text,
            token_ids=self.token_ids[len(self.request.prompt_token_ids) :],
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.request.params.num_logprobs is None else self.logprobs.copy(),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )
