"""The stateful sampler of an engine: permanent rows, staged writes, one call a step."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.inputs import Edits, LogprobsWanted, RowParams, SampledRows
from drawlot.kernels.registry import get_backend
from drawlot.kernels.requests import StepSampler
from drawlot.outputs import LogitsRows, LogprobsTensors, RowStatus, SamplerOutput
from drawlot.params import MAX_CHOICES, SamplingParams
from drawlot.sampling.edits import EditStates, check_bad_words
from drawlot.sampling.logprobs import LogprobStates, check_mode
from drawlot.sampling.requests import request_of
from drawlot.sampling.states import SamplingStates


class Sampler:
    """Draws the next token of many requests at once, each with its own parameters.

    A request owns row `req_idx` of every state from `add_request` to `remove_request`; batches name rows in any order.
    """

    def __init__(
        self,
        max_num_reqs: int,
        vocab_size: int,
        *,
        device: torch.device | str = "cpu",
        logprobs_mode: str = "raw_logprobs",
        use_fp64_gumbel: bool = False,
        backend: str = "auto",
    ) -> None:
        """Build a sampler.

        Args:
            max_num_reqs: Rows of state; req_idx lies in [0, max_num_reqs).
            vocab_size: Valid token ids; wider logits are cut.
            device: Where the logits will be.
            logprobs_mode: raw_logprobs, processed_logprobs, raw_logits or processed_logits.
            use_fp64_gumbel: Draw with float64 noise: its own stream of tokens.
            backend: auto, reference, torch, triton or flashinfer.

        Raises:
            BackendError: The backend cannot run on the device.
            ParameterError: An argument is outside its range.
        """
        for name, value in (("max_num_reqs", max_num_reqs), ("vocab_size", vocab_size)):
            if value < 1:
                raise ParameterError(name, "must be >= 1", value)
        self.device = torch.device(device)
        self.max_num_reqs = max_num_reqs
        self.vocab_size = vocab_size
        self.use_fp64_gumbel = use_fp64_gumbel
        self.backend = get_backend(backend, self.device)
        self._live: set[int] = set()
        self._forget: list[Callable[[int], None]] = []
        check_mode(logprobs_mode)
        self._steps: StepSampler | None = None
        if self.backend.step_sampler is not None:
            self._steps = self.backend.step_sampler(
                max_num_reqs, vocab_size, self.device, logprobs_mode, wide=use_fp64_gumbel
            )
        else:
            self._numbers = SamplingStates(max_num_reqs, vocab_size, self.device)
            self._edits = EditStates(max_num_reqs, vocab_size, self.device)
            self._logprobs = LogprobStates(vocab_size, self.device, logprobs_mode)

    def add_request(
        self,
        req_idx: int,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: Sequence[int] = (),
        choice_index: int = 0,
        bad_words_token_ids: Sequence[Sequence[int]] = (),
    ) -> None:
        """Admit a request.

        Args:
            req_idx: A free row.
            params: Checked here against the vocabulary. With a seed the request always draws the same tokens.
            prompt_token_ids: The prompt.
            output_token_ids: What was drawn before, for a request that comes back.
            choice_index: Which of the prompt's `n` choices this is; choices of one seed differ.
            bad_words_token_ids: `params.bad_words` as token ids; each is a list of ids that may not be completed.

        Raises:
            ParameterError: A token id is out of range, or bad_words came without their token ids.
            InputError: The row is taken or does not exist.
        """
        if not 0 <= req_idx < self.max_num_reqs or req_idx in self._live:
            raise InputError(f"req_idx: must be a free row in [0, {self.max_num_reqs}); got {req_idx}")
        params.check_vocab(self.vocab_size)
        if params.bad_words and not bad_words_token_ids:
            raise ParameterError("bad_words", "are texts, which only an engine resolves: pass bad_words_token_ids", "")
        if not 0 <= choice_index < MAX_CHOICES:
            raise ParameterError("choice_index", f"must be in [0, {MAX_CHOICES})", choice_index)
        check_bad_words(bad_words_token_ids, self.vocab_size)
        for name, ids in (("prompt_token_ids", prompt_token_ids), ("output_token_ids", output_token_ids)):
            if len(ids) and not 0 <= min(ids) <= max(ids) < self.vocab_size:
                wrong = next(i for i in ids if not 0 <= i < self.vocab_size)
                raise ParameterError(name, f"token ids must be in [0, {self.vocab_size})", wrong)
        self._live.add(req_idx)
        if self._steps is not None:
            history = prompt_token_ids, output_token_ids
            request = request_of(params, self.vocab_size, *history, choice_index, bad_words_token_ids)
            self._steps.add_request(req_idx, request)
            return
        self._numbers.add_request(req_idx, params, choice_index)
        self._edits.add_request(req_idx, params, prompt_token_ids, output_token_ids, bad_words_token_ids)
        self._logprobs.add_request(req_idx, params)

    def apply_staged_writes(self) -> None:
        """Bring added requests to the device; calling the sampler does it too, except under capture of a CUDA graph."""
        if self._steps is not None:
            self._steps.apply_staged_writes()
        else:
            self._numbers.apply_staged_writes()

    def warm_up(self, logits: Tensor, allowed_bitmask: Tensor | None = None) -> None:
        """Compile, before there are requests, what any of them may need; later steps of any size compile nothing.

        Args:
            logits: Any [N, >= vocab_size] with the dtype and the row stride of those to come.
            allowed_bitmask: Any [N, ceil(vocab_size / 32)], if there will be some.

        Raises:
            InputError: There are requests, or a shape or dtype does not fit.
        """
        check_logits(logits, self.vocab_size, allowed_bitmask)
        if self._live:
            raise InputError(f"warm_up: comes before the first request; {len(self._live)} are alive")
        if self._steps is not None:
            self._steps.warm_up(logits, allowed_bitmask)

    @property
    def capture_key(self) -> Hashable:
        """A call captured in a CUDA graph may be replayed while this is what it was; None: calls cannot be captured.

        It changes with the columns of logprobs and the edits that live requests ask for, with whether one is without a
        small top_k, and when a table grows; if it is again what it was, the graph is good again.
        """
        return None if self._steps is None else self._steps.capture_key

    def __call__(self, logits: Tensor, rows: LogitsRows, allowed_bitmask: Tensor | None = None) -> SamplerOutput:
        """Draw one token for each row.

        Args:
            logits: float32, bfloat16 or float16 [N, >= vocab_size], any row stride; never written to.
            rows: Which request and position each row belongs to.
            allowed_bitmask: int32 [N, ceil(vocab_size / 32)] of a grammar; None: all ids.

        Returns:
            Tokens, logprobs and status of all rows, on the device. With the triton backend they lie in memory of the
            sampler's own, which the next call overwrites: copy what is needed later.
        """
        check_logits(logits, self.vocab_size, allowed_bitmask)
        if self._steps is not None:
            drawn = self._steps.sample(logits, rows, allowed_bitmask)
            return SamplerOutput(drawn.token_ids, _columns(drawn, rows), drawn.status)
        self.apply_staged_writes()
        which = rows.expanded_idx_mapping
        sample_rows = self.backend.sampler_of(
            lambda: self._numbers.facts(which.tolist() if rows.state_rows is None else rows.state_rows)
        )
        inputs = self.inputs_of(rows, allowed_bitmask)
        drawn = sample_rows(logits[:, : self.vocab_size], *inputs, wide=self.use_fp64_gumbel)
        skipped = which < 0
        tokens = torch.where(skipped, -1, drawn.token_ids)
        status = torch.where(skipped, int(RowStatus.SKIPPED), drawn.status)
        return SamplerOutput(tokens, _columns(drawn, rows), status)

    def row_paths(self, num_rows: int) -> list[str] | None:
        """How rows of the last call were drawn, for who measures, since it waits for the device.

        Args:
            num_rows: The first so many; a replayed graph had what its capture had.

        Returns:
            Of each row "greedy", "list" (from its best tokens), "tiles" (without filters), "read again" (the list did
            not hold what the row keeps) or "no token"; None: the backend does not tell, only triton does.

        Raises:
            InputError: No call has had so many rows, nor are there so many rows of state.
        """
        return None if self._steps is None else self._steps.row_paths(num_rows)

    def inputs_of(
        self, rows: LogitsRows, allowed_bitmask: Tensor | None
    ) -> tuple[RowParams, Edits, LogprobsWanted | None]:
        """What the kernels of a backend without tables of its own are given beside the logits."""
        which = rows.expanded_idx_mapping
        params = self._numbers.gather(which, rows.positions)
        return params, self._edits.build(rows, allowed_bitmask), self._logprobs.wanted(which)

    def row_params(self, state_rows: Tensor, positions: Tensor) -> RowParams:
        """The parameters of requests int64 [N] (-1 reads row 0) at positions int64 [N]."""
        if self._steps is not None:
            return self._steps.row_params(state_rows, positions)
        return self._numbers.gather(state_rows, positions)

    def owns(self, req_idx: int) -> bool:
        """Some request owns the row."""
        return req_idx in self._live

    def on_remove(self, forget: Callable[[int], None]) -> None:
        """Whoever keeps states beside the sampler's is told which row a removed request leaves."""
        self._forget.append(forget)

    def commit(self, idx_mapping: Tensor, token_ids: Tensor, num_sampled: Tensor) -> None:
        """What was emitted enters penalties and bad words.

        Args:
            idx_mapping: int64 [R], state rows; -1: skip.
            token_ids: int64 [R, K + 1], the emitted tokens from column 0.
            num_sampled: int32 or int64 [R], how many of them.
        """
        if self._steps is not None:
            self._steps.commit(idx_mapping, token_ids, num_sampled)
        else:
            self._edits.commit(idx_mapping, token_ids, num_sampled)

    def remove_request(self, req_idx: int) -> None:
        """Free the request's row.

        Raises:
            InputError: No request owns it.
        """
        if req_idx not in self._live:
            raise InputError(f"req_idx: no request owns row {req_idx}")
        self._live.remove(req_idx)
        for forget in self._forget:
            forget(req_idx)
        if self._steps is not None:
            self._steps.remove_request(req_idx)
            return
        self._numbers.remove_request(req_idx)
        self._edits.remove_request(req_idx)
        self._logprobs.remove_request(req_idx)


def _columns(drawn: SampledRows, rows: LogitsRows) -> LogprobsTensors | None:
    return drawn.logprobs and LogprobsTensors(*drawn.logprobs, rows.cu_num_logits)


def check_logits(logits: Tensor, vocab_size: int, allowed_bitmask: Tensor | None) -> None:
    """Check the tensors of a step; costs no synchronisation.

    Raises:
        InputError: A shape or dtype does not fit.
    """
    if logits.ndim != 2 or logits.shape[1] < vocab_size:
        raise InputError(f"logits: must be [N, >= {vocab_size}]; got {list(logits.shape)}")
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise InputError(f"logits: must be float32, bfloat16 or float16; got {logits.dtype}")
    if allowed_bitmask is not None:
        words = -(-vocab_size // 32)
        if allowed_bitmask.dtype != torch.int32 or allowed_bitmask.shape != (len(logits), words):
            shown = f"{allowed_bitmask.dtype} {list(allowed_bitmask.shape)}"
            raise InputError(f"allowed_bitmask: must be int32 [{len(logits)}, {words}]; got {shown}")
