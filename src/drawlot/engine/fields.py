"""Fields of options that users set: help, choices and range stand beside the default, and one function checks them."""

import difflib
import os
from collections.abc import Iterable
from dataclasses import MISSING, Field, field
from numbers import Integral
from types import NoneType
from typing import Any, get_args

from drawlot.errors import ParameterError
from drawlot.params import INT64_MAX, INT64_MIN


def argument(
    default: Any = MISSING, *, help: str, choices: tuple[str, ...] = (), low: int = 1, high: int = INT64_MAX
) -> Any:
    """A field of a dataclass; `choices` are of a string, `low` and `high` of an integer."""
    return field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high})


def checked(argument: Field[Any], value: object, prefix: str = "") -> object:
    """The value, of the type that the field declares: bool, int or str, or None where the field allows it.

    Raises:
        ParameterError: It breaks the field's rule; `prefix` stands before the field's name.
    """
    name = prefix + argument.name
    if value is None and NoneType in get_args(argument.type):
        return None
    if argument.type in (bool, bool | None):
        if not isinstance(value, bool):
            raise ParameterError(name, "must be True or False", value)
        return value
    if argument.type in (int, int | None):
        return _checked_integer(argument, name, value)
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(value, str) or not value:
        raise ParameterError(name, "must be a non-empty string", value)
    choices = argument.metadata["choices"]
    if choices and value not in choices:
        raise ParameterError(name, f"must be one of {', '.join(choices)}", value)
    return value


def check_name(name: str, names: Iterable[str], what: str, value: object) -> None:
    """Check that a name is known.

    Raises:
        ParameterError: It is not; the message offers the nearest.
    """
    names = list(names)
    if name not in names:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.0)[0]
        raise ParameterError(name, f"is not {what} (the nearest is {nearest})", value)


def _checked_integer(argument: Field[Any], name: str, value: object) -> int:
    low, high = argument.metadata["low"], argument.metadata["high"]
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ParameterError(name, "must be an integer", value)
    if not low <= value <= high:
        rule = "must fit in int64" if low == INT64_MIN else f"must be >= {low}"
        raise ParameterError(name, rule if high == INT64_MAX else f"must be in [{low}, {high}]", value)
    return int(value)
