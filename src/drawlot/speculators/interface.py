"""What engine and speculator say to each other. R: requests of a step, K: drafts of one at most, V: vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class StepRequest(NamedTuple):
    """A request of the step that is about to run."""

    row: int
    """Its row in the tables of cache and sampler"""
    token_ids: Sequence[int]
    """Prompt and output, as far as they are known"""
    start: int
    """The target has computed that many of them"""
    end: int
    """It will have computed that many after the step"""
    num_drafts: int
    """Drafts wanted, at most; above 0 only where end == len(token_ids)"""


class Drafts(NamedTuple):
    """What a speculator proposes for a step."""

    token_ids: Tensor
    """int64 [R, K], -1 padded"""
    num_drafts: Tensor
    """int64 [R]: of each request, at most what it wants"""
    logits: Tensor | None = None
    """float32 [max_num_reqs, K, V] by row: what the drafts were drawn from, filtered tokens -inf; None: the drafts are
    certain (a point mass)"""
    lse: Tensor | None = None
    """float32 [max_num_reqs, K]: log-sum-exp of `logits`"""


class Speculator(ABC):
    """Proposes drafts before the target's forward of each step.

    One that keeps a cache keeps it in the target's blocks, by pools of its own, and follows the target: after a step it
    holds all that the blocks of the prefix cache promise, for whoever shares them, also if their first owner did not
    draft.
    """

    reads_hidden_states = False
    """`observe` is called after each forward"""

    @abstractmethod
    def add_request(self, row: int, num_cached: int) -> None:
        """Begin a request, new or come back, whose first `num_cached` tokens are in the cache."""

    @abstractmethod
    def propose(self, requests: Sequence[StepRequest]) -> Drafts:
        """Draft for the requests of a step."""

    def observe(self, requests: Sequence[StepRequest], hidden_states: Tensor) -> None:  # noqa: B027
        """See the states [T, D] of a forward, as the target's `lm_head` reads them.

        Of each request, in the order given, those of its tokens from `start` to `end` and of its num_drafts drafts.
        """

    def clear(self, blocks: Tensor) -> None:  # noqa: B027
        """Zero blocks int64 [N] of the cache, which hold NaN."""
