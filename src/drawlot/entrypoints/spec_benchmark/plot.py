"""The plot: speed-up and tokens a step over the number of drafts, a column for each temperature; SVG by hand."""

from collections.abc import Iterable
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from drawlot.engine.speculative_config import METHODS
from drawlot.entrypoints.spec_benchmark.cases import LOSSLESS

Record = dict[str, Any]
WIDTH, HEIGHT, LEFT, TOP, GAP, LEGEND = 380, 230, 64, 116, 74, 22
COLOURS = dict(zip(METHODS, ("#0f766e", "#b45309", "#4338ca"))) | {"transformers": "#7b8794"}
DASHES = dict(zip(LOSSLESS, ("", "7 4", "2 3"))) | {"prompt lookup": "2 3", "draft model": "7 4"}
ROWS = (("speed_up", "speed-up over no drafts"), ("emitted_per_step", "tokens a step"))
STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2933; font-size: 12px }
  .title { font-size: 20px; font-weight: 650 } .small { fill: #52606d } .panel { font-size: 13px; font-weight: 600 }
  .axis { stroke: #cbd2d9; stroke-width: 1 } .one { stroke: #7b8794; stroke-dasharray: 4 3 }
"""


class Panel(NamedTuple):
    """Where one quantity at one temperature is drawn."""

    left: float
    top: float
    counts: list[int]
    highest: float

    def x(self, count: int) -> float:
        """Places of numbers of drafts are equally far apart."""
        return self.left + WIDTH * (self.counts.index(count) + 0.5) / len(self.counts)

    def y(self, value: float) -> float:
        """From 0 up."""
        return self.top + HEIGHT * (1 - value / self.highest)


def svg(record: Record) -> str:
    """The plot of a record of `benchmark`."""
    results = [each for each in record["results"] if each["num_drafts"]]
    temperatures = list(dict.fromkeys(each["temperature"] for each in results))
    counts = sorted({each["num_drafts"] for each in results})
    facts, conditions = record["environment"], record["conditions"]
    parts: list[str] = []
    for row, (key, label) in enumerate(ROWS):
        highest = 1.1 * max([1.0, *(each[key] for each in results)])
        for column, temperature in enumerate(temperatures):
            at = Panel(LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP), counts, highest)
            shown = [each for each in results if each["temperature"] == temperature]
            parts += _panel(at, f"temperature {temperature:g}: {label}", key, shown)
    bottom = TOP + len(ROWS) * (HEIGHT + GAP)
    names = list(dict.fromkeys(each["name"] for each in results))
    for line, name in enumerate(names):
        parts += _legend(LEFT + line % 3 * 270, bottom + line // 3 * LEGEND, name)
    width = max(LEFT + len(temperatures) * (WIDTH + GAP), LEFT + 3 * 270)
    height = bottom + (len(names) + 2) // 3 * LEGEND + 12
    text = f"{conditions['prompts']} prompts of {conditions['prompt_tokens']} tokens, {conditions['new_tokens']} new"
    head = [
        _text(LEFT, 40, "What drafts save", "title"),
        _text(LEFT, 60, f"{facts['device']} · {facts['threads']} threads · {facts['date'][:10]}", "small"),
        _text(LEFT, 77, f"{text}; {conditions['together']} together; held-out files", "small"),
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">',
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *head,
            *parts,
            "</svg>",
            "",
        )
    )


def _panel(at: Panel, title: str, key: str, results: Iterable[Record]) -> list[str]:
    right, bottom = at.left + WIDTH, at.top + HEIGHT
    parts = [
        _text(at.left, at.top - 10, title, "panel"),
        _line(at.left, bottom, right, bottom, "axis"),
        _line(at.left, at.y(1), right, at.y(1), "one"),
    ]
    step = next(step for step in (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100) if at.highest / step <= 8)
    for tick in range(int(at.highest / step) + 1):
        parts.append(_text(at.left - 8, at.y(tick * step) + 4, f"{tick * step:g}", "small", "end"))
    parts += [_text(at.x(count), bottom + 18, f"{count}", "small", "middle") for count in at.counts]
    parts.append(_text(at.left + WIDTH / 2, bottom + 34, "drafts of a step", "small", "middle"))
    lines: dict[str, list[Record]] = {}
    for each in results:
        lines.setdefault(each["name"], []).append(each)
    for name, points in lines.items():
        places = [(at.x(each["num_drafts"]), at.y(each[key])) for each in points]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        colour, dash = _look(name)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-dasharray="{dash}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return parts


def _legend(x: float, y: float, name: str) -> list[str]:
    colour, dash = _look(name)
    line = f'<line x1="{x}" y1="{y}" x2="{x + 32}" y2="{y}" stroke="{colour}" stroke-dasharray="{dash}"/>'
    return [line, _text(x + 40, y + 4, name, "")]


def _look(name: str) -> tuple[str, str]:
    """Colour and dashes of a line."""
    first, _, rest = name.partition(" ")
    return COLOURS[first], DASHES.get(rest, "")


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{style}"/>'


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'
