"""Stateless calls, for a notebook, a test or somebody else's loop."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.drafts import PADDING, refused
from drawlot.kernels.inputs import BatchFacts, Edits, RowParams
from drawlot.kernels.registry import get_backend, name_that_drafts
from drawlot.outputs import LogitsRows, LogprobsTensors, SamplerOutput, SparseDraftLogits, VerifierOutput
from drawlot.params import MAX_CHOICES, SamplingParams
from drawlot.sampling.logprobs import all_rows_want, check_mode
from drawlot.sampling.sampler import Sampler, check_logits
from drawlot.sampling.states import batch_facts, row_numbers
from drawlot.verification import RejectionSampler

TokenIds = Sequence[Sequence[int]]
T = TypeVar("T", SamplingParams, str)


def sample(
    logits: Tensor,
    params: SamplingParams | Sequence[SamplingParams],
    *,
    positions: Tensor | None = None,
    prompt_token_ids: TokenIds | None = None,
    output_token_ids: TokenIds | None = None,
    allowed_bitmask: Tensor | None = None,
    choice_index: int | Tensor = 0,
    logprobs_mode: str = "raw_logprobs",
    use_fp64_gumbel: bool = False,
    backend: str = "auto",
) -> SamplerOutput:
    """Draw one token for each row of logits.

    >>> logits = torch.tensor([[0.0, 2.0, 1.0, -1.0]])
    >>> sample(logits, SamplingParams(temperature=0)).token_ids
    tensor([1])

    Args:
        logits: float32, bfloat16 or float16 [N, V], any strides; never written to.
        params: One for all rows, or one a row. Rows without a seed take 64 fresh bits each (`torch.manual_seed`).
        positions: int64 [N], index in prompt + output of the token being drawn. Needed with a seed, unless both
            lists of token ids are given: then it is the sum of their lengths.
        prompt_token_ids: The prompt of each row; repetition_penalty reads it.
        output_token_ids: The output so far of each row; penalties and min_tokens read it.
        allowed_bitmask: int32 [N, ceil(V / 32)]; bit id & 31 of word id >> 5 is set for an allowed id.
        choice_index: int, or int64 [N], in [0, 128): the choices of one seed and position differ.
        logprobs_mode: raw_logprobs, processed_logprobs, raw_logits or processed_logits.
        use_fp64_gumbel: Draw with float64 noise: its own stream of tokens.
        backend: auto, reference, torch, triton or flashinfer.

    Returns:
        Tokens [N], logprobs (None if no row asks for any) and status [N].

    Raises:
        InputError: A shape or dtype does not fit, or something that a parameter needs is missing.
        ParameterError: A parameter does not fit the vocabulary.
        BackendError: The backend cannot run here.
    """
    vocab_size = logits.shape[-1]
    check_logits(logits, vocab_size, allowed_bitmask)
    n = len(logits)
    kinds = [params] if isinstance(params, SamplingParams) else list(params)
    if not isinstance(params, SamplingParams) and len(kinds) != n:
        raise InputError(f"params: must be one, or one for each of the {n} rows; got {len(kinds)}")
    _check_histories(kinds, n, prompt_token_ids, output_token_ids)
    positions = _positions(positions, kinds, logits, prompt_token_ids, output_token_ids)
    choices = _choices(choice_index, logits)

    if isinstance(params, SamplingParams) and not _has_edits(params):
        params.check_vocab(vocab_size)
        check_mode(logprobs_mode)
        sample_rows = get_backend(backend, logits.device).sampler_of(lambda: _facts(params, vocab_size, n))
        drawn = sample_rows(
            logits,
            _same_for_all(params, vocab_size, positions, choices),
            Edits(allowed_bitmask),
            all_rows_want(params, n, vocab_size, logits.device, logprobs_mode),
            wide=use_fp64_gumbel,
        )
        return SamplerOutput(drawn.token_ids, drawn.logprobs and LogprobsTensors(*drawn.logprobs), drawn.status)

    sampler = Sampler(
        max(1, n),
        vocab_size,
        device=logits.device,
        logprobs_mode=logprobs_mode,
        use_fp64_gumbel=use_fp64_gumbel,
        backend=backend,
    )
    per_row = kinds if len(kinds) == n else kinds * n
    for i, choice in enumerate(choices.tolist()):
        prompt = () if prompt_token_ids is None else prompt_token_ids[i]
        output = () if output_token_ids is None else output_token_ids[i]
        sampler.add_request(i, per_row[i], prompt, output, choice)
    index = torch.arange(n, device=logits.device)
    no_drafts = torch.zeros_like(index)
    cu_num_logits = torch.arange(n + 1, dtype=torch.int32, device=logits.device)
    rows = LogitsRows(index, index, no_drafts, positions, no_drafts, cu_num_logits, range(n))
    out = sampler(logits, rows, allowed_bitmask)
    return out._replace(logprobs=out.logprobs and out.logprobs._replace(cu_num_generated_tokens=None))


def verify(
    target_logits: Tensor,
    draft_token_ids: Tensor,
    draft_logits: Tensor | SparseDraftLogits | None = None,
    *,
    params: SamplingParams | Sequence[SamplingParams],
    positions: Tensor | None = None,
    num_drafts: Sequence[int] | Tensor | None = None,
    prompt_token_ids: TokenIds | None = None,
    output_token_ids: TokenIds | None = None,
    allowed_bitmask: Tensor | None = None,
    draft_params: SamplingParams | Sequence[SamplingParams] | None = None,
    method: str | Sequence[str] = "standard",
    logprobs_mode: str = "raw_logprobs",
    use_fp64_gumbel: bool = False,
    backend: str = "auto",
) -> VerifierOutput:
    """Verify the drafts of requests, and draw the token after the accepted ones.

    >>> logits = torch.tensor([[[0.0, 2.0, 1.0], [3.0, 0.0, 1.0]]])
    >>> verify(logits, torch.tensor([[1]]), params=SamplingParams(temperature=0)).sampled_token_ids
    tensor([[1, 0]])

    Args:
        target_logits: float32, bfloat16 or float16 [R, K + 1, V], K >= 1: row j is given the drafts before j; never
            written to.
        draft_token_ids: int64 [R, K]; -1: no draft, and none after it; -2 - id: the drafted token id, which a
            constraint refuses.
        draft_logits: What the drafts were drawn from: [R, K, >= V], or sparse [R, K, M]. None: point masses.
        params: One for all requests, or one a request; those without a seed take 64 fresh bits (`torch.manual_seed`).
        positions: int64 [R], index in prompt + output of the token that row 0 judges; needed as in `sample`.
        num_drafts: [R], how many of the K drafts each request has; None: all.
        prompt_token_ids: The prompt of each request; repetition_penalty reads it.
        output_token_ids: The output so far of each request; penalties and min_tokens read it.
        allowed_bitmask: int32 [R, K + 1, ceil(V / 32)], as for `sample`.
        draft_params: With which temperature, top_k, top_p and min_p the drafts were drawn from dense `draft_logits`,
            one or one a request; None: the drafts were drawn from their softmax.
        method: standard, block or coupled, one or one a request.
        logprobs_mode: raw_logprobs, processed_logprobs, raw_logits or processed_logits.
        use_fp64_gumbel: Draw with float64 noise: its own stream of tokens.
        backend: auto, reference, torch or triton.

    Returns:
        Tokens and their numbers; status and logprobs of all R (K + 1) rows.

    Raises:
        InputError: A shape or dtype does not fit, or something that a parameter needs is missing.
        ParameterError: A parameter does not fit the vocabulary, or there is no such method.
        BackendError: The backend cannot run here, or does not verify drafts.
    """
    num_reqs, most, vocab_size = _check_drafts(target_logits, draft_token_ids)
    device = target_logits.device
    backend = name_that_drafts(backend, device)
    if allowed_bitmask is not None and allowed_bitmask.shape[:-1] != (num_reqs, most + 1):
        rule = f"must be int32 [{num_reqs}, {most + 1}, {-(-vocab_size // 32)}]"
        raise InputError(f"allowed_bitmask: {rule}; got {allowed_bitmask.dtype} {list(allowed_bitmask.shape)}")
    bitmask = None if allowed_bitmask is None else allowed_bitmask.flatten(0, 1)
    logits = target_logits.flatten(0, 1)
    check_logits(logits, vocab_size, bitmask)
    kinds = _one_each("params", params, num_reqs)
    methods = _one_each("method", method, num_reqs)
    _check_histories(kinds, num_reqs, prompt_token_ids, output_token_ids)
    positions = _positions(positions, kinds, target_logits, prompt_token_ids, output_token_ids)
    counts = torch.full((num_reqs,), most) if num_drafts is None else torch.as_tensor(num_drafts)
    if counts.shape != (num_reqs,) or bool(((counts < 0) | (counts > most)).any()):
        raise InputError(f"num_drafts: must hold {num_reqs} numbers in [0, {most}]; got {counts.tolist()}")
    columns = torch.arange(most + 1, device=device)
    past = columns > counts.to(device).unsqueeze(1)
    drafts = draft_token_ids.masked_fill(past[:, 1:], PADDING)
    lines = draft_logits
    if draft_params is not None:
        lines = _drawn_from(draft_logits, _one_each("draft_params", draft_params, num_reqs), vocab_size, backend)

    sampler = Sampler(
        max(1, num_reqs),
        vocab_size,
        device=device,
        logprobs_mode=logprobs_mode,
        use_fp64_gumbel=use_fp64_gumbel,
        backend=backend,
    )
    verifier = RejectionSampler(sampler, num_speculative_tokens=most)
    for r, (kind, name) in enumerate(zip(kinds, methods)):
        prompt = () if prompt_token_ids is None else prompt_token_ids[r]
        output = () if output_token_ids is None else output_token_ids[r]
        sampler.add_request(r, kind, prompt, output)
        verifier.set_method(r, name)
    index = torch.arange(num_reqs, device=device)
    tokens = torch.where(drafts < PADDING, refused(drafts), drafts).clamp(min=0)
    rows = LogitsRows(
        idx_mapping=index,
        expanded_idx_mapping=torch.where(past, -1, index.unsqueeze(1)).flatten(),
        local_positions=columns.repeat(num_reqs),
        positions=(positions.unsqueeze(1) + columns).flatten(),
        input_ids=torch.nn.functional.pad(tokens, (1, 0)).flatten(),
        cu_num_logits=torch.arange(num_reqs + 1, dtype=torch.int32, device=device) * (most + 1),
    )
    return verifier(logits, rows, drafts, lines, None, bitmask)


def _check_histories(kinds: list[SamplingParams], n: int, prompts: TokenIds | None, outputs: TokenIds | None) -> None:
    for name, ids in (("prompt_token_ids", prompts), ("output_token_ids", outputs)):
        if ids is not None and len(ids) != n:
            raise InputError(f"{name}: must hold one list for each of the {n} rows; got {len(ids)}")
    if outputs is None and any(p.has_penalties or p.min_tokens for p in kinds):
        raise InputError("output_token_ids: needed with penalties and min_tokens")


def _check_drafts(target_logits: Tensor, draft_token_ids: Tensor) -> tuple[int, int, int]:
    """R, K and V."""
    if target_logits.ndim != 3 or target_logits.shape[1] < 2:
        raise InputError(f"target_logits: must be [R, K + 1, V] with K >= 1; got {list(target_logits.shape)}")
    num_reqs, rows, vocab_size = target_logits.shape
    if draft_token_ids.shape != (num_reqs, rows - 1) or draft_token_ids.dtype != torch.int64:
        shown = f"{draft_token_ids.dtype} {list(draft_token_ids.shape)}"
        raise InputError(f"draft_token_ids: must be int64 [{num_reqs}, {rows - 1}]; got {shown}")
    wrong = (draft_token_ids >= vocab_size) | (draft_token_ids < refused(vocab_size - 1))
    if bool(wrong.any()):
        first = int(draft_token_ids[wrong][0])
        raise InputError(f"draft_token_ids: must be in [0, {vocab_size}), -1, or -2 - id; got {first}")
    return num_reqs, rows - 1, vocab_size


def _drawn_from(
    draft_logits: Tensor | SparseDraftLogits | None, params: list[SamplingParams], vocab_size: int, backend: str
) -> Tensor:
    """float32 [R, K, V]: what draws with these parameters from draft logits [R, K, >= V] draw from."""
    if not isinstance(draft_logits, Tensor) or draft_logits.ndim != 3:
        raise InputError("draft_params: belong to dense draft_logits [R, K, >= V]")
    for kind in params:
        if _has_edits(kind):
            raise ParameterError("draft_params", "only temperature, top_k, top_p and min_p count for drafts", kind)
    drafting = get_backend(backend, draft_logits.device).needed_for_drafts()
    nowhere = torch.zeros(draft_logits.shape[1], dtype=torch.int64, device=draft_logits.device)
    lines = [
        drafting.log_weights(own[:, :vocab_size], _same_for_all(kind, vocab_size, nowhere, nowhere))
        for own, kind in zip(draft_logits, params)
    ]
    return torch.stack(lines)


def _one_each(name: str, given: T | Sequence[T], n: int) -> list[T]:
    """One a request."""
    if isinstance(given, SamplingParams | str):
        return [given] * n
    each = list(given)
    if len(each) != n:
        raise InputError(f"{name}: must be one, or one for each of the {n} requests; got {len(each)}")
    return each


def _positions(
    positions: Tensor | None,
    kinds: list[SamplingParams],
    logits: Tensor,
    prompts: TokenIds | None,
    outputs: TokenIds | None,
) -> Tensor:
    """int64 [N], given or derived."""
    n = len(logits)
    if positions is not None:
        if positions.shape != (n,) or positions.dtype != torch.int64:
            raise InputError(f"positions: must be int64 [{n}]; got {positions.dtype} {list(positions.shape)}")
        return positions.to(logits.device)
    if prompts is not None and outputs is not None:
        lengths = [len(prompt) + len(output) for prompt, output in zip(prompts, outputs)]
        return torch.tensor(lengths, dtype=torch.int64, device=logits.device)
    if any(p.seed is not None for p in kinds):
        raise InputError("positions: needed with a seed (or give both prompt_token_ids and output_token_ids)")
    return torch.zeros(n, dtype=torch.int64, device=logits.device)


def _choices(choice_index: int | Tensor, logits: Tensor) -> Tensor:
    """int64 [N], checked."""
    n, device = len(logits), logits.device
    if isinstance(choice_index, int):
        choices = _column(choice_index, np.int64, n, device)
        wrong = [] if 0 <= choice_index < MAX_CHOICES else [choice_index]
    else:
        choices = choice_index.to(device, torch.int64).expand(n)
        wrong = choices[(choices < 0) | (choices >= MAX_CHOICES)].tolist()
    if wrong:
        raise ParameterError("choice_index", f"must be in [0, {MAX_CHOICES})", wrong[0])
    return choices


def _column(number: float, dtype: type, n: int, device: torch.device) -> Tensor:
    # NumPy fills a few numbers in a third of torch's time.
    return torch.from_numpy(np.full(n, number, dtype)).to(device)


def _has_edits(params: SamplingParams) -> bool:
    return bool(
        params.has_penalties
        or params.min_tokens
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.bad_words
    )


def _same_for_all(params: SamplingParams, vocab_size: int, positions: Tensor, choices: Tensor) -> RowParams:
    """The parameters of rows that share one `SamplingParams`."""
    temperature, top_k, top_p, min_p = row_numbers(params, vocab_size)
    n, device = len(positions), positions.device
    if params.seed is None:
        seed = torch.empty(n, dtype=torch.int64, device=device).random_(-(2**63), None)
    else:
        seed = _column(params.seed, np.int64, n, device)
    return RowParams(
        _column(temperature, np.float64, n, device),
        _column(top_k, np.int64, n, device),
        _column(top_p, np.float64, n, device),
        _column(min_p, np.float64, n, device),
        seed,
        positions,
        choices,
        _column(0, np.int64, n, device),
    )


def _facts(params: SamplingParams, vocab_size: int, n: int) -> BatchFacts:
    """The facts of n rows that share one `SamplingParams`."""
    temperature, top_k, top_p, min_p = row_numbers(params, vocab_size)
    floats = np.array([temperature, top_p, min_p]).reshape(3, 1)
    return batch_facts(floats[:, :n], np.array([top_k])[:n], np.array([params.seed is not None])[:n])
