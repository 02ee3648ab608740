"""Counters that a server can export, in plain Python; names follow the field's."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Sample(NamedTuple):
    """One value of a counter."""

    name: str
    help: str
    labels: dict[str, str]
    value: float


class Counter:
    """A sum that only grows, one for each value of its label if it has one."""

    def __init__(self, name: str, help: str, label: str | None = None) -> None:
        self.name = name
        self.help = help
        self.label = label
        self._values: dict[str, float] = {} if label else {"": 0}

    def add(self, amount: float, label: object = "") -> None:
        """Add to the sum of a label."""
        self._values[str(label)] = self._values.get(str(label), 0) + amount

    def value(self, label: object = "") -> float:
        """The sum of a label, 0 if nothing was added."""
        return self._values.get(str(label), 0)

    def samples(self) -> Iterator[Sample]:
        """Every value."""
        for label, value in self._values.items():
            yield Sample(self.name, self.help, {self.label: label} if self.label else {}, value)


class SpeculativeCounters:
    """What became of the drafts of an engine since it was built.

    Positions count from 0. Of those below, position i of `drafted` counts the steps that had a draft i, of `reached`
    those in which the drafts before it were accepted as well, of `accepted` those in which it was accepted too.
    """

    def __init__(self) -> None:
        name = "drawlot:spec_decode"
        self.num_drafts = Counter(f"{name}_num_drafts", "Verified steps of choices that had drafts.")
        self.num_draft_tokens = Counter(f"{name}_num_draft_tokens", "Tokens drafted.")
        self.num_accepted_tokens = Counter(f"{name}_num_accepted_tokens", "Drafts accepted.")
        self.num_emitted_tokens = Counter(f"{name}_num_emitted_tokens", "Tokens emitted by steps with drafts.")
        self.drafted = Counter(f"{name}_num_draft_tokens_per_pos", "Tokens drafted, by position.", "position")
        self.reached = Counter(
            f"{name}_num_reached_tokens_per_pos", "Drafts whose predecessors were accepted.", "position"
        )
        self.accepted = Counter(f"{name}_num_accepted_tokens_per_pos", "Drafts accepted, by position.", "position")
        self.seconds = Counter(f"{name}_seconds", "Time of the engine's steps: draft, verify, other.", "part")

    def collect(self) -> list[Sample]:
        """Every value of every counter."""
        counters: Sequence[Counter] = list(vars(self).values())
        return [sample for counter in counters for sample in counter.samples()]

    def add_step(self, drafted: int, accepted: int, emitted: int) -> None:
        """Count one step of one choice that had drafts."""
        self.num_drafts.add(1)
        self.num_draft_tokens.add(drafted)
        self.num_accepted_tokens.add(accepted)
        self.num_emitted_tokens.add(emitted)
        for position in range(drafted):
            self.drafted.add(1, position)
            self.reached.add(accepted >= position, position)
            self.accepted.add(accepted > position, position)

    def conditional_acceptance(self) -> list[float]:
        """For each position: how often a draft was accepted if those before it were."""
        return self._ratios(self.reached)

    def unconditional_acceptance(self) -> list[float]:
        """For each position: how often a draft was accepted, of the steps that had one there."""
        return self._ratios(self.drafted)

    def mean_emitted(self) -> float:
        """Tokens that a step with drafts emits; 0 if there was none."""
        return self.num_emitted_tokens.value() / max(1, self.num_drafts.value())

    def _ratios(self, of: Counter) -> list[float]:
        positions = [sample.labels["position"] for sample in self.drafted.samples()]
        return [self.accepted.value(p) / of.value(p) if of.value(p) else 0.0 for p in positions]
