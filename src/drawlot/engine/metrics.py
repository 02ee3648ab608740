"""Counters that a server can export, in plain Python; names follow the field's."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_PREFIX = "drawlot:spec_decode"


class Sample(NamedTuple):
    """One value of a counter."""

    name: str
    help: str
    labels: dict[str, str]
    value: float


@dataclass(slots=True)
class SpeculativeCounters:
    """What became of the drafts of an engine since it was built: sums that only grow.

    A step is one choice's and had drafts. Entry i of `drafted` counts the steps that had a draft i, of `reached` those
    in which all drafts before it were accepted, of `accepted` those in which it was accepted too.
    """

    num_drafts: int = 0
    """Steps"""
    num_emitted_tokens: int = 0
    """Drafts accepted, and the token after them"""
    drafted: list[int] = field(default_factory=list)
    reached: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=lambda: {"draft": 0.0, "verify": 0.0, "other": 0.0})
    """Of all steps of the engine: to draft, the target's forward and draws, the rest"""

    @property
    def num_draft_tokens(self) -> int:
        """Tokens drafted."""
        return sum(self.drafted)

    @property
    def num_accepted_tokens(self) -> int:
        """Drafts accepted."""
        return sum(self.accepted)

    @property
    def mean_emitted(self) -> float:
        """Tokens that a step emits; 0 if there was none."""
        return self.num_emitted_tokens / max(1, self.num_drafts)

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
        self.num_drafts += 1
        self.num_emitted_tokens += emitted
        for each in (self.drafted, self.reached, self.accepted):
            each += [0] * (drafted - len(each))
        for position in range(drafted):
            self.drafted[position] += 1
            self.reached[position] += accepted >= position
            self.accepted[position] += accepted > position

    def collect(self) -> Iterator[Sample]:
        """Every value, for whoever exports them."""
        for name, help, value in (
            ("num_drafts", "Steps that verified drafts.", self.num_drafts),
            ("num_draft_tokens", "Tokens drafted.", self.num_draft_tokens),
            ("num_accepted_tokens", "Drafts accepted.", self.num_accepted_tokens),
            ("num_emitted_tokens", "Tokens emitted by steps that verified drafts.", self.num_emitted_tokens),
        ):
            yield Sample(f"{_PREFIX}_{name}", help, {}, value)
        for name, help, values in (
            ("num_draft_tokens_per_pos", "Tokens drafted, by position.", self.drafted),
            ("num_reached_tokens_per_pos", "Drafts with all before them accepted, by position.", self.reached),
            ("num_accepted_tokens_per_pos", "Drafts accepted, by position.", self.accepted),
        ):
            for position, value in enumerate(values):
                yield Sample(f"{_PREFIX}_{name}", help, {"position": str(position)}, value)
        for part, seconds in self.seconds.items():
            yield Sample(f"{_PREFIX}_seconds", "Time of the engine's steps.", {"part": part}, seconds)
