"""`drawlot chat`: talk with a model that has a chat template."""

import sys
from collections.abc import Iterator
from typing import Annotated, TextIO

import typer

from drawlot.engine.args import EngineArgs
from drawlot.entrypoints.cli.console import AsJson, load, read_lines, write_json
from drawlot.entrypoints.cli.options import with_options
from drawlot.params import SamplingParams

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
        answer: dict[str, str | None] = {"role": "assistant", "content": "", "finish_reason": None}
        stream = llm.stream(llm.chat_prompts(history), params)
        try:
            for _, request in stream:
                [completion] = request.outputs
                if not as_json:
                    _write(completion.text[len(answer["content"] or "") :], sys.stdout)
                answer |= {"content": completion.text, "finish_reason": completion.finish_reason}
        except KeyboardInterrupt:
            if not interactive:
                raise
            stream.close()
        if as_json:
            write_json(answer, sys.stdout)
        else:
            _write("\n", sys.stdout)
        history.append({"role": "assistant", "content": answer["content"] or ""})


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


def _write(text: str, out: TextIO) -> None:
    out.write(text)
    out.flush()
