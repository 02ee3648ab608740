"""What became of drafts: of a request's, and of an engine's, as counters that a server can export."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

_PREFIX = "drawlot:spec_decode"


@dataclass(slots=True)
class SpeculativeMetrics:
    """What became of drafts; names as in vLLM where it has them.

    A step is one choice's and had drafts. Entry i of `drafted` counts the steps that had a draft i, of `reached` those
    in which all drafts before it were accepted, of `accepted` those in which it was accepted too.
    """

    num_spec_steps: int = 0
    num_emitted_tokens: int = 0
    """By these steps: drafts accepted, and the token after them"""
    drafted: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "verify": 0.0, "other": 0.0})
    """Of the engine's steps: to draft; the target's forward and draws; the rest. A request's are those of the steps in
    which it wanted drafts, shared with all others of the batch"""

    @property
    def num_draft_tokens(self) -> int:
        """Tokens drafted."""
        return sum(self.drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Drafts accepted."""
        return sum(self.accepted)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted of drafted; 0 if nothing was drafted."""
        return self.num_accepted_draft_tokens / max(1, self.num_draft_tokens)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that a step emits; 0 if there was none."""
        return self.num_emitted_tokens / max(1, self.num_spec_steps)

    @property
    def acceptance_histogram(self) -> list[int]:
        """Entry a: steps that accepted a drafts."""
        at_least = [self.num_spec_steps, *self.accepted]
        return [here - beyond for here, beyond in zip(at_least, [*self.accepted, 0])]

    @property
    def conditional_acceptance(self) -> list[float]:
        """For each position: how often a draft was accepted if those before it were."""
        return [accepted / max(1, reached) for accepted, reached in zip(self.accepted, self.reached)]

    @property
    def unconditional_acceptance(self) -> list[float]:
        """For each position: how often a draft was accepted, of the steps that had one there."""
        return [accepted / max(1, drafted) for accepted, drafted in zip(self.accepted, self.drafted)]

    def add_step(self, drafted: int, accepted: int, emitted: int) -> None:
        """Count one step."""
        self.num_spec_steps += 1
        self.num_emitted_tokens += emitted
        for each in (self.drafted, self.reached, self.accepted):
            each += [0] * (drafted - len(each))
        for position in range(drafted):
            self.drafted[position] += 1
            self.reached[position] += accepted >= position
            self.accepted[position] += accepted > position

    def add_seconds(self, seconds: Mapping[str, float]) -> None:
        """Add the time of a step of the engine."""
        for part, more in seconds.items():
            self.seconds[part] += more


class Sample(NamedTuple):
    """One value of a counter."""

    name: str
    help: str
    labels: dict[str, str]
    value: float


def counters(metrics: SpeculativeMetrics) -> Iterator[Sample]:
    """The metrics of an engine as counters, which only grow."""
    for name, help, value in (
        ("num_drafts", "Steps that verified drafts.", metrics.num_spec_steps),
        ("num_draft_tokens", "Tokens drafted.", metrics.num_draft_tokens),
        ("num_accepted_tokens", "Drafts accepted.", metrics.num_accepted_draft_tokens),
        ("num_emitted_tokens", "Tokens emitted by steps that verified drafts.", metrics.num_emitted_tokens),
    ):
        yield Sample(f"{_PREFIX}_{name}", help, {}, value)
    for name, help, values in (
        ("num_draft_tokens_per_pos", "Tokens drafted, by position.", metrics.drafted),
        ("num_reached_tokens_per_pos", "Drafts with all before them accepted, by position.", metrics.reached),
        ("num_accepted_tokens_per_pos", "Drafts accepted, by position.", metrics.accepted),
    ):
        for position, value in enumerate(values):
            yield Sample(f"{_PREFIX}_{name}", help, {"position": str(position)}, value)
    for part, seconds in metrics.seconds.items():
        yield Sample(f"{_PREFIX}_seconds", "Time of the engine's steps.", {"part": part}, seconds)
