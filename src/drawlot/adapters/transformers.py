"""drawlot draws, `model.generate` of transformers does the rest: `generate(..., custom_generate=custom_generate)`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation.stopping_criteria import EosTokenCriteria, StoppingCriteriaList

from drawlot.adapters.transformers_processors import not_performed, performed
from drawlot.errors import InputError, ParameterError
from drawlot.outputs import LogitsRows, LogprobsTensors, RowStatus
from drawlot.params import INT64_MAX, MAX_CHOICES, SamplingParams
from drawlot.sampling import Sampler

logger = logging.getLogger("drawlot")


@dataclass(frozen=True, eq=False)
class GenerateOutput:
    """What `generate` returns with `return_dict_in_generate=True`. B: sequences, T: steps, C: logprob columns."""

    sequences: Tensor
    """int64 [B, prompt + T]: prompts and drawn tokens; ended rows are filled with the pad token"""
    logprobs: LogprobsTensors | None
    """As in `SamplerOutput`, with a dimension for the steps: ids and logprobs [B, T, C], ranks [B, T]. Unused cells,
    those after the end of a row included, hold id -1 and -inf. None where no row asked for logprobs."""
    status: Tensor
    """uint8 [B]: flags of `RowStatus`; a row that is not 0 ended early because its logits were bad"""
    past_key_values: Any
    """The model's cache"""


@torch.no_grad()
def custom_generate(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    logprobs_mode: str = "raw_logprobs",
    use_fp64_gumbel: bool = False,
    backend: str = "auto",
    synced_gpus: bool = False,
    streamer: Any = None,
    **model_kwargs: Any,
) -> Tensor | GenerateOutput:
    """The decoding loop of transformers with drawlot's draw; called by `generate`, never directly.

    >>> model.generate(**inputs, custom_generate=custom_generate,
    ...                sampling_params=SamplingParams(seed=7, max_tokens=48), max_new_tokens=48)  # doctest: +SKIP

    With `sampling_params` they alone say how a row is drawn, whatever the generation config says of sampling,
    temperature, top-k, top-p, min-p and repetition penalty. Without, these are read off the logits processors that
    `generate` prepared, so rows follow the very same distribution (tied tokens at the edge of top-k aside: drawlot
    keeps exactly k). Processors that drawlot does not perform run first, on float32 logits; what they leave is what
    drawlot, its raw logprobs included, takes for the model's logits. One that would have to act later is refused.

    A row ends at its `max_tokens`, at an end-of-text token (unless `ignore_eos`), at one of its `stop_token_ids` or
    when the stopping criteria say so, whichever is first; so pass `max_new_tokens` too, or transformers' own default
    applies. The position of a draw counts the real tokens of its row, not the padding: for the same logits, a row's
    tokens do not depend on its neighbours (a model's bfloat16 logits often do, its float32 logits hardly). Of
    `num_return_sequences`, for which transformers asks for do_sample=True, sequence i is choice i of its prompt.

    transformers 5.17 does not hand its `streamer` to a callable; bind it as well:
    `generate(..., streamer=s, custom_generate=functools.partial(custom_generate, streamer=s))`. Nor does it hand over
    a tokenizer: stop texts come as `stopping_criteria=[StopStringCriteria(tokenizer, texts)]`.

    Args:
        model: A decoder-only model.
        input_ids: int64 [B, L], padded on the left.
        logits_processor, stopping_criteria, generation_config, model_kwargs: What `generate` prepares.
        sampling_params: One for all prompts, or one for each.
        logprobs_mode, use_fp64_gumbel, backend: As for `Sampler`.
        synced_gpus: Must be False.
        streamer: Is given the tokens of each step.

    Returns:
        int64 [B, L + T], or a `GenerateOutput` with `return_dict_in_generate=True`.

    Raises:
        ParameterError: A parameter is invalid or asks for what this loop does not do.
        InputError: The model or its inputs do not fit.
    """
    _check_supported(model, generation_config, synced_gpus)
    prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
    num_rows, device = len(prompts), input_ids.device
    if sampling_params is None:
        params = [_derived(logits_processor, generation_config.do_sample)] * num_rows
    else:
        params = _per_row(sampling_params, num_rows, generation_config.num_return_sequences)
    processors = not_performed(logits_processor)
    eos = [i for c in stopping_criteria if isinstance(c, EosTokenCriteria) for i in c.eos_token_id.tolist()]
    other_criteria = StoppingCriteriaList(c for c in stopping_criteria if not isinstance(c, EosTokenCriteria))
    pad = _pad_token(generation_config, num_rows)

    sampler = Sampler(
        num_rows,
        model.config.get_text_config().vocab_size,
        device=device,
        logprobs_mode=logprobs_mode,
        use_fp64_gumbel=use_fp64_gumbel,
        backend=backend,
    )
    for i, prompt in enumerate(prompts):
        # With min_tokens the sampler masks every token that would end the row.
        stops = params[i].stop_token_ids if params[i].ignore_eos else [*params[i].stop_token_ids, *eos]
        params[i] = replace(params[i], stop_token_ids=stops)
        sampler.add_request(i, params[i], prompt, choice_index=i % generation_config.num_return_sequences)

    live = torch.ones(num_rows, dtype=torch.bool, device=device)
    status = torch.zeros(num_rows, dtype=torch.uint8, device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    steps: list[LogprobsTensors | None] = []
    outputs = model._prefill(input_ids, generation_config, model_kwargs)
    while True:
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs)
        logits = outputs.logits[:, -1].to(device)
        del outputs  # the prefill's logits may be large
        if processors:
            logits = processors(input_ids, logits.to(torch.float32, copy=True))
        drawn = sampler(logits, _rows(live, lengths + len(steps), input_ids[:, -1]))
        good = drawn.token_ids >= 0
        tokens = torch.where(good, drawn.token_ids, pad)
        status = torch.where(live, drawn.status, status)
        steps.append(drawn.logprobs)
        sampler.commit(torch.arange(num_rows, device=device), tokens.unsqueeze(1), good.to(torch.int64))
        input_ids = torch.cat([input_ids, tokens.unsqueeze(1)], 1)
        if streamer is not None:
            streamer.put(tokens.cpu())
        ended = [t in p.stop_token_ids or len(steps) >= p.max_tokens for t, p in zip(tokens.tolist(), params)]
        live = good & ~torch.tensor(ended, device=device) & ~other_criteria(input_ids, None)
        if not live.any():
            break
        last = 1 if model_kwargs.get("use_cache") else None
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=last, **model_kwargs)
        outputs = model(**inputs, return_dict=True)

    if streamer is not None:
        streamer.end()
    for i, flags in enumerate(status.tolist()):
        if flags:
            logger.warning("row %d ended early, its logits are bad: %s", i, RowStatus(flags).name)
    if not generation_config.return_dict_in_generate:
        return input_ids
    return GenerateOutput(input_ids, _stacked(steps), status, model_kwargs.get("past_key_values"))


def _check_supported(model: Any, config: Any, synced_gpus: bool) -> None:
    mode = config.get_generation_mode().value
    if mode not in ("greedy_search", "sample"):
        raise ParameterError("generation_config", "must ask for greedy search or sampling", mode)
    if model.config.is_encoder_decoder:
        raise InputError("model: must be decoder-only; this one has an encoder")
    if synced_gpus:
        raise ParameterError("synced_gpus", "must be False", synced_gpus)
    if config.num_return_sequences > MAX_CHOICES:
        raise ParameterError("num_return_sequences", f"must be at most {MAX_CHOICES}", config.num_return_sequences)
    for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states"):
        if getattr(config, name):
            rule = "is not kept by drawlot; logprobs and logits come with SamplingParams.logprobs and logprobs_mode"
            raise ParameterError(name, rule, True)


def _prompts(input_ids: Tensor, attention_mask: Tensor | None) -> list[list[int]]:
    """The real tokens of each row."""
    mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if mask.shape != input_ids.shape:
        shapes = f"input_ids {list(input_ids.shape)}, attention_mask {list(mask.shape)}"
        raise InputError(f"input_ids: must hold the whole prompt, one id for each cell of the mask; got {shapes}")
    if mask.shape[1] == 0 or not mask[:, -1].all():
        raise InputError("attention_mask: prompts must be padded on the left and hold at least one token")
    return [row[real.bool()].tolist() for row, real in zip(input_ids, mask)]


def _derived(logits_processor: Any, do_sample: bool) -> SamplingParams:
    """What `generate` would do; its stopping criteria alone limit the length."""
    fields = performed(logits_processor)
    if not do_sample:
        fields["temperature"] = 0
    return SamplingParams(**fields, max_tokens=INT64_MAX)


def _per_row(
    given: SamplingParams | Sequence[SamplingParams], num_rows: int, num_return_sequences: int
) -> list[SamplingParams]:
    num_prompts = num_rows // num_return_sequences
    per_prompt = [given] * num_prompts if isinstance(given, SamplingParams) else list(given)
    if len(per_prompt) != num_prompts:
        rule = f"must be one, or one for each of the {num_prompts} prompts"
        raise ParameterError("sampling_params", rule, f"{len(per_prompt)} of them")
    for params in per_prompt:
        for field, instead in (
            ("n", "use num_return_sequences"),
            ("stop", "use stopping_criteria=[StopStringCriteria(tokenizer, texts)]"),
            ("bad_words", "use bad_words_ids of the generation config"),
            ("prompt_logprobs", "use drawlot.LLM"),
        ):
            if getattr(params, field) != getattr(SamplingParams(), field):
                raise ParameterError(
                    field, f"is not done within generate of transformers; {instead}", getattr(params, field)
                )
    return [params for params in per_prompt for _ in range(num_return_sequences)]


def _pad_token(config: Any, num_rows: int) -> int:
    if config._pad_token_tensor is not None:
        return int(config._pad_token_tensor)
    if num_rows > 1:
        raise ParameterError("pad_token_id", "needed with several rows, which may end at different lengths", None)
    return 0


def _rows(live: Tensor, positions: Tensor, last_ids: Tensor) -> LogitsRows:
    index = torch.arange(len(live), device=live.device)
    state_rows = torch.where(live, index, -1)
    cu_num_logits = torch.arange(len(live) + 1, dtype=torch.int32, device=live.device)
    return LogitsRows(state_rows, state_rows, torch.zeros_like(index), positions, last_ids, cu_num_logits)


def _stacked(steps: list[LogprobsTensors | None]) -> LogprobsTensors | None:
    """One step after another; a step is as wide as the widest wish of the rows that still live."""
    widest = max((step for step in steps if step is not None), key=lambda s: s.logprobs.shape[1], default=None)
    if widest is None:
        return None
    ids = widest.logprob_token_ids.new_full((len(widest.logprobs), len(steps), widest.logprobs.shape[1]), -1)
    logprobs = torch.full_like(ids, -torch.inf, dtype=torch.float32)
    ranks = torch.zeros_like(ids[:, :, 0])
    for t, step in enumerate(steps):
        if step is not None:
            columns = step.logprobs.shape[1]
            ids[:, t, :columns] = step.logprob_token_ids
            logprobs[:, t, :columns] = step.logprobs
            ranks[:, t] = step.selected_token_ranks
    return LogprobsTensors(ids, logprobs, ranks)
