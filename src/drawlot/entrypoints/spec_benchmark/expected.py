"""How many drafts should be accepted: for each verified draft, the mass that target and drafter have in common."""

import torch

from drawlot.engine.drafting import Verification
from drawlot.sampling import Sampler


class ExpectedAcceptance:
    """Adds up sum_x min(p(x), q(x)) of the drafts whose predecessors were accepted.

    That is the probability with which `standard` accepts such a draft (Leviathan et al., arXiv 2211.17192, theorem
    3.5), and the most that any rule which judges one draft at a time can. Parameters that edit logits (penalties, bias,
    masks) are not looked at. A greedy request's p and q are its best token and its draft.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.total = 0.0
        self.variance = 0.0
        """Of the number of accepted drafts under `standard`"""

    def __call__(self, verification: Verification) -> None:
        """Look at a verification; an observer for `Drafting.on_verified`."""
        logits, rows, drafts, q, out = verification
        counts = rows.cu_num_logits.diff().to(torch.int64)
        request = torch.arange(len(counts), device=logits.device).repeat_interleave(counts)
        place = rows.local_positions
        width = drafts.shape[1]
        draft = drafts[request, place.clamp(max=width - 1)]
        reached = (place < width) & (draft >= 0) & (place <= out.num_accepted[request])
        request, place, draft = request[reached], place[reached], draft[reached]
        if not len(request):
            return
        state_rows = rows.idx_mapping[request]
        params = self._sampler.row_params(state_rows, rows.positions[reached])
        kernels = self._sampler.backend.needed_for_drafts()
        p = kernels.log_weights(logits[reached, : self._sampler.vocab_size], params).double().softmax(1)
        common = p.gather(1, draft.unsqueeze(1)).squeeze(1)
        if q.logits is not None:
            both = torch.minimum(p, q.logits[state_rows, place].double().softmax(1)).sum(1)
            common = torch.where(params.temperature == 0, common, both)
        self.total += float(common.sum())
        self.variance += float((common * (1 - common)).sum())
