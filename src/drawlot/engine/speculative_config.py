"""`SpeculativeConfig`: how an engine drafts tokens and verifies them, defined once."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from numbers import Real
from typing import Any, Self

from drawlot.engine.fields import argument, check_name, checked
from drawlot.errors import ParameterError

METHODS = ("ngram", "draft_model", "eagle")
REJECTION_SAMPLE_METHODS = ("standard", "block", "coupled", "synthetic")
DRAFT_SAMPLE_METHODS = ("probabilistic", "greedy")
# A row within a step is 16 bits of the noise's counter; far fewer are of any use.
_MOST_DRAFTS = 255
_FIELD = "speculative_config"
# What has a use with some methods only, and its default there.
_ONLY_WITH: dict[str, tuple[tuple[str, ...], Any]] = {
    "prompt_lookup_min": (("ngram",), 2),
    "prompt_lookup_max": (("ngram",), 4),
    "draft_sample_method": (("draft_model", "eagle"), "probabilistic"),
    "draft_filters": (("draft_model", "eagle"), False),
}
_DEFAULT_MODEL = {"ngram": None, "draft_model": "tiny-draft", "eagle": "tiny-eagle"}


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculativeConfig:
    """How to draft and verify.

    Raises:
        ParameterError: A value breaks its rule, or a key has no use beside the others; the message names the key, the
            rule and the value.
    """

    method: str = argument(help="Who drafts.", choices=METHODS)
    model: str | None = argument(
        None, help="The drafter's weights: tiny-draft for draft_model and tiny-eagle for eagle if not set."
    )
    num_speculative_tokens: int = argument(4, help="Drafts of a step, at most.", high=_MOST_DRAFTS)
    rejection_sample_method: str = argument(
        "standard", help="How drafts are verified; all but synthetic keep the law.", choices=REJECTION_SAMPLE_METHODS
    )
    draft_sample_method: str | None = argument(
        None,
        help="How a model drafts: with the request's temperature (probabilistic, if not set), or its best tokens.",
        choices=DRAFT_SAMPLE_METHODS,
    )
    draft_filters: bool | None = argument(
        None, help="Draft with the request's top_k, top_p and min_p as well; false if not set."
    )
    synthetic_acceptance_rates: Sequence[float] | None = argument(
        None, help="For synthetic: how often draft 1, drafts 1 and 2, .. are all accepted; one rate for each draft."
    )
    prompt_lookup_min: int | None = argument(None, help="For ngram: tokens of the shortest match; 2 if not set.")
    prompt_lookup_max: int | None = argument(None, help="For ngram: tokens of the longest match; 4 if not set.")

    def __post_init__(self) -> None:
        for each in fields(self):
            if each.name != "synthetic_acceptance_rates":
                object.__setattr__(self, each.name, checked(each, getattr(self, each.name), f"{_FIELD}."))
        for name, (methods, default) in _ONLY_WITH.items():
            if self.method in methods:
                self._default(name, default)
            elif getattr(self, name) is not None:
                raise ParameterError(f"{_FIELD}.{name}", f"has no use with {self.method}", getattr(self, name))
        if self.method == "ngram" and self.model is not None:
            raise ParameterError(f"{_FIELD}.model", "has no use with ngram", self.model)
        self._default("model", _DEFAULT_MODEL[self.method])
        if self.draft_filters and self.draft_sample_method == "greedy":
            raise ParameterError(f"{_FIELD}.draft_filters", "has no use with greedy drafts", self.draft_filters)
        low, high = self.prompt_lookup_min, self.prompt_lookup_max
        if low is not None and high is not None and low > high:
            raise ParameterError(f"{_FIELD}.prompt_lookup_max", f"must be >= prompt_lookup_min ({low})", high)
        self._check_rates()

    @classmethod
    def of(cls, value: object) -> Self:
        """From a mapping, or from the text of a JSON object.

        Raises:
            ParameterError: It is neither, a key is unknown, or a value breaks its rule.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise ParameterError(_FIELD, f"must be a JSON object ({error})", value) from None
        if not isinstance(value, Mapping):
            raise ParameterError(_FIELD, 'must be a mapping such as {"method": "ngram"}', value)
        names = [each.name for each in fields(cls)]
        for name, entry in value.items():
            check_name(str(name), names, f"a key of {_FIELD}", entry)
        if "method" not in value:
            raise ParameterError(f"{_FIELD}.method", f"is needed: one of {', '.join(METHODS)}", dict(value))
        return cls(**value)

    def _default(self, name: str, default: Any) -> None:
        if getattr(self, name) is None:
            object.__setattr__(self, name, default)

    def _check_rates(self) -> None:
        field, rates = f"{_FIELD}.synthetic_acceptance_rates", self.synthetic_acceptance_rates
        if self.rejection_sample_method != "synthetic":
            if rates is not None:
                raise ParameterError(field, f"has no use with {self.rejection_sample_method}", rates)
            return
        rule = f"must be {self.num_speculative_tokens} numbers in [0, 1], none above the one before it"
        listed = [] if isinstance(rates, str) or not isinstance(rates, Iterable) else list(rates)
        numbers = [1.0, *(x for x in listed if isinstance(x, Real) and not isinstance(x, bool))]
        if len(listed) != self.num_speculative_tokens or len(numbers) != len(listed) + 1:
            raise ParameterError(field, rule, rates)
        # Written so that NaN fails.
        if not all(0 <= after <= before for before, after in pairwise(numbers)):
            raise ParameterError(field, rule, rates)
        object.__setattr__(self, "synthetic_acceptance_rates", tuple(map(float, listed)))
