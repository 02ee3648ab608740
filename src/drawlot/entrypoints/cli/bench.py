"""`drawlot bench`: speed on this machine."""

import sys
from typing import Annotated, Any

import typer

from drawlot.entrypoints.cli.console import AsJson, loading, write_json
from drawlot.entrypoints.cli.options import with_options

bench_app = typer.Typer(rich_markup_mode=None)


@bench_app.callback()
def bench() -> None:
    """Measure speed on this machine."""


@bench_app.command()
@with_options()
def engine(
    *,
    model: Annotated[str, typer.Option("--model", help="An embedded model, a folder or a name on the hub.")] = "tiny",
    device: Annotated[str, typer.Option("--device", help="Where to run: auto, cpu, cuda or cuda:N.")] = "auto",
    requests: Annotated[int, typer.Option("--requests", min=1, help="Requests that run together.")] = 16,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Tokens of each prompt.")] = 68,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=2, help="Tokens drawn for each prompt.")] = 64,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Runs of each side; medians are shown.")] = 5,
    baseline: Annotated[
        bool, typer.Option("--baseline/--no-baseline", help="Also run transformers' generate_batch, in turn.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Decode with the engine and with transformers.

    Both run in float32, with top_k 50 and top_p 0.9, on the same prompts. Shown are the tokens a second from the first
    token of every request on, what a step of the engine spends its time on, and those of transformers' generate_batch
    with the faster of its attention functions paged|sdpa and paged|eager.
    """
    with loading():
        from drawlot.entrypoints.engine_benchmark import measure

    measured = measure(model, device, requests, prompt_tokens, new_tokens, repeats, baseline)
    if as_json:
        write_json(measured, sys.stdout)
    else:
        _show(measured)


def _show(measured: dict[str, Any]) -> None:
    step = measured["step_ms"]
    total = sum(step.values())
    print(f"drawlot: {measured['tokens_per_s']:.0f} tokens/s, {total:.2f} ms a step:")
    for part, milliseconds in step.items():
        print(f"  {part:<14} {milliseconds:7.3f} ms {milliseconds / total:6.1%}")
    for attention, tokens_per_s in measured["transformers_tokens_per_s"].items():
        print(f"transformers {attention}: {tokens_per_s:.0f} tokens/s")
    if measured["ratio"] is not None:
        print(f"ratio to the faster: {measured['ratio']:.2f}")
