"""Stateless calls, for a notebook, a test or somebody else's loop."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.inputs import BatchFacts, Edits, RowParams
from drawlot.kernels.registry import get_backend
from drawlot.outputs import LogitsRows, LogprobsTensors, SamplerOutput
from drawlot.params import MAX_CHOICES, SamplingParams
from drawlot.sampling.logprobs import all_rows_want, check_mode
from drawlot.sampling.sampler import Sampler, check_logits
from drawlot.sampling.states import batch_facts, row_numbers

TokenIds = Sequence[Sequence[int]]


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
    for name, ids in (("prompt_token_ids", prompt_token_ids), ("output_token_ids", output_token_ids)):
        if ids is not None and len(ids) != n:
            raise InputError(f"{name}: must hold one list for each of the {n} rows; got {len(ids)}")
    if output_token_ids is None and any(p.has_penalties or p.min_tokens for p in kinds):
        raise InputError("output_token_ids: needed with penalties and min_tokens")
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
