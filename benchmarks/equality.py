"""The gate before any timing: what is timed draws the reference's tokens."""

import torch

from benchmarks.cpu_cases import Workload
from drawlot.kernels.inputs import SampledRows

NEAR_TIE = 2.0**-18
"""The only excuse for another token than the reference's; see the semantics, section 2."""


def differences(work: Workload) -> list[str]:
    """One line for each row that is not as the reference says; near ties are printed and excused."""
    drawn = work.drawlot()
    reference = work.sampler("reference")
    seen: list[SampledRows] = []
    sample_rows = reference.backend.sample_rows

    def watched(*args, **kwargs):
        seen.append(sample_rows(*args, **kwargs))
        return seen[-1]

    reference.backend = reference.backend._replace(sample_rows=watched)
    expected = reference(work.logits, work.rows)
    margins = seen[0].margin
    wrong = []
    for i in (drawn.token_ids != expected.token_ids).nonzero().flatten().tolist():
        line = f"{work.case.name}, row {i}: token {drawn.token_ids[i]}, reference {expected.token_ids[i]}"
        if margins is not None and margins[i] < NEAR_TIE:
            print(f"excused, a near tie: {line}")
        else:
            wrong.append(line)
    if expected.logprobs is not None:
        same = drawn.token_ids == expected.token_ids
        close = drawn.logprobs is not None and torch.allclose(
            drawn.logprobs.logprobs[same], expected.logprobs.logprobs[same], rtol=2e-6, atol=2e-6
        )
        if not close:
            wrong.append(f"{work.case.name}: logprobs differ from the reference's")
    return wrong
