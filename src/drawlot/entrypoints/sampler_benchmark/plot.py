"""The bar chart that people look at, drawn as SVG by hand."""

from xml.sax.saxutils import escape

from drawlot.entrypoints.sampler_benchmark.benchmark import Record

WIDTH, COLUMNS = 1080, 2
LABEL, VALUE, BAR, GAP, HEAD, MARGIN = 132, 96, 16, 7, 46, 28
LONGEST = 16
"""A bar that is so many times as long as the shortest is broken off"""
COLOURS = {
    "drawlot-triton": "#0f766e",
    "drawlot-torch": "#5eada5",
    "flashinfer-cake": "#b45309",
    "flashinfer": "#d9a066",
    "multipass": "#475569",
    "torch": "#a3adba",
}
STYLE = """
  text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: #1f2933; font-size: 12px }
  .title { font-size: 20px; font-weight: 650 } .small { fill: #52606d } .panel { font-size: 13px; font-weight: 600 }
  .ours { font-weight: 650 } .floor { stroke: #c2410c; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .break { stroke: #ffffff; stroke-width: 2.5; fill: none }
  .floor-label { fill: #c2410c; font-size: 11px }
"""


def svg(record: Record) -> str:
    """A panel for each case: a bar a provider, and the floor as a line."""
    results = [result for result in record["results"] if result["providers"]]
    panel_width = (WIDTH - MARGIN * (COLUMNS + 1)) / COLUMNS
    body, top = [], 92.0
    for start in range(0, len(results), COLUMNS):
        together = results[start : start + COLUMNS]
        for column, result in enumerate(together):
            body += _panel(result, MARGIN + column * (panel_width + MARGIN), top, panel_width)
        top += max(_height(result) for result in together) + MARGIN
    facts, conditions = record["environment"], record["conditions"]
    versions = " · ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    head = [
        _text(MARGIN, 40, "Raw logits to tokens: microseconds a step", "title"),
        _text(MARGIN, 60, f"{facts['device']} · {versions} · {facts['date'][:10]} · {facts['commit'] or ''}", "small"),
        _text(MARGIN, 77, f"{conditions['launch']}; {conditions['figure']}; shorter is better", "small"),
    ]
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top:.0f}" '
            f'viewBox="0 0 {WIDTH} {top:.0f}" role="img">',
            f"<style>{STYLE}</style>",
            '<rect width="100%" height="100%" fill="#ffffff"/>',
            *head,
            *body,
            "</svg>",
            "",
        )
    )


def _height(result: Record) -> float:
    return HEAD + len(result["providers"]) * (BAR + GAP) + 20


def _panel(result: Record, left: float, top: float, width: float) -> list[str]:
    providers, floor = result["providers"], result["floor_us"]
    times = [each["us"] for each in providers.values()]
    longest = min(max(times), LONGEST * min(times))
    zero, scale = left + LABEL, (width - LABEL - VALUE) / longest
    parts = [_text(left, top + 22, result["case"]["title"], "panel")]
    for line, (name, each) in enumerate(providers.items()):
        y = top + HEAD + line * (BAR + GAP)
        length = max(1.5, min(each["us"], longest) * scale)
        style = "ours" if name.startswith("drawlot") else ""
        note = " eager" if each["why_eager"] else ""
        note += " token alone" if each["token_alone"] else ""
        parts += [
            _text(zero - 8, y + 12.5, name, style, "end"),
            f'<rect x="{zero:.1f}" y="{y:.1f}" width="{length:.1f}" height="{BAR}" rx="2" '
            f'fill="{COLOURS.get(name, "#7b8794")}"/>',
            _text(zero + length + 6, y + 12.5, _number(each["us"]) + note, style),
        ]
        if each["us"] > longest:
            x = zero + length - 26
            parts.append(f'<path class="break" d="M{x:.1f} {y + BAR + 2:.1f} l8 -{BAR + 4} m5 0 l-8 {BAR + 4}"/>')
    bottom = top + HEAD + len(providers) * (BAR + GAP)
    x = zero + floor * scale
    parts.append(f'<line class="floor" x1="{x:.1f}" y1="{top + HEAD - 6:.1f}" x2="{x:.1f}" y2="{bottom:.1f}"/>')
    parts.append(_text(x + 5, bottom + 8, f"one read {_number(floor)}", "floor-label"))
    return parts


def _number(us: float) -> str:
    return f"{us:.1f}" if us < 100 else f"{us:,.0f}"


def _text(x: float, y: float, text: str, style: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'
