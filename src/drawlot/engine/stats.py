"""Where an engine's time goes."""

from dataclasses import dataclass


@dataclass(slots=True)
class EngineStats:
    """Sums since the engine was built.

    On a GPU the times are the host's: launching a step is its forward, waiting for its results its sampling.
    """

    steps: int = 0
    preemptions: int = 0
    computed_tokens: int = 0
    """Tokens that went through the model, recomputed ones included"""
    generated_tokens: int = 0
    cached_tokens: int = 0
    """Tokens taken from the prefix cache instead"""
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    sampling_seconds: float = 0.0
    """Draws, verification of drafts, logprobs and the copy of results"""
    detokenize_seconds: float = 0.0
    bookkeeping_seconds: float = 0.0
    """The rest of a step: scheduling, metadata, outputs"""

    def parts(self) -> tuple[float, float, float, float]:
        """Time spent on drafts, on the target's forward and draws, on text, and on the rest."""
        target = self.forward_seconds + self.sampling_seconds
        return self.draft_seconds, target, self.detokenize_seconds, self.bookkeeping_seconds
