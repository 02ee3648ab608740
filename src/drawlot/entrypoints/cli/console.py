"""What the commands share: loading the model quietly, where output goes, valid JSON."""

import contextlib
import dataclasses
import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from drawlot.engine.args import EngineArgs
from drawlot.errors import ParameterError

if TYPE_CHECKING:
    from drawlot.entrypoints.llm import LLM


class UsageError(typer.TyperException):
    """A command was called in a way that cannot work; the message is its one line."""

    exit_code = 2


AsJson = Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, not to stdout.")
]


def load(engine_args: EngineArgs) -> "LLM":
    """The model behind a command."""
    with loading():
        from drawlot.entrypoints.llm import LLM

        return LLM(**dataclasses.asdict(engine_args))


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Where the heavy libraries are imported: they log, warn and draw bars on a terminal only."""
    _quiet_libraries()
    # What an import makes of a KeyboardInterrupt is not ours to predict: until it is done, Ctrl-C ends the process.
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _quiet_libraries() -> None:
    if not sys.stderr.isatty():
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        if not sys.warnoptions:
            warnings.simplefilter("ignore")


@contextlib.contextmanager
def opened(path: Path | None) -> Iterator[TextIO]:
    """The file that output goes to, stdout without one."""
    if path is None:
        yield sys.stdout
        return
    with path.open("w", encoding="utf-8") as file:
        yield file


def write_json(value: object, out: TextIO) -> None:
    """One line of valid JSON; infinite and undefined numbers are null."""
    out.write(json.dumps(_finite(value), ensure_ascii=False, allow_nan=False) + "\n")
    out.flush()


def read_text(path: Path | None) -> str:
    """A file, or stdin, without its last line break.

    Raises:
        ParameterError: It is not UTF-8.
    """
    data = sys.stdin.buffer.read() if path is None else path.read_bytes()
    return _decoded(data, str(path or "stdin")).removesuffix("\n").removesuffix("\r")


def read_lines() -> Iterator[str]:
    """The lines of stdin as they come, without their line breaks; errors as in `read_text`."""
    for line in sys.stdin.buffer:
        yield _decoded(line, "stdin").rstrip("\r\n")


def _decoded(data: bytes, source: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ParameterError(source, "must be UTF-8", data[error.start : error.end]) from None


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return value
