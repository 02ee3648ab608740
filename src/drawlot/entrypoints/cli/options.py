"""Command line options, derived from the fields of `EngineArgs` and `SamplingParams`.

A command asks for them by annotation: `def generate(*, params: SamplingParams, engine_args: EngineArgs)` has one option
for each field. Every option, a command's own as well, can also be set by an environment variable `DRAWLOT_<OPTION>`.
"""

import functools
import inspect
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import Field, fields, is_dataclass
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, NamedTuple, get_args

import typer
from typer.models import OptionInfo

from drawlot.engine.args import environment_variable
from drawlot.engine.speculative_config import SpeculativeConfig

Command = Callable[..., None]


def with_options(
    *, exclude: Collection[str] = (), defaults: Mapping[str, Any] = MappingProxyType({})
) -> Callable[[Command], Command]:
    """Replace the parameters of a command that are dataclasses by one option for each of their fields.

    Fields named in `exclude`, and fields whose name an earlier parameter has, keep their defaults; `defaults` holds
    those that the command has of its own.
    """

    def decorate(command: Command) -> Command:
        options: dict[str, inspect.Parameter] = {}
        groups: dict[str, tuple[Any, list[Field[Any]]]] = {}
        for parameter in inspect.signature(command).parameters.values():
            group = parameter.annotation
            if not (is_dataclass(group) and isinstance(group, type)):
                options[parameter.name] = _with_environment(parameter)
                continue
            chosen = [field for field in fields(group) if field.name not in exclude and field.name not in options]
            groups[parameter.name] = group, chosen
            options |= {field.name: _with_environment(_option(group, field, defaults)) for field in chosen}

        @functools.wraps(command)
        def run(**values: Any) -> None:
            built = {name: _build(group, chosen, values) for name, (group, chosen) in groups.items()}
            command(**values, **built)

        run.__signature__ = inspect.Signature(list(options.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {name: option.annotation for name, option in options.items()}
        return run

    return decorate


def parse_token_ids(text: str) -> list[int]:
    """`1,2,3`, separated by commas or spaces, as a list of token ids."""
    try:
        return [int(part) for part in re.split(r"[,\s]+", text.strip())]
    except ValueError:
        raise typer.BadParameter(f"must be token ids separated by commas; got {text!r}") from None


def _parse_bias(text: str) -> tuple[int, float]:
    token_id, _, value = text.partition("=")
    try:
        return int(token_id), float(value)
    except ValueError:
        raise typer.BadParameter(f"must be ID=VALUE; got {text!r}") from None


def _parse_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"must be a JSON object ({error}); got {text!r}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"must be a JSON object; got {text!r}")
    return value


class _Form(NamedTuple):
    """How a field that is no single value is written on the command line."""

    annotation: Any
    metavar: str
    parser: Callable[[str], Any] | None = None
    collect: Callable[[Any], Any] = list


FORMS: dict[Any, _Form] = {
    Mapping[int, float]: _Form(list[str], "ID=VALUE", _parse_bias, dict),
    Sequence[int]: _Form(str, "ID,ID,...", parse_token_ids),
    Sequence[str]: _Form(list[str], "TEXT"),
    SpeculativeConfig: _Form(str, "JSON", _parse_object, dict),
}


def _build(group: type, chosen: Iterable[Field[Any]], values: dict[str, Any]) -> object:
    given = {field: values.pop(field.name) for field in chosen}
    return group(
        **{
            field.name: FORMS[_kind(field)].collect(value) if _kind(field) in FORMS else value
            for field, value in given.items()
            if value not in (None, [])
        }
    )


def _option(group: type, field: Field[Any], defaults: Mapping[str, Any]) -> inspect.Parameter:
    help = field.metadata.get("help") or _documented(group)[field.name]
    annotation, default = _kind(field), defaults.get(field.name, field.default)
    info: dict[str, Any] = {}
    if field.metadata.get("choices"):
        info = {"metavar": "|".join(field.metadata["choices"])}
    elif annotation in FORMS:
        form = FORMS[annotation]
        annotation, default, info = form.annotation, None, {"metavar": form.metavar, "parser": form.parser}
        if annotation == list[str]:
            help = f"{help.rstrip('.')}. May be repeated."
    if default is None:
        annotation = annotation | None
    annotation = Annotated[annotation, typer.Option(help=help, **info)]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _with_environment(parameter: inspect.Parameter) -> inspect.Parameter:
    annotation, *infos = get_args(parameter.annotation)
    infos = [copy(info) for info in infos]
    for info in infos:
        if isinstance(info, OptionInfo):
            info.envvar, info.show_envvar = environment_variable(_long_name(info) or parameter.name), False
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, *infos])


def _long_name(info: OptionInfo) -> str:
    # Inside Annotated the first declaration of typer.Option sits where its default would be.
    declared = (info.default, *(info.param_decls or ()))
    names = [name for name in declared if isinstance(name, str) and name.startswith("--")]
    return names[0].split("/")[0].lstrip("-").replace("-", "_") if names else ""


def _kind(field: Field[Any]) -> Any:
    """The type of a field, without None."""
    if not isinstance(field.type, UnionType):
        return field.type
    return next(kind for kind in get_args(field.type) if kind is not NoneType)


@functools.cache
def _documented(group: type) -> dict[str, str]:
    """The lines `name: text` under `Attributes:` in the docstring of a class."""
    documented = (inspect.getdoc(group) or "").partition("Attributes:")[2]
    return dict(re.findall(r"^    (\w+): (.+)$", documented, flags=re.MULTILINE))
