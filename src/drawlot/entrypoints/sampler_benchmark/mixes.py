"""The parameters that are timed. A mix gives row i the i-th of its kinds, over and over."""

from dataclasses import replace

from drawlot.params import MAX_LOGPROB_TOKEN_IDS, SamplingParams

FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.9, logprobs=0)
UNFILTERED = SamplingParams(temperature=0.8, logprobs=0)

MIXES: dict[str, tuple[SamplingParams, ...]] = {
    "k50p90": (FILTERED,),
    "no-filter": (UNFILTERED,),
    "greedy": (SamplingParams(temperature=0, logprobs=0),),
    "top-p": (SamplingParams(temperature=0.8, top_p=0.9, logprobs=0),),
    "min-p": (SamplingParams(temperature=0.8, min_p=0.05, logprobs=0),),
    "flat": (SamplingParams(temperature=1.5, top_p=0.95, logprobs=0),),
    "mixed": (
        SamplingParams(temperature=0, logprobs=0),
        SamplingParams(),
        SamplingParams(temperature=0.8, top_k=50, logprobs=5),
        SamplingParams(temperature=0.8, top_p=0.9),
        SamplingParams(temperature=0.8, min_p=0.05, logprobs=0),
        SamplingParams(temperature=0.8, top_k=50, top_p=0.9, repetition_penalty=1.2, logprobs=0),
        SamplingParams(temperature=0.7, top_p=0.95, frequency_penalty=0.5, presence_penalty=0.5),
        FILTERED,
    ),
    "top20": (replace(FILTERED, logprobs=20),),
    "top20-no-filter": (replace(UNFILTERED, logprobs=20),),
    "ids128": (replace(FILTERED, logprobs=None),),
    "no-logprobs": (replace(FILTERED, logprobs=None),),
    "no-filter-no-logprobs": (replace(UNFILTERED, logprobs=None),),
    "penalties": (replace(FILTERED, repetition_penalty=1.2, frequency_penalty=0.5, presence_penalty=0.5),),
    "grammar": (FILTERED,),
}
"""All but `mixed`, where rows differ in it, and those without ask for the drawn token's raw logprob and rank."""

ALLOWED_SHARE = {"grammar": 0.9}
"""Of the vocabulary, by a bitmask over each row; mixes that are not here have none"""


def row_params(mix: str, rows: int, vocab_size: int) -> list[SamplingParams]:
    """The parameters of each row, with a seed of its own, so that every backend must draw the same token."""
    kinds = MIXES[mix]
    if mix == "ids128":
        kinds = tuple(replace(kind, logprob_token_ids=_spread_ids(vocab_size)) for kind in kinds)
    return [replace(kinds[i % len(kinds)], seed=1000 + i) for i in range(rows)]


def _spread_ids(vocab_size: int) -> range:
    """As many ids as a request may name, over the whole vocabulary."""
    step = max(1, vocab_size // MAX_LOGPROB_TOKEN_IDS)
    return range(0, vocab_size, step)[:MAX_LOGPROB_TOKEN_IDS]
