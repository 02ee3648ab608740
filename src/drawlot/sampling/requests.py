"""Requests as plain numbers, for backends that keep them in tables of their own."""

from collections.abc import Sequence

from drawlot.kernels.requests import Request, RequestEdits
from drawlot.params import SamplingParams
from drawlot.sampling.logprobs import columns_of
from drawlot.sampling.states import fresh_seed, row_numbers


def request_of(
    params: SamplingParams,
    vocab_size: int,
    prompt_token_ids: Sequence[int],
    output_token_ids: Sequence[int],
    choice_index: int,
    bad_words_token_ids: Sequence[Sequence[int]],
) -> Request:
    """The numbers of a request; arguments as in `Sampler.add_request`, checked."""
    temperature, top_k, top_p, min_p = row_numbers(params, vocab_size)
    num_top, logprob_token_ids = (None, ()) if params.num_logprobs is None else columns_of(params, vocab_size)
    return Request(
        temperature=temperature,
        top_p=top_p,
        min_p=min_p,
        top_k=top_k,
        seed=fresh_seed() if params.seed is None else params.seed,
        choice=choice_index,
        num_top=num_top,
        logprob_token_ids=logprob_token_ids,
        edits=_edits_of(params, prompt_token_ids, output_token_ids, bad_words_token_ids),
    )


def _edits_of(
    params: SamplingParams, prompt: Sequence[int], output: Sequence[int], bad_words: Sequence[Sequence[int]]
) -> RequestEdits | None:
    """What a request edits; None: nothing."""
    longer = [word for word in bad_words if len(word) > 1]
    waits = bool(params.min_tokens and params.stop_token_ids)
    looks_back = params.has_penalties or bool(longer)
    biased_or_masked = params.logit_bias or params.allowed_token_ids is not None or bad_words
    if not (looks_back or waits or biased_or_masked):
        return None
    return RequestEdits(
        allowed=params.allowed_token_ids,
        # A bad word of one token is a mask.
        masked=[word[0] for word in bad_words if len(word) == 1],
        stop_ids=params.stop_token_ids if waits else (),
        first_stop_position=len(prompt) + params.min_tokens if waits else 0,
        bias=params.logit_bias or {},
        repetition=params.repetition_penalty,
        frequency=params.frequency_penalty,
        presence=params.presence_penalty,
        prompt=prompt if params.has_penalties else (),
        output=output if looks_back else (),
        bad_words=longer,
        looks_back=looks_back,
    )
