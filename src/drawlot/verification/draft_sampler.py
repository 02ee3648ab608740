"""The draws of a drafter, and the laws that verification has to know them by."""

import torch
from torch import Tensor

from drawlot.errors import InputError, ParameterError
from drawlot.kernels.draft_draws import without_filters
from drawlot.kernels.inputs import RowParams
from drawlot.rng import DRAFT, TARGET
from drawlot.sampling import Sampler
from drawlot.sampling.sampler import check_logits


class DraftSampler:
    """Draws drafts with each request's temperature, and keeps the very log-weights that it drew from.

    Attributes:
        draft_logits: float32 [max_num_reqs, K, vocab_size], written by `draw`, except where it sees greedy requests
            alone: no verification looks at theirs. None with greedy drafts, which are point masses.
        draft_lse: float32 [max_num_reqs, K], the log of the sum of exp over each line of it.
    """

    def __init__(
        self,
        sampler: Sampler,
        *,
        num_speculative_tokens: int,
        greedy: bool = False,
        filters: bool = False,
        coupled: bool = False,
    ) -> None:
        """Build the draws of a drafter.

        Args:
            sampler: Knows the requests.
            num_speculative_tokens: K, the drafts of a request at most.
            greedy: Draft the first token of each row.
            filters: Draft with the request's top_k, top_p and min_p too.
            coupled: Draw with the noise that the target draws with at the same positions. Lossless where all drafts
                are verified by the method coupled, and biased under any other.

        Raises:
            ParameterError: An argument is outside its range.
            BackendError: The sampler's backend does not draw drafts.
        """
        if num_speculative_tokens < 1:
            raise ParameterError("num_speculative_tokens", "must be >= 1", num_speculative_tokens)
        self.sampler = sampler
        self.num_speculative_tokens = num_speculative_tokens
        self._kernels = sampler.backend.needed_for_drafts()
        self._greedy, self._filters, self._coupled = greedy, filters, coupled
        self.draft_logits: Tensor | None = None
        self.draft_lse: Tensor | None = None
        if not greedy:
            # One line more than there are requests: where rows that map to no request write.
            lines = sampler.max_num_reqs + 1, num_speculative_tokens
            self._logits = torch.zeros((*lines, sampler.vocab_size), device=sampler.device)
            self._lse = torch.zeros(lines, device=sampler.device)
            self.draft_logits, self.draft_lse = self._logits[:-1], self._lse[:-1]

    def draw(self, logits: Tensor, idx_mapping: Tensor, anchors: Tensor, step: int) -> Tensor:
        """Draw one draft for each request.

        Args:
            logits: The drafter's, float32, bfloat16 or float16 [R, >= vocab_size]; never written to.
            idx_mapping: int64 [R], state rows; -1: a row to skip.
            anchors: int64 [R], the position, in prompt + output, of the first draft of the step.
            step: Which draft of the step this is, from 0.

        Returns:
            int64 [R], -1 for a bad or skipped row.

        Raises:
            InputError: A shape or dtype does not fit, or there is no such step.
        """
        check_logits(logits, self.sampler.vocab_size, None)
        if not 0 <= step < self.num_speculative_tokens:
            raise InputError(f"step: must be in [0, {self.num_speculative_tokens}); got {step}")
        self.sampler.apply_staged_writes()
        logits = logits[:, : self.sampler.vocab_size]
        params = self.sampler.row_params(idx_mapping, anchors)
        if self._greedy or not bool(params.temperature.any()):
            # The first of equals. A row without a finite maximum is bad; NaN is not below infinity.
            largest, token_ids = logits.max(1)
            good = largest.abs() < torch.inf
            return torch.where(good & (idx_mapping >= 0), token_ids, -1)
        streams = TARGET if self._coupled else DRAFT
        drawn = self._kernels.draw_drafts(
            logits, self._params(params, step), wide=self.sampler.use_fp64_gumbel, streams=streams
        )
        token_ids, weights, lse = drawn
        lines = torch.where(idx_mapping < 0, self.sampler.max_num_reqs, idx_mapping)
        self._logits[lines, step] = weights
        self._lse[lines, step] = lse
        return torch.where(idx_mapping < 0, -1, token_ids)

    def _params(self, params: RowParams, step: int) -> RowParams:
        """The request's own, less what drafts are not drawn with."""
        if not self._filters:
            params = without_filters(params)
        if self._coupled:
            return params._replace(position=params.position + step)
        return params._replace(row=torch.full_like(params.row, step))
