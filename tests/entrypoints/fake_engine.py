"""An engine without a model: a token is a character, and choice c of a prompt is the prompt once more, times c + 1."""

import math
from dataclasses import replace
from typing import ClassVar

from drawlot.engine.outputs import CompletionOutput, Logprob, RequestOutput
from drawlot.errors import ParameterError


class FakeTokenizer:
    """Special token 1 begins a text; `chat_template` may be set."""

    chat_template = None

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + [ord(character) for character in text]

    def decode(self, ids):
        return "".join(map(chr, ids))

    def apply_chat_template(self, messages, add_generation_prompt, return_dict):
        return self.encode("".join(f"[{message['role']}]{message['content']}" for message in messages), False)


class FakeEngine:
    """Draws one token a step for every running request; at most `args.max_num_seqs` run, the last prompts first."""

    vocab_size = 256
    bad_prompts: ClassVar[set[str]] = set()

    def __init__(self, args):
        self.args = args
        self.tokenizer = FakeTokenizer()
        self.running = {}
        self.log = []

    def add_request(self, request_id, prompt, params, use_speculation=True):
        ids = self.tokenizer.encode(prompt, False) if isinstance(prompt, str) else prompt
        if not ids:
            raise ParameterError("prompt", "must not be empty", prompt)
        params.check_vocab(self.vocab_size)
        params.check_max_logprobs(self.args.max_logprobs)
        self.log.append(("add", request_id))
        self.running[request_id] = (prompt if isinstance(prompt, str) else None, ids, params, 0)

    def add_scoring_request(self, request_id, prompt_token_ids, label_token_ids):
        self.log.append(("score", prompt_token_ids))
        self.running[request_id] = (None, prompt_token_ids, label_token_ids, 0)

    def abort(self, request_id):
        self.log.append(("abort", request_id))
        self.running.pop(request_id, None)

    def has_unfinished_requests(self):
        return bool(self.running)

    def step(self):
        self.log.append(("step", len(self.running)))
        return [self._advance(request_id) for request_id in list(self.running)[-self.args.max_num_seqs :]]

    def _advance(self, request_id):
        prompt, ids, params, drawn = self.running[request_id]
        drawn += 1
        output = RequestOutput(
            request_id=request_id, prompt=prompt, prompt_token_ids=ids, prompt_logprobs=None, outputs=[], finished=True
        )
        if isinstance(params, list):
            output.label_logprobs = [-float(label + len(ids)) for label in params]
        else:
            output.outputs = [self._completion(ids, params, drawn, index) for index in range(params.n)]
            if prompt in self.bad_prompts:
                output.outputs = [
                    replace(each, text="", finish_reason="error", stop_reason="nonfinite") for each in output.outputs
                ]
            output.finished = all(completion.finish_reason for completion in output.outputs)
        self.running[request_id] = (prompt, ids, params, drawn)
        if output.finished:
            self.running.pop(request_id, None)
        return output

    def _completion(self, ids, params, drawn, index):
        text = "".join(map(chr, ids)) * (index + 1)
        length = min(len(text), params.max_tokens)
        token_ids = [ord(character) for character in text[: min(drawn, length)]]
        logprobs = None
        if params.logprobs is not None:
            logprobs = [{i: Logprob(-1.5, 1, chr(i)), 0: Logprob(-math.inf, 2, "\0")} for i in token_ids]
        return CompletionOutput(
            index=index,
            text="".join(map(chr, token_ids)) if params.detokenize else "",
            token_ids=token_ids,
            cumulative_logprob=None,
            logprobs=logprobs,
            finish_reason=None if drawn < length else "length" if params.max_tokens < len(text) else "stop",
        )
