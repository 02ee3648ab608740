"""`drawlot score`: the probabilities of label tokens after a query and each of many items."""

import csv
import dataclasses
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from typer.core import TyperCommand

from drawlot.engine.args import EngineArgs
from drawlot.entrypoints.cli.console import AsJson, OutputFile, UsageError, load, opened, read_lines, write_json
from drawlot.entrypoints.cli.options import parse_token_ids, with_options
from drawlot.errors import ParameterError

if TYPE_CHECKING:
    from drawlot.entrypoints.scoring import ScoreOutput

WITHOUT_USE = ("seed", "use_fp64_gumbel", "logprobs_mode", "max_logprobs", "speculative_config")


class SpreadingCommand(TyperCommand):
    """Reads `--labels a b` as `--labels a --labels b`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Spread the options that take several values, then parse as usual."""
        return super().parse_args(ctx, spread(args, ("--items", "--labels")))


def spread(arguments: Sequence[str], options: Sequence[str]) -> list[str]:
    """Repeat each of `options` before every value that follows it."""
    spread_out: list[str] = []
    current, has_value = "", False
    for argument in arguments:
        if argument.startswith("-") and (has_value or not current):
            current, has_value = argument if argument in options else "", False
            spread_out.append(argument)
        else:
            spread_out += [current, argument] if has_value else [argument]
            has_value = bool(current)
    return spread_out


@with_options(exclude=WITHOUT_USE)
def score(
    *,
    query: Annotated[str, typer.Option("--query", help="The text that all items share.")],
    items: Annotated[
        list[str] | None,
        typer.Option(
            "--items", metavar="TEXT ...", help="What follows the query; read from stdin, one a line, if not given."
        ),
    ] = None,
    labels: Annotated[
        list[str] | None,
        typer.Option("--labels", metavar="TEXT ...", help='Labels of one token each; mind the space in " yes".'),
    ] = None,
    label_token_ids: Annotated[
        Any,
        typer.Option("--label-token-ids", metavar="ID,ID,...", parser=parse_token_ids, help="The labels' token ids."),
    ] = None,
    apply_softmax: Annotated[
        bool,
        typer.Option(
            "--apply-softmax/--no-apply-softmax", help="Probabilities among the labels, or in the vocabulary."
        ),
    ] = True,
    item_first: Annotated[bool, typer.Option("--item-first", help="Put each item before the query.")] = False,
    output: OutputFile = None,
    as_json: AsJson = False,
    engine_args: EngineArgs,
) -> None:
    """Give the probabilities of labels after each item.

    They are those of the very next token after query and item; nothing is drawn. A terminal gets a table, a pipe or a
    file tab-separated values, or JSON.
    """
    if bool(labels) == bool(label_token_ids):
        raise UsageError("give either --labels or --label-token-ids")
    if not items and sys.stdin.isatty():
        raise UsageError("give --items, or pipe them to stdin, one a line")
    texts = items or list(read_lines())
    llm = load(engine_args)
    ids = label_token_ids or [_label_id(llm.engine.tokenizer, label) for label in labels or ()]
    names = labels or [str(token_id) for token_id in ids]
    scored = llm.score(query, texts, ids, apply_softmax=apply_softmax, item_first=item_first)
    with opened(output) as out:
        if as_json:
            for item, result in zip(texts, scored):
                write_json({"item": item, "labels": names, **dataclasses.asdict(result)}, out)
        elif out.isatty():
            _write_table(names, texts, scored)
        else:
            _write_lines(names, texts, scored, out)


def _label_id(tokenizer: Any, label: str) -> int:
    ids: list[int] = tokenizer.encode(label, add_special_tokens=False)
    if len(ids) != 1:
        tokens = [tokenizer.decode([token_id]) for token_id in ids]
        raise ParameterError("labels", f"must be one token each, {label!r} is {len(ids)}", tokens)
    return ids[0]


def _write_table(names: Sequence[str], items: Sequence[str], scored: Sequence["ScoreOutput"]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("item")
    for name in names:
        table.add_column(Text(repr(name)), justify="right")
    for item, result in zip(items, scored):
        table.add_row(Text(item), *(f"{value:.6f}" for value in result.scores))
    Console().print(table)


def _write_lines(names: Sequence[str], items: Sequence[str], scored: Sequence["ScoreOutput"], out: TextIO) -> None:
    lines = csv.writer(out, "excel-tab", lineterminator="\n")
    lines.writerow(["item", *names])
    lines.writerows([item, *result.scores] for item, result in zip(items, scored))
