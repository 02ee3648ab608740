"""`LLM`: the offline class. Prompts in, completions or scores out, in the order of the prompts."""

import itertools
from collections.abc import Callable, Generator, Sequence
from functools import partial

from tqdm.auto import tqdm

from drawlot.engine.args import EngineArgs
from drawlot.engine.engine import Engine
from drawlot.engine.outputs import RequestOutput
from drawlot.entrypoints.chat import Conversation, conversations, render
from drawlot.entrypoints.prompts import Prompt, as_params, as_prompts, as_switches, as_token_ids
from drawlot.entrypoints.scoring import ScoreOutput, check_labels, label_probabilities
from drawlot.errors import InputError, ModelError, ParameterError
from drawlot.params import SamplingParams

AddRequest = Callable[[str], None]
"""Admits one request under the id that it is given."""


class LLM:
    """A model with an engine around it.

    Args:
        model: An embedded model (`tiny`, `tiny-draft`), a folder or a name on the Hugging Face hub; None is `tiny`.
        engine_args: The other fields of `EngineArgs`.

    Raises:
        ParameterError: An argument is unknown or breaks its rule.
        ModelError: The model cannot be loaded or is not supported.
        BackendError: The sampler backend that was asked for cannot run here.
    """

    def __init__(self, model: str | None = None, **engine_args: object) -> None:
        given = engine_args if model is None else {"model": model, **engine_args}
        self.engine = Engine(EngineArgs.from_kwargs(given))
        self._request_ids = map(str, itertools.count())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        use_speculation: bool | Sequence[bool] = True,
    ) -> list[RequestOutput]:
        """Draw completions.

        Args:
            prompts: A text, a list of token ids, or a list of such prompts.
            sampling_params: One for all prompts, or one for each; None draws with the defaults.
            use_tqdm: Show the progress on stderr, if it is a terminal.
            use_speculation: Draft, if the engine has a `speculative_config`; one for all prompts, or one for each.

        Returns:
            One output for each prompt, in their order.

        Raises:
            ParameterError: A prompt or a parameter is invalid; nothing has been computed then.
        """
        return self._finish(self._draws(prompts, sampling_params, use_speculation), use_tqdm)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_speculation: bool | Sequence[bool] = True,
    ) -> Generator[tuple[int, RequestOutput]]:
        """Draw completions and yield (index of the prompt, output so far) whenever one has grown.

        The last output of a prompt is `finished`. All requests are admitted, or refused as in `generate`, at the first
        `next`; leaving the iteration early aborts what is unfinished.

        Raises:
            InputError: Another stream of this `LLM` is unfinished.
        """
        return self._run(self._draws(prompts, sampling_params, use_speculation))

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        use_speculation: bool | Sequence[bool] = True,
    ) -> list[RequestOutput]:
        """Draw the assistant's next message.

        Args:
            messages: One conversation, a list of `{"role": ..., "content": ...}`, or a list of conversations.
            sampling_params: As for `generate`.
            use_tqdm: As for `generate`.
            use_speculation: As for `generate`.

        Raises:
            ParameterError: A message or a parameter is invalid.
            ModelError: The model has no chat template.
        """
        return self.generate(self.chat_prompts(messages), sampling_params, use_tqdm, use_speculation)

    def chat_prompts(self, messages: Conversation | Sequence[Conversation]) -> list[list[int]]:
        """The token ids that the chat template makes of each conversation; errors as in `chat`."""
        return [render(self.engine.tokenizer, conversation) for conversation in conversations(messages)]

    def score(
        self,
        query: Prompt,
        items: Sequence[Prompt],
        label_token_ids: Sequence[int],
        apply_softmax: bool = True,
        item_first: bool = False,
    ) -> list[ScoreOutput]:
        """How probable each label token is right after the query and an item. Nothing is drawn.

        Args:
            query: Text (with the special tokens that the tokenizer adds) or token ids.
            items: Texts (without special tokens) or lists of token ids, each joined to the query's tokens.
            label_token_ids: The labels, at most 128.
            apply_softmax: Probabilities among the labels; otherwise in the whole vocabulary.
            item_first: Put the item before the query.

        Returns:
            One `ScoreOutput` for each item, with the probability of every label.

        Raises:
            ParameterError: No items, a bad label, a prompt that does not fit, or an engine with synthetic verification.
            ModelError: The model's logits after an item are not finite.
        """
        labels = check_labels(label_token_ids, self.engine.vocab_size)
        if isinstance(items, str) or not items:
            raise ParameterError("items", "must be a list that is not empty", items)
        query_ids = self._token_ids(query, special_tokens=True)
        item_ids = [self._token_ids(item, special_tokens=False) for item in items]
        prompts = [ids + query_ids if item_first else query_ids + ids for ids in item_ids]
        adds = [partial(self._add_scoring, ids, labels) for ids in prompts]
        if len(items) > 1 and query_ids and not item_first:
            # With the query computed first, its full blocks are in the prefix cache when the items arrive.
            self._finish([partial(self._add_scoring, query_ids, labels)], use_tqdm=False)
        outputs = self._finish(adds, use_tqdm=False)
        scored = []
        for index, output in enumerate(outputs):
            if output.label_logprobs is None:
                raise ModelError(f"items[{index}]: the model's logits are not finite")
            scores = label_probabilities(output.label_logprobs, apply_softmax)
            scored.append(ScoreOutput(scores=scores, label_token_ids=labels, prompt_token_ids=output.prompt_token_ids))
        return scored

    def _draws(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_speculation: bool | Sequence[bool],
    ) -> list[AddRequest]:
        listed = as_prompts(prompts)
        params = as_params(sampling_params, len(listed))
        drafting = as_switches(use_speculation, len(listed))
        return [partial(self._add_draw, *each) for each in zip(listed, params, drafting)]

    def _add_draw(self, prompt: Prompt, params: SamplingParams, use_speculation: bool, request_id: str) -> None:
        self.engine.add_request(request_id, prompt, params, use_speculation)

    def _add_scoring(self, prompt_token_ids: list[int], labels: list[int], request_id: str) -> None:
        self.engine.add_scoring_request(request_id, prompt_token_ids, labels)

    def _token_ids(self, prompt: Prompt, special_tokens: bool) -> list[int]:
        if not isinstance(prompt, str):
            return as_token_ids("query and items", prompt)
        try:
            prompt.encode()
        except UnicodeEncodeError:
            raise ParameterError("query and items", "must be valid Unicode", prompt) from None
        ids: list[int] = self.engine.tokenizer.encode(prompt, add_special_tokens=special_tokens)
        return ids

    def _finish(self, adds: Sequence[AddRequest], use_tqdm: bool) -> list[RequestOutput]:
        finished: dict[int, RequestOutput] = {}
        # disable=None: no bar where stderr is no terminal.
        with tqdm(total=len(adds), unit="prompt", disable=None if use_tqdm else True) as bar:
            for index, output in self._run(adds):
                if output.finished:
                    finished[index] = output
                    bar.update()
        return [finished[index] for index in range(len(adds))]

    def _run(self, adds: Sequence[AddRequest]) -> Generator[tuple[int, RequestOutput]]:
        """Admit all requests, then step until all have finished; abort the rest if that does not happen."""
        if self.engine.has_unfinished_requests():
            raise InputError("another stream of this LLM is unfinished; exhaust or close it first")
        unfinished: dict[str, int] = {}
        try:
            for index, add in enumerate(adds):
                request_id = next(self._request_ids)
                try:
                    add(request_id)
                except ParameterError as error:
                    if len(adds) == 1:
                        raise
                    raise ParameterError(f"prompts[{index}]: {error.field}", error.rule, error.value) from None
                unfinished[request_id] = index
            while unfinished:
                for output in self.engine.step():
                    index = unfinished[output.request_id]
                    if output.finished:
                        del unfinished[output.request_id]
                    yield index, output
        finally:
            for request_id in unfinished:
                self.engine.abort(request_id)
