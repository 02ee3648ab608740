"""`drawlot`: the command line. stdout carries data only; a user's mistake is one line on stderr.

Exit codes: 0 done, 1 failure, 2 wrong usage (130 after Ctrl-C, as shells expect).
"""

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated

import typer

from drawlot.entrypoints.cli.bench import bench_app
from drawlot.entrypoints.cli.chat import chat
from drawlot.entrypoints.cli.generate import generate
from drawlot.entrypoints.cli.info import info
from drawlot.entrypoints.cli.score import SpreadingCommand, score
from drawlot.errors import DrawlotError, ParameterError

app = typer.Typer(
    help="Turns an LLM's logits into tokens: exactly, fast and reproducibly.",
    epilog="Every option can also be set by an environment variable: --max-num-seqs by DRAWLOT_MAX_NUM_SEQS.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(metadata.version("drawlot"))
        raise typer.Exit


@app.callback()
def _drawlot(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", is_eager=True, callback=_show_version)
    ] = False,
) -> None:
    pass


app.command()(generate)
app.command()(chat)
app.command(cls=SpreadingCommand)(score)
app.command()(info)
app.add_typer(bench_app, name="bench")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        code = app(
            list(sys.argv[1:] if arguments is None else arguments) or ["--help"], "drawlot", standalone_mode=False
        )
        sys.stdout.flush()
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        return _fail(error.format_message(), error.exit_code, context.command_path if context else "drawlot")
    except ParameterError as error:
        return _fail(str(error), 2)
    except BrokenPipeError:
        # Whoever read our output has left. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), 1)
    except DrawlotError as error:
        return _fail(str(error), 1)
    return code or 0


def _fail(message: str, code: int, program: str = "drawlot") -> int:
    print(f"{program}: {' '.join(message.split())}", file=sys.stderr)
    return code
