"""`drawlot chat`: talk with a model that has a chat template."""

import sys
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from drawlot.engine.args import EngineArgs
from drawlot.entrypoints.cli.console import AsJson, load, read_lines, write_json
from drawlot.entrypoints.cli.options import with_options
from drawlot.errors import ModelError
from drawlot.params import SamplingParams

if TYPE_CHECKING:
    from drawlot.engine.outputs import RequestOutput

WITHOUT_USE = ("n", "logprobs", "prompt_logprobs", "logprob_token_ids", "detokenize", "logprobs_mode", "max_logprobs")


@with_options(exclude=WITHOUT_USE, defaults={"max_tokens": 256})
def chat(
    message: Annotated[
        str | None, typer.Argument(help="Say this alone; without it every line of stdin is said.")
    ] = None,
    *,
    system: Annotated[str | None, typer.Option("--system", help="A system message to begin with.")] = None,
    as_json: AsJson = False,
    params: SamplingParams,
    engine_args: EngineArgs,
) -> None:
    """Talk with a model.

    On a terminal in turns: Ctrl-C stops an answer, Ctrl-D ends. From a pipe, every line is a turn.
    """
    from drawlot.entrypoints.chat import require_template

    interactive = message is None and sys.stdin.isatty()
    llm = load(engine_args)
    require_template(llm.engine.tokenizer)
    history = [{"role": "system", "content": system}] if system else []
    for turn in [message] if message is not None else _asked() if interactive else read_lines():
        history.append({"role": "user", "content": turn})
        stream = llm.stream(llm.chat_prompts(history), params)
        answer = _show(stream, quiet=as_json, may_stop=interactive)
        history.append({"role": "assistant", "content": answer.text})
        if as_json:
            write_json({**history[-1], "finish_reason": answer.finish_reason}, sys.stdout)


class _Answer(NamedTuple):
    text: str = ""
    finish_reason: str | None = None


def _show(stream: "Generator[tuple[int, RequestOutput]]", quiet: bool, may_stop: bool) -> _Answer:
    """Write an answer while it grows, then a line break; where it may be stopped, Ctrl-C keeps what there is."""
    answer = _Answer()
    try:
        for _, request in stream:
            [completion] = request.outputs
            if not quiet:
                _write(completion.text[len(answer.text) :])
            answer = _Answer(completion.text, completion.finish_reason)
            if completion.finish_reason == "error":
                raise ModelError(f"the answer was ended by an error ({completion.stop_reason})")
    except KeyboardInterrupt:
        if not may_stop:
            raise
        stream.close()
    if not quiet:
        _write("\n")
    return answer


def _asked() -> Iterator[str]:
    """What is typed at the prompt, until Ctrl-D or Ctrl-C."""
    import readline  # noqa: F401  makes input() editable

    while True:
        try:
            turn = input("> ")
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return
        if turn.strip():
            yield turn


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
