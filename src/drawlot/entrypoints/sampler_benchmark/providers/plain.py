"""Plain torch, as one would write it: topk or sort, softmax, multinomial; log_softmax for logprobs."""

import torch
from torch import Tensor

from drawlot.entrypoints.sampler_benchmark.providers.dense import Penalties, logprob_ids
from drawlot.entrypoints.sampler_benchmark.providers.interface import Call, Drawn
from drawlot.entrypoints.sampler_benchmark.workload import Workload
from drawlot.outputs import LogprobsTensors


class PlainTorch:
    """Whole batches, one operation after the other, in float32."""

    name = "torch"
    same_tokens = False

    def why_not(self, work: Workload) -> str | None:
        """It runs everywhere."""
        return None

    def rows_per_path(self, work: Workload) -> dict[str, int] | None:
        """There is one path."""
        return None

    def call(self, work: Workload) -> Call:
        """Stages that no row asks for are left out."""
        vocab_size = work.case.vocab_size
        temperature = work.column("temperature", torch.float32).unsqueeze(1)
        greedy, warm = temperature == 0, torch.where(temperature == 0, 1.0, temperature)
        ks = [params.top_k or vocab_size for params in work.params]
        top_k = torch.tensor([[min(k, vocab_size)] for k in ks], device=work.device)
        top_p = work.column("top_p", torch.float32).unsqueeze(1)
        top_p = torch.where(top_p < 1, top_p, torch.inf)
        min_p = work.column("min_p", torch.float32).unsqueeze(1)
        some_k, some_p, some_min_p = work.some("top_k", 0), work.some("top_p", 1), work.some("min_p", 0)
        most = min(max(ks), vocab_size)
        some_greedy, all_greedy = bool(greedy.any()), bool(greedy.all())
        columns = torch.arange(most, device=work.device)
        penalties, asked = Penalties.of(work), logprob_ids(work)
        refused = None if work.allowed is None else ~work.allowed

        def draw(x: Tensor) -> Tensor:
            if penalties is not None:
                x = penalties.dense(x)
            if all_greedy:
                return x.argmax(-1, keepdim=True)
            z = x / warm
            if some_k or some_p:
                # Sorted, so that each filter keeps a prefix.
                z, ids = z.topk(most) if most < vocab_size else z.sort(dim=-1, descending=True, stable=True)
                z = z.masked_fill(columns >= top_k, -torch.inf)
            if some_min_p:
                z = z.masked_fill(z < z.amax(-1, keepdim=True) + min_p.log(), -torch.inf)
            probs = z.softmax(-1)
            if some_p:
                # What comes before a kept token holds less than p.
                probs = probs.masked_fill(probs.cumsum(-1) - probs >= top_p, 0.0)
            drawn = torch.multinomial(probs, 1)
            if some_k or some_p:
                drawn = ids.gather(1, drawn)
            return torch.where(greedy, x.argmax(-1, keepdim=True), drawn) if some_greedy else drawn

        def call(logits: Tensor) -> Drawn:
            x = logits.float()
            if refused is not None:
                # Logprobs are those of what the grammar allows.
                x = x.masked_fill(refused, -torch.inf)
            token = draw(x)
            if asked is None:
                return Drawn(token.squeeze(1), None)
            logprobs = x.log_softmax(-1)
            ids = torch.cat((token, asked.columns(logits)), 1)
            values = logprobs.gather(1, ids)
            rank = (logprobs > values[:, :1]).sum(-1) + 1
            return Drawn(token.squeeze(1), LogprobsTensors(ids, values, rank))

        return call
