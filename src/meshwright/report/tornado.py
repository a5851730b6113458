"""Tornado plots: what each number of a system is worth, the largest first, as text and as SVG."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from meshwright.report.calculon_search import execution_line
from meshwright.report.parts import heading
from meshwright.units import significant

LEFT, MIDDLE, RIGHT = 190, 560, 170
"""Widths of labels, bars and numbers in the drawing."""
ROW, BAR = 26, 16
LOWER, RAISED = "#b3541e", "#1f6f8b"
"""Colours of the lowered and of the raised number; both stand in the text too."""


def render_what_if(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.calculon-what-if/1`.

    Args:
        document: the answer as data.
    """
    inputs, base = document["inputs"], document["base"]
    text = (
        f"{inputs['app']} on {inputs['num_procs']:,} {inputs['system']}: "
        f"{significant(base['sample_rate'], 4)} samples/s at best. "
        "Each number of the system is changed and the search repeated:"
    )
    return Group(
        Text(text, style="bold"),
        "",
        Text(f"  {execution_line(base['execution'])}"),
        heading("Samples per second"),
        sensitivity_table(document),
        heading("Tornado"),
        Tornado(document),
    )


def change(rate: float | None, base: float) -> str:
    """`+4.2%`, or what there is instead."""
    if not rate:
        return "nothing fits"
    share = 100.0 * (rate / base - 1.0)
    return f"{share:+.1f}%" if abs(share) >= 0.05 else "0%"


def sensitivity_table(document: Mapping[str, Any]) -> Table:
    """One row a number: the optimum of each factor, and what the old execution would do."""
    base = document["base"]["sample_rate"]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("number", no_wrap=True)
    table.add_column("now", justify="right", no_wrap=True)
    for factor in document["inputs"]["factors"]:
        table.add_column(f"x {significant(factor)}", justify="right", no_wrap=True)
        table.add_column("same plan", justify="right", no_wrap=True)
    table.add_column("what the best then changes", overflow="fold")
    for number in document["numbers"]:
        cells = [number["name"], f"{significant(number['value'])} {number['unit']}"]
        for one in number["changes"]:
            cells.append(change(one["sample_rate"], base))
            cells.append(
                "does not fit" if one["repriced_sample_rate"] is None else change(one["repriced_sample_rate"], base)
            )
        moved = list(dict.fromkeys(key for one in number["changes"] for key in one["moved"]))
        table.add_row(*cells, ", ".join(moved) or "nothing")
    return table


def reach(document: Mapping[str, Any]) -> tuple[float, float]:
    """Lowest and highest sample rate of all changes, the base included."""
    rates = [one["sample_rate"] or 0.0 for number in document["numbers"] for one in number["changes"]]
    rates.append(document["base"]["sample_rate"])
    return min(rates), max(rates)


class Tornado:
    """Bars from the base to each changed optimum."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.document = document

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        document, base = self.document, self.document["base"]["sample_rate"]
        low, high = reach(document)
        label = max((len(number["name"]) for number in document["numbers"]), default=0)
        width = max(20, min(72, options.max_width - label - 8))
        marks = "-+" if options.ascii_only else "▒█"

        def place(rate: float) -> int:
            return round((rate - low) / (high - low) * (width - 1)) if high > low else 0

        middle = place(base)
        factors = document["inputs"]["factors"]
        legend = ", ".join(f"{marks[factor >= 1]} x {significant(factor)}" for factor in factors)
        yield Text(f"  {legend}; from {significant(low, 4)} to {significant(high, 4)} samples/s", style="dim")
        for number in document["numbers"]:
            cells = [" "] * width
            # The longest bar is drawn first, so that a shorter one on the same side stays visible.
            for one in sorted(number["changes"], key=lambda one: -abs((one["sample_rate"] or 0.0) - base)):
                end = place(one["sample_rate"] or 0.0)
                for cell in range(min(end, middle), max(end, middle) + 1):
                    cells[cell] = marks[one["factor"] >= 1] if end != middle else cells[cell]
            cells[middle] = "|" if options.ascii_only else "│"
            yield Text(f"  {number['name']:<{label}}  {''.join(cells).rstrip()}", no_wrap=True, overflow="ellipsis")


def tornado_svg(document: Mapping[str, Any]) -> str:
    """The plot as an SVG file.

    Args:
        document: a `meshwright.calculon-what-if/1`.
    """
    inputs, base = document["inputs"], document["base"]["sample_rate"]
    low, high = reach(document)
    span = (high - low) or 1.0
    numbers = document["numbers"]
    height = 96 + ROW * len(numbers)

    def x(rate: float) -> float:
        return LEFT + (rate - low) / span * MIDDLE

    title = f"{inputs['app']} on {inputs['num_procs']:,} {inputs['system']}: samples/s of the best execution"
    factors = ", ".join(f"{'orange' if f < 1 else 'blue'}: number x {significant(f)}" for f in inputs["factors"])
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + MIDDLE + RIGHT}" height="{height}" '
        f'font-family="sans-serif" font-size="12" role="img">',
        f"<title>{escape(title)}</title>",
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="12" y="22" font-size="15">{escape(title)}</text>',
        f'<text x="12" y="42" fill="#555">{escape(factors)}; searched anew for every change</text>',
    ]
    for row, number in enumerate(numbers):
        y = 60 + row * ROW
        now = f"{significant(number['value'])} {number['unit']}"
        lines.append(f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end">{escape(number["name"])}</text>')
        for one in sorted(number["changes"], key=lambda one: -abs((one["sample_rate"] or 0.0) - base)):
            end = x(one["sample_rate"] or 0.0)
            tip = f"x {significant(one['factor'])}: {change(one['sample_rate'], base)}"
            lines.append(
                f'<rect x="{min(end, x(base)):.1f}" y="{y}" width="{abs(end - x(base)):.1f}" height="{BAR}" '
                f'fill="{RAISED if one["factor"] >= 1 else LOWER}"><title>{escape(tip)}</title></rect>'
            )
        changes = " / ".join(change(one["sample_rate"], base) for one in number["changes"])
        words = f"{now}: {changes}"
        lines.append(f'<text x="{LEFT + MIDDLE + 6}" y="{y + 12}" font-size="10">{escape(words)}</text>')
    bottom = 60 + ROW * len(numbers)
    lines += [
        f'<line x1="{x(base):.1f}" x2="{x(base):.1f}" y1="52" y2="{bottom}" stroke="black"/>',
        f'<text x="{x(base):.1f}" y="{bottom + 16}" text-anchor="middle">{significant(base, 4)}</text>',
        f'<text x="{LEFT}" y="{bottom + 16}" fill="#555">{significant(low, 4)}</text>',
        f'<text x="{LEFT + MIDDLE}" y="{bottom + 16}" text-anchor="end" fill="#555">{significant(high, 4)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
