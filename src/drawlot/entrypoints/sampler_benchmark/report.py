"""The table that people read."""

from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table

from drawlot.entrypoints.sampler_benchmark.benchmark import Record

OURS = "drawlot-"


def show(record: Record, out: TextIO) -> None:
    """Write a table for each case, then what was not timed and why."""
    console = Console(file=out, width=None if out.isatty() else 120)
    facts, conditions = record["environment"], record["conditions"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    console.print(f"{facts['device']}, {versions}", style="bold", highlight=False)
    console.print(f"{conditions['launch']}; {conditions['figure']}", highlight=False)
    for result in record["results"]:
        console.print()
        console.print(_table(result))
    for line in notes(record["results"]):
        console.print(line, highlight=False, soft_wrap=True)


def _table(result: Record) -> Table:
    megabytes, floor = result["bytes"] / 1e6, result["floor_us"]
    caption = f"one read: {megabytes:,.1f} MB in {floor:,.1f} us, {1000 * megabytes / floor:,.0f} GB/s"
    table = Table(title=result["case"]["title"], caption=caption, title_justify="left", caption_justify="left")
    paths = any(each["rows_per_path"] for each in result["providers"].values())
    table.add_column("provider", no_wrap=True)
    for heading in ("us", "of the floor", "x fastest", "launch", *(["rows per path"] if paths else [])):
        table.add_column(heading, justify="right" if heading[0] in "uox" else "left", no_wrap=True)
    fastest = min((each["us"] for each in result["providers"].values()), default=0)
    for name, each in result["providers"].items():
        cells = [
            name + (" (token alone)" if each["token_alone"] else ""),
            f"{each['us']:,.1f}",
            f"{each['share_of_floor']:.1%}",
            f"{each['us'] / fastest:.2f}",
            each["launch"] + ("*" if each["why_eager"] else ""),
        ]
        if paths:
            cells.append(", ".join(f"{path} {share:.1%}" for path, share in (each["rows_per_path"] or {}).items()))
        table.add_row(*cells, style="bold" if name.startswith(OURS) else "")
    return table


def notes(results: Iterable[Record]) -> list[str]:
    """What else there is to say, each thing once, with the cases it is true of."""
    said: dict[str, list[str]] = {}
    for result in results:
        where = result["case"]["title"]
        for name, each in result["providers"].items():
            if each["why_eager"]:
                said.setdefault(f"* {name} is timed eagerly: {each['why_eager']}", [])
        for name, reason in result["not_run"].items():
            said.setdefault(f"not run: {name}: {reason}", [])
        for name, wrong in result["failed"].items():
            said.setdefault(f"FAILED, not timed: {name}: {wrong[0]}", []).append(where)
        if result["excused"]:
            excused = result["excused"]
            more = f", and {len(excused) - 1} more" if len(excused) > 1 else ""
            said.setdefault(f"excused: {excused[0]}{more}", []).append(where)
    return [line + (f" ({'; '.join(cases)})" if cases else "") for line, cases in said.items()]
