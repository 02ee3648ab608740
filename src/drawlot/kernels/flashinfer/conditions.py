"""Which batches FlashInfer may take."""

from drawlot.kernels.inputs import BatchFacts, LogprobsWanted


def why_own(facts: BatchFacts, wanted: LogprobsWanted | None, *, wide: bool) -> str | None:
    """Why drawlot's own backend takes the whole batch; None: FlashInfer does."""
    if not facts.filtered:
        return "no row has top_k or top_p"
    if facts.greedy:
        return "a row is greedy"
    if facts.seeded:
        return "a row has a seed"
    if wide:
        return "the noise is float64"
    if wanted is not None and wanted.mode.startswith("processed"):
        return "processed logprobs are wanted"
    return None
