"""The tables that people read."""

from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

Record = dict[str, Any]
COLUMNS = (
    "drafts",
    "tokens/s",
    "speed-up",
    "tokens a step",
    "same",
    "accepted",
    "expected",
    "by position",
    "draft/verify/other",
)
MEANING = (
    "speed-up: over the engine without drafts, in turn. same: prompts with the tokens that it gives. accepted: of the "
    "drafts whose predecessors were accepted. expected: sum of min(p, q) over these. by position: accepted of those."
)


def show(record: Record, out: TextIO) -> None:
    """Write a table for each temperature."""
    console = Console(file=out, width=None if out.isatty() else 160)
    facts, conditions = record["environment"], record["conditions"]
    versions = ", ".join(f"{name} {facts['versions'][name]}" for name in ("drawlot", "torch", "transformers"))
    console.print(f"{facts['device']}, {facts['threads']} threads, {versions}", style="bold", highlight=False)
    sizes = f"{conditions['prompts']} prompts of {conditions['prompt_tokens']} tokens, {conditions['new_tokens']} new"
    console.print(f"{sizes}; {conditions['together']} together; medians of {conditions['repeats']}", highlight=False)
    files = ", ".join(name + ("" if how == "as held out" else f" ({how})") for name, how in conditions["files"].items())
    console.print(f"from {files}", highlight=False, soft_wrap=True)
    for temperature in dict.fromkeys(each["temperature"] for each in record["results"]):
        console.print()
        console.print(_table(temperature, record))
    console.print(MEANING, highlight=False)


def _table(temperature: float, record: Record) -> Table:
    table = Table(title=f"temperature {temperature:g}", title_justify="left")
    table.add_column("", no_wrap=True)
    for heading in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for each in record["results"]:
        if each["temperature"] == temperature:
            style = "bold" if "speculator" in each else ""
            table.add_row(each["name"], *_cells(each, record["conditions"]["prompts"]), style=style)
    return table


def _cells(each: Record, prompts: int) -> list[str]:
    cells = [
        str(each["num_drafts"] or ""),
        f"{each['tokens_per_s']:,.0f}",
        f"{each['speed_up']:.2f}",
        f"{each['emitted_per_step']:.2f}",
    ]
    if "speculator" not in each:
        return cells
    reached = max(1, each["reached"])
    same = each["temperature"] == 0 or each["verification"] == "coupled"
    return [
        *cells,
        f"{each['prompts_with_equal_tokens']}/{prompts}" if same else "",
        f"{each['accepted'] / reached:.1%}",
        f"{each['expected_accepted'] / reached:.1%}",
        " ".join(f"{rate:.2f}" for rate in each["conditional_acceptance"]),
        "/".join(f"{each['time'][part]:.0%}" for part in ("draft", "verify", "other")),
    ]
