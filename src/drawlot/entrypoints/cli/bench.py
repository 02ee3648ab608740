"""`drawlot bench`: speed on this machine."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from drawlot.entrypoints.cli.console import AsJson, UsageError, loading, opened, write_json
from drawlot.entrypoints.cli.options import with_options
from drawlot.errors import BackendError

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


@bench_app.command()
@with_options()
def sampler(
    *,
    rows: Annotated[str, typer.Option("--rows", metavar="N,N,...", help="Rows drawn in one step.")] = "1,8,64",
    vocab: Annotated[
        str | None, typer.Option("--vocab", metavar="N,N,...", help="Sizes of the vocabulary; 128256 if not set.")
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", metavar="NAME,...", help="float32 (if not set), bfloat16, float16."),
    ] = None,
    mix: Annotated[
        str,
        typer.Option(
            "--mix",
            metavar="NAME,...",
            help="Parameters of the rows: k50p90, no-filter, greedy, top-p, min-p, flat, mixed, top20, "
            "top20-no-filter, ids128, no-logprobs, no-filter-no-logprobs, penalties, grammar.",
        ),
    ] = "k50p90",
    distribution: Annotated[
        str | None,
        typer.Option(
            "--distribution",
            metavar="NAME,...",
            help="Logits of the rows: normal1, normal3 (if not set), peaked, constant, sorted.",
        ),
    ] = None,
    logits: Annotated[
        Path | None,
        typer.Option("--logits", metavar="FILE", help="Rows recorded from a model, [rows, vocab]: .npy, .safetensors."),
    ] = None,
    providers: Annotated[
        str | None,
        typer.Option(
            "--providers",
            metavar="NAME,...",
            help="drawlot-triton, drawlot-torch, flashinfer-cake, flashinfer, multipass, torch; all that can run "
            "if not set.",
        ),
    ] = None,
    graph: Annotated[
        bool | None,
        typer.Option("--graph/--eager", help="Replay CUDA graphs, or call step by step; graphs on a GPU if not set."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Also write the JSON there, and a plot to FILE.svg."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time raw logits to tokens, drawlot and others.

    Every combination of rows, vocab, dtype, mix and distribution is a case. Providers are timed only after they have
    drawn the right tokens, in turn, against a kernel that only reads the same bytes.
    """
    if logits is not None and any(given is not None for given in (vocab, dtype, distribution)):
        raise UsageError("--logits brings its own --vocab, --dtype and --distribution")
    _check_output(output)
    with loading():
        from drawlot.entrypoints.sampler_benchmark import benchmark, grid, read_logits, recorded_grid, svg
        from drawlot.entrypoints.sampler_benchmark.report import show

    mixes = mix.split(",")
    recorded = None if logits is None else read_logits(logits)
    if recorded is None:
        cases = grid(
            _numbers("--rows", rows),
            _numbers("--vocab", vocab or "128256"),
            (dtype or "float32").split(","),
            mixes,
            (distribution or "normal3").split(","),
        )
    else:
        cases = recorded_grid(recorded, _numbers("--rows", rows), mixes)
    chosen = None if providers is None else providers.split(",")
    record = benchmark(cases, chosen, graph=graph, recorded=recorded, progress=_progress)
    _give(record, svg, show, output, as_json=as_json)
    failed = sorted({name for result in record["results"] for name in result["failed"]})
    if failed:
        raise BackendError(f"failed, and not timed: {', '.join(failed)}")


@bench_app.command()
@with_options()
def spec(
    *,
    speculators: Annotated[
        str, typer.Option("--speculators", metavar="NAME,...", help="ngram, draft_model, eagle.")
    ] = "ngram,draft_model,eagle",
    verifications: Annotated[
        str,
        typer.Option(
            "--verifications",
            metavar="NAME,...",
            help="standard, block, coupled; at temperature 0, where they do the same, the first alone.",
        ),
    ] = "standard",
    temperatures: Annotated[
        str, typer.Option("--temperatures", metavar="X,X,...", help="Of the target and of drafts.")
    ] = "0,1",
    drafts: Annotated[str, typer.Option("--drafts", metavar="N,N,...", help="Drafts of a step, at most.")] = "2,4",
    files: Annotated[
        str | None,
        typer.Option(
            "--files",
            metavar="NAME,...",
            help="Modules of the standard library, such as functools.py, that the models were not trained on; eight "
            "of them if not set.",
        ),
    ] = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts, from the files in turn.")] = 8,
    prompt_tokens: Annotated[int, typer.Option("--prompt-tokens", min=1, help="Tokens of each prompt.")] = 64,
    new_tokens: Annotated[int, typer.Option("--new-tokens", min=2, help="Tokens drawn for each prompt.")] = 48,
    together: Annotated[int, typer.Option("--together", min=1, help="Requests that run together.")] = 1,
    device: Annotated[str, typer.Option("--device", help="Where to run: auto, cpu, cuda or cuda:N.")] = "auto",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Timed runs of each case; medians are shown.")] = 3,
    baseline: Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            help="Also run transformers' generate, alone, with prompt lookup and with a draft model; if not set, "
            "where requests run one by one.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.json", help="Also write the JSON there, and a plot to FILE.svg."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Decode with drafts and without, and see what they save.

    The embedded models in float32, on files that they were not trained on. Every combination of speculator,
    verification, temperature and drafts is a case; each timed run follows one without drafts. What is not set takes
    some minutes on a CPU. The output is written after each case, so that a run which is cut short leaves what it has.
    """
    _check_output(output)
    with loading():
        from drawlot.entrypoints.spec_benchmark import Work, benchmark, grid, svg
        from drawlot.entrypoints.spec_benchmark.held_out import FILES
        from drawlot.entrypoints.spec_benchmark.report import show

    cases = grid(
        speculators.split(","),
        verifications.split(","),
        _floats("--temperatures", temperatures),
        _numbers("--drafts", drafts),
    )
    work = Work(FILES if files is None else files.split(","), prompts, prompt_tokens, new_tokens, together)

    def keep(record: dict[str, Any]) -> None:
        if output is not None:
            _write(record, svg, output)

    record = benchmark(cases, work, device=device, repeats=repeats, baseline=baseline, progress=_progress, keep=keep)
    _show_record(record, show, as_json=as_json)


def _give(
    record: dict[str, Any],
    svg: Callable[[dict[str, Any]], str],
    show: Callable[[dict[str, Any], TextIO], None],
    output: Path | None,
    *,
    as_json: bool,
) -> None:
    """Write a record and its plot to files, if they are wanted, and show it."""
    if output is not None:
        _write(record, svg, output)
    _show_record(record, show, as_json=as_json)


def _write(record: dict[str, Any], svg: Callable[[dict[str, Any]], str], output: Path) -> None:
    with opened(output) as file:
        write_json(record, file)
    output.with_suffix(".svg").write_text(svg(record), encoding="utf-8")


def _show_record(record: dict[str, Any], show: Callable[[dict[str, Any], TextIO], None], *, as_json: bool) -> None:
    if as_json:
        write_json(record, sys.stdout)
    else:
        show(record, sys.stdout)


def _check_output(output: Path | None) -> None:
    if output is not None and output.suffix != ".json":
        raise UsageError(f"--output must end in .json; got {output}")


def _floats(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} must be numbers separated by commas; got {text!r}") from None


def _numbers(option: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} must be numbers separated by commas; got {text!r}") from None


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)


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
