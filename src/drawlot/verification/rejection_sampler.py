"""The stateful verifier of an engine: drafts in, accepted tokens and one token more out."""

from collections.abc import Hashable, Sequence
from importlib import import_module
from itertools import product
from typing import Any

import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.drafts import PADDING, Drafts, VerifiedRows
from drawlot.outputs import LogitsRows, LogprobsTensors, RowStatus, SparseDraftLogits, VerifierOutput
from drawlot.params import SamplingParams
from drawlot.sampling import Sampler
from drawlot.sampling.sampler import check_logits
from drawlot.verification.methods import MethodStates

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


class RejectionSampler:
    """Verifies the drafts of many requests at once, by the parameters that their `Sampler` holds.

    Requests with and without drafts share a batch; one without drafts draws as the sampler itself would.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        num_speculative_tokens: int,
        method: str = "standard",
        synthetic_rates: Sequence[float] | None = None,
    ) -> None:
        """Build a verifier.

        Args:
            sampler: Knows the requests.
            num_speculative_tokens: K, the drafts of a request at most.
            method: Of requests without one of their own: standard, block, coupled or synthetic.
            synthetic_rates: For each of the K drafts how often it is to be accepted together with all before it.

        Raises:
            ParameterError: An argument is outside its range.
            BackendError: The sampler's backend does not verify drafts.
        """
        if num_speculative_tokens < 1:
            raise ParameterError("num_speculative_tokens", "must be >= 1", num_speculative_tokens)
        self.sampler = sampler
        self.num_speculative_tokens = num_speculative_tokens
        self._methods = MethodStates(sampler, method, synthetic_rates, num_speculative_tokens)
        # Where the sampler's requests lie in a backend's own tables, it verifies by them.
        self._steps: Any = None
        if sampler._steps is not None:
            verification = import_module(f"drawlot.kernels.{sampler.backend.name}.verification")
            states = self._methods
            self._steps = verification.StepVerifier(
                sampler._steps, num_speculative_tokens, states._of_rows, states.rates, states.in_use
            )
        else:
            self._verify_rows = sampler.backend.needed_for_drafts().verify_rows

    def set_method(self, req_idx: int, method: str) -> None:
        """Verify a request by a method of its own, until it is removed.

        Raises:
            ParameterError: There is no such method, or it is synthetic and the verifier has no rates.
            InputError: No request owns the row.
        """
        self._methods.set_method(req_idx, method)

    def warm_up(
        self,
        target_logits: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None = None,
        draft_lse: Tensor | None = None,
        allowed_bitmask: Tensor | None = None,
    ) -> None:
        """Warm the sampler up, and do everything once that steps with such arguments do for the first time.

        With the triton backend this compiles: afterwards no step does, whatever its requests ask for and however many
        rows it has. Call it for each form of draft logits that is used; as of the sampler, before the first request.

        Args:
            target_logits: Any [N >= 2, >= vocab_size] with the dtype and the row stride of those to come.
            draft_logits: As in a call, with any values; None: point masses.
            draft_lse: As in a call, with any values, if there will be some.
            allowed_bitmask: Any [N, ceil(vocab_size / 32)], if there will be some.

        Raises:
            InputError: A shape or dtype does not fit, or a request is alive.
        """
        if len(target_logits) < 2:
            raise InputError(f"target_logits: warm_up needs at least 2 rows; got {len(target_logits)}")
        self.sampler.warm_up(target_logits, allowed_bitmask)
        if self._steps is not None:
            with self._steps.compiling_ahead():
                self._run_all(target_logits, draft_logits, draft_lse, allowed_bitmask)
            self._run_all(target_logits, draft_logits, draft_lse, allowed_bitmask)

    def _run_all(
        self,
        target_logits: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None,
        draft_lse: Tensor | None,
        allowed_bitmask: Tensor | None,
    ) -> None:
        """Steps with every launch that a step may have; arguments as for `warm_up`."""
        device = target_logits.device
        zero, zeros, both = (torch.tensor(ids, device=device) for ids in ([0], [0, 0], [0, 1]))
        rows = LogitsRows(zero, zeros, both, both, zeros, torch.tensor([0, 2], dtype=torch.int32, device=device))
        drafts = torch.full((1, self.num_speculative_tokens), PADDING, device=device)
        drafts[0, 0] = 0
        # With filters rows are cut, `block` settles in its own way.
        for method, top_k, logprobs, penalty in product(("standard", "block"), (0, 1), (None, 0), (0.0, 1.0)):
            self.sampler.add_request(0, SamplingParams(top_k=top_k, logprobs=logprobs, presence_penalty=penalty), [0])
            self.set_method(0, method)
            for mask in (None,) if allowed_bitmask is None else (None, allowed_bitmask[:2]):
                self(target_logits[:2], rows, drafts, draft_logits, draft_lse, mask)
            self.sampler.remove_request(0)

    @property
    def capture_key(self) -> Hashable:
        """A call captured in a CUDA graph may be replayed while this is what it was; None: calls cannot be captured.

        As of the sampler; it changes too when the first live request gets a filter, `block` or `coupled`, or the last
        one goes.
        """
        return None if self._steps is None else self._steps.capture_key

    def __call__(
        self,
        target_logits: Tensor,
        rows: LogitsRows,
        draft_token_ids: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None = None,
        draft_lse: Tensor | None = None,
        allowed_bitmask: Tensor | None = None,
    ) -> VerifierOutput:
        """Verify drafts and draw the token after the accepted ones.

        Args:
            target_logits: float32, bfloat16 or float16 [N, >= vocab_size], any row stride; never written to.
            rows: Of requests with 0 .. K drafts each: one row more than drafts.
            draft_token_ids: int64 [R, K]; -1: no draft, and none after it; -2 - id: the drafted token id, which a
                constraint refuses.
            draft_logits: Draft j of the request in state row s was drawn from the softmax of line [s, j]: float32,
                bfloat16 or float16 [max_num_reqs, K, >= vocab_size], or sparse. None: all drafts are point masses.
            draft_lse: float32 [max_num_reqs, K], the log of the sum of exp over each of these lines, where the drafter
                knows it.
            allowed_bitmask: int32 [N, ceil(vocab_size / 32)] of a grammar; None: all ids.

        Returns:
            Tokens, their numbers, logprobs and status, on the device. With the triton backend they lie in memory of the
            verifier's and the sampler's own, which the next call overwrites: copy what is needed later.

        Raises:
            InputError: A shape or dtype does not fit.
        """
        vocab_size = self.sampler.vocab_size
        check_logits(target_logits, vocab_size, allowed_bitmask)
        self._check(len(target_logits), len(rows.idx_mapping), draft_token_ids, draft_logits, draft_lse)
        if len(target_logits) == len(rows.idx_mapping):
            return self._without_drafts(target_logits, rows, draft_token_ids, allowed_bitmask)
        if self._steps is not None:
            given = draft_token_ids, draft_logits, draft_lse, allowed_bitmask
            done: VerifiedRows = self._steps.verify(target_logits, rows, *given)
            columns = done.logprobs and LogprobsTensors(*done.logprobs, rows.cu_num_logits)
            return VerifierOutput(*done[:3], columns, done.status)
        self.sampler.apply_staged_writes()
        params, edits, wanted = self.sampler.inputs_of(rows, allowed_bitmask)
        state_rows = rows.idx_mapping.clamp(min=0)
        verified = self._verify_rows(
            target_logits[:, :vocab_size],
            params._replace(position=rows.positions - rows.local_positions, row=rows.local_positions),
            edits,
            Drafts(
                draft_token_ids,
                rows.cu_num_logits,
                state_rows,
                self._methods.gather(state_rows),
                draft_logits,
                draft_lse,
                self._methods.rates,
            ),
            wanted,
            wide=self.sampler.use_fp64_gumbel,
        )
        skipped = rows.idx_mapping < 0
        return VerifierOutput(
            torch.where(skipped.unsqueeze(1), -1, verified.sampled_token_ids),
            torch.where(skipped, 0, verified.num_sampled),
            torch.where(skipped, 0, verified.num_accepted),
            verified.logprobs and LogprobsTensors(*verified.logprobs, rows.cu_num_logits),
            torch.where(rows.expanded_idx_mapping < 0, int(RowStatus.SKIPPED), verified.status),
        )

    def _without_drafts(
        self, logits: Tensor, rows: LogitsRows, draft_token_ids: Tensor, allowed_bitmask: Tensor | None
    ) -> VerifierOutput:
        """Requests of one row each: what the sampler itself draws."""
        drawn = self.sampler(logits, rows, allowed_bitmask)
        padding = torch.full_like(draft_token_ids, PADDING)
        sampled = torch.cat((drawn.token_ids.unsqueeze(1), padding), 1)
        num_sampled = (drawn.token_ids >= 0).to(torch.int32)
        return VerifierOutput(sampled, num_sampled, torch.zeros_like(num_sampled), drawn.logprobs, drawn.status)

    def _check(
        self,
        num_rows: int,
        num_reqs: int,
        draft_token_ids: Tensor,
        draft_logits: Tensor | SparseDraftLogits | None,
        draft_lse: Tensor | None,
    ) -> None:
        k, lines = self.num_speculative_tokens, (self.sampler.max_num_reqs, self.num_speculative_tokens)
        if draft_token_ids.shape != (num_reqs, k) or draft_token_ids.dtype != torch.int64:
            shown = f"{draft_token_ids.dtype} {list(draft_token_ids.shape)}"
            raise InputError(f"draft_token_ids: must be int64 [{num_reqs}, {k}]; got {shown}")
        if not num_reqs <= num_rows <= num_reqs * (k + 1):
            rule = f"must hold 1 to {k + 1} rows for each of the {num_reqs} requests"
            raise InputError(f"target_logits: {rule}; got {num_rows}")
        if isinstance(draft_logits, SparseDraftLogits):
            ids, logits = draft_logits
            if ids.shape != logits.shape or ids.shape[:2] != lines or ids.dtype != torch.int64:
                shown = f"{ids.dtype} {list(ids.shape)} and {list(logits.shape)}"
                rule = f"token ids must be int64 [{lines[0]}, {k}, M], logits as many"
                raise InputError(f"draft_logits: {rule}; got {shown}")
        elif draft_logits is not None:
            logits, vocab_size = draft_logits, self.sampler.vocab_size
            if logits.ndim != 3 or logits.shape[:2] != lines or logits.shape[2] < vocab_size:
                raise InputError(f"draft_logits: must be [{lines[0]}, {k}, >= {vocab_size}]; got {list(logits.shape)}")
        if draft_logits is not None and logits.dtype not in _FLOATS:
            raise InputError(f"draft_logits: must be float32, bfloat16 or float16; got {logits.dtype}")
        if draft_lse is not None:
            if draft_logits is None:
                raise InputError("draft_lse: belongs to draft_logits, which are missing")
            if draft_lse.shape != lines or draft_lse.dtype != torch.float32:
                shown = f"{draft_lse.dtype} {list(draft_lse.shape)}"
                raise InputError(f"draft_lse: must be float32 {list(lines)}; got {shown}")
