"""`drawlot generate`: continue prompts."""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from drawlot.engine.args import EngineArgs
from drawlot.entrypoints.cli.console import AsJson, OutputFile, UsageError, load, opened, read_text, write_json
from drawlot.entrypoints.cli.options import with_options
from drawlot.entrypoints.cli.records import request_record
from drawlot.errors import ModelError
from drawlot.params import SamplingParams

if TYPE_CHECKING:
    from drawlot.engine.outputs import RequestOutput

    Stream = Iterator[tuple[int, RequestOutput]]


@with_options()
def generate(
    prompts: Annotated[list[str] | None, typer.Argument(help="Texts to continue; - reads one from stdin.")] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", metavar="FILE", help="Read prompts, one a line.")] = None,
    output: OutputFile = None,
    as_json: AsJson = False,
    echo: Annotated[
        bool | None,
        typer.Option("--echo/--no-echo", help="Show each prompt before its text; the default on a terminal."),
    ] = None,
    params: SamplingParams,
    engine_args: EngineArgs,
) -> None:
    """Continue one prompt or many.

    The text is written while it is drawn. Of several texts each has a header line `==> prompt 1, choice 1 <==`.
    Without prompts, what is piped to stdin is one prompt, less its last line break.
    """
    texts = _prompts(prompts or [], file)
    if not (params.detokenize or as_json):
        raise UsageError("--no-detokenize leaves no text to write; it needs --json")
    if as_json and echo is not None:
        raise UsageError("--echo and --no-echo have no use with --json, which always holds the prompt")
    llm = load(engine_args)
    with opened(output) as out:
        stream = _watched(llm.stream(texts, params), len(texts), out)
        if as_json:
            for finished in _in_order(stream):
                write_json(request_record(finished), out)
        else:
            _write_texts(stream, texts, params.n, out, out.isatty() if echo is None else echo)


def _prompts(arguments: Sequence[str], file: Path | None) -> list[str]:
    texts = [read_text(None) if argument == "-" else argument for argument in arguments]
    if file:
        texts += read_text(file).splitlines()
    if not texts:
        if sys.stdin.isatty():
            raise UsageError("give a prompt, --file FILE, or pipe one to stdin")
        texts = [read_text(None)]
    return texts


def _watched(stream: "Stream", count: int, out: TextIO) -> "Stream":
    """The same stream; for a batch with a bar on stderr, unless the terminal shows the texts themselves.

    Raises:
        ModelError: At the end, if some text was ended by an error.
    """
    from tqdm.auto import tqdm

    failures = []
    with tqdm(total=count, unit="prompt", disable=True if count == 1 or out.isatty() else None) as bar:
        for index, request in stream:
            if request.finished:
                bar.update()
                failures += [(index, each) for each in request.outputs if each.finish_reason == "error"]
            yield index, request
    for index, completion in failures:
        where = f"prompt {index + 1}, choice {completion.index + 1}"
        raise ModelError(f"{where}: ended by an error ({completion.stop_reason}), {len(failures)} in all")


def _in_order(stream: "Stream") -> "Iterator[RequestOutput]":
    """Finished outputs in the order of their prompts, each as soon as those before it are out."""
    waiting, due = {}, 0
    for index, request in stream:
        if request.finished:
            waiting[index] = request
        while due in waiting:
            yield waiting.pop(due)
            due += 1


def _write_texts(stream: "Stream", prompts: Sequence[str], n: int, out: TextIO, echo: bool) -> None:
    """Write the texts in order: the one that is due as it grows, later ones when their turn comes."""
    latest: dict[int, RequestOutput] = {}
    due, written = 0, -1
    for index, request in stream:
        latest[index] = request
        while due < len(prompts) * n and due // n in latest:
            prompt, choice = divmod(due, n)
            completion = latest[prompt].outputs[choice]
            if written < 0:
                header = f"==> prompt {prompt + 1}, choice {choice + 1} <==\n" if len(prompts) * n > 1 else ""
                out.write(header + (prompts[prompt] if echo else ""))
                written = 0
            out.write(completion.text[written:])
            out.flush()
            written = len(completion.text)
            if completion.finish_reason is None:
                break
            out.write("\n")
            due, written = due + 1, -1
