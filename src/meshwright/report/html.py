"""The same answers as HTML for notebooks: one fragment, styles inside, nothing loaded from anywhere, no scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType

from meshwright.report.plan_tables import RATES, UNKNOWN, bottleneck, fullest, rank_lines, shown_stages, stage_name
from meshwright.report.words.made_by import made_by_words
from meshwright.report.words.titles import assumption_name
from meshwright.report.words.trainers import trainer_lines
from meshwright.report.words.verdict import rate_heading
from meshwright.units import GIB, gib, of_capacity, percent, seconds, significant

MEMORY_COLOURS = {
    "weights": "#4c78a8",
    "gradients": "#72b7b2",
    "optimizer": "#b279a2",
    "activations": "#54a24b",
    "transient": "#eeca3b",
    "comm_buffers": "#e45756",
    "overhead": "#9d9d9d",
}
PART_COLOURS = {
    "compute": "#54a24b",
    "recompute": "#88d27a",
    "bubble": "#bab0ac",
    "tp": "#4c78a8",
    "cp": "#72b7b2",
    "ep": "#b279a2",
    "pp": "#9ecae9",
    "dp": "#f58518",
    "optimizer": "#eeca3b",
    "offload": "#e45756",
    "host": "#9d9d9d",
}
_TEXT = "font-family:system-ui,sans-serif;font-size:13px;line-height:1.45"
_CELL = "padding:2px 10px 2px 0;text-align:left;vertical-align:middle"
_WIDTH = 320


def plan_set_html(document: Mapping[str, Any]) -> str:
    """A `meshwright.plan-set/1` as one HTML fragment.

    Args:
        document: the plan set as data.
    """
    best = document["plans"][0]
    verdict = document["verdict"]
    lines = [*best["identities"], *verdict["why"][1:]]
    if verdict["runner_up"]:
        other = verdict["runner_up"]
        lines.append(f"runner-up: {other['title']}, {seconds(other['step_time_s'])}: {other['loses_because']}")
    lines += [f"warning: {text}" for text in document["warnings"]]
    assumed = [f"{assumption_name(a['name'])}: {a['value']} [{a['basis']}]" for a in document["inputs"]["assumptions"]]
    return _page(
        f"<p><b>{escape(verdict['text'])}</b></p>",
        _list(lines),
        _plan_table(document["plans"]),
        _details(
            "Trainers", [": ".join((one, ", ".join(filter(None, rest)))) for one, *rest in trainer_lines(trainers)]
        )
        if (trainers := document.get("trainers"))
        else "",
        _body(best),
        _details("Ranks", rank_lines(document["rank_map"], stages=16)),
        _details("Assumed", assumed),
        _made(document["made_by"]),
    )


def _made(made_by: Mapping[str, Any]) -> str:
    """Who made it, and the command that asks the same again."""
    command = f": <code>{escape(made_by['command'])}</code>" if "command" in made_by else ""
    return f"<p>{escape(made_by_words(made_by))}{command}</p>"


def plan_html(entry: Mapping[str, Any]) -> str:
    """One entry of `plans` as one HTML fragment.

    Args:
        entry: the plan as data.
    """
    return _page(f"<p><b>{escape(entry['title'])}</b></p>", _list(entry["identities"]), _body(entry))


def renderable_html(renderable: RenderableType, width: int = 110) -> str:
    """Anything the terminal shows, as preformatted text.

    Args:
        renderable: the renderable of rich.
        width: columns.
    """
    console = Console(width=width, record=True, file=StringIO(), force_terminal=False, color_system=None)
    console.print(renderable)
    return f'<pre style="font-size:12px;line-height:1.3;overflow-x:auto">{escape(console.export_text())}</pre>'


def _page(*parts: str) -> str:
    return f'<div style="{_TEXT}">{"".join(parts)}</div>'


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul style="margin:4px 0 8px 18px;padding:0">{items}</ul>'


def _details(title: str, lines: Sequence[str]) -> str:
    return f"<details><summary>{escape(title)}</summary>{_list(lines)}</details>"


def _plan_table(plans: Sequence[Mapping[str, Any]]) -> str:
    names = ("#", "plan", "step", rate_heading(plans), "MFU", "memory", "bottleneck")
    head = "".join(f'<th style="{_CELL}">{name}</th>' for name in names)
    rows = []
    for plan in plans:
        estimate = plan["estimate"]
        full = fullest(estimate["stages"])
        name, share = bottleneck(estimate)
        size = f"{significant(full['peak_memory_bytes'] / GIB)}/{significant(full['capacity_bytes'] / GIB)} GiB"
        cells = (
            str(plan["rank"]),
            f"<code>{escape(plan['title'])}</code>",
            seconds(estimate["step_time_s"]),
            *(show(estimate[key]) if key in estimate else UNKNOWN for key, show in RATES.items()),
            f"{_bar(full['memory_bytes'], full['capacity_bytes'], MEMORY_COLOURS, 120)} {size}",
            f"{escape(name)} {percent(share)}",
        )
        rows.append("<tr>" + "".join(f'<td style="{_CELL}">{cell}</td>' for cell in cells) + "</tr>")
    return f'<table style="border-collapse:collapse"><tr>{head}</tr>{"".join(rows)}</table>'


def _body(entry: Mapping[str, Any]) -> str:
    estimate = entry["estimate"]
    rows = []
    for stage in shown_stages(estimate["stages"]):
        bar = _bar(stage["memory_bytes"], stage["capacity_bytes"], MEMORY_COLOURS, _WIDTH)
        size = of_capacity(stage["peak_memory_bytes"], stage["capacity_bytes"])
        name = stage_name(stage, estimate["stages"])
        rows.append(f'<tr><td style="{_CELL}">{name}</td><td style="{_CELL}">{bar} {size}</td></tr>')
    time_bar = _bar(estimate["breakdown_s"], estimate["step_time_s"], PART_COLOURS, _WIDTH)
    rows.append(
        f'<tr><td style="{_CELL}">step</td><td style="{_CELL}">{time_bar} {seconds(estimate["step_time_s"])}</td></tr>'
    )
    full = fullest(estimate["stages"])
    legends = _legend(full["memory_bytes"], MEMORY_COLOURS, gib) + _legend(
        {name: value for name, value in estimate["breakdown_s"].items() if value > 0}, PART_COLOURS, seconds
    )
    return f'<table style="border-collapse:collapse">{"".join(rows)}</table>{legends}'


def _bar(parts: Mapping[str, float], whole: float, colours: Mapping[str, str], width: int) -> str:
    """An inline SVG whose width stands for `whole`."""
    boxes, start = [], 0.0
    for name, value in parts.items():
        length = min(value / whole * width, width - start)
        if length > 0:
            colour = colours.get(name, "#9d9d9d")
            title = f"<title>{escape(name)}</title>"
            box = f'<rect x="{start:.1f}" width="{length:.1f}" height="12" fill="{colour}">{title}</rect>'
            boxes.append(box)
            start += length
    frame = f'<rect x="0.5" y="0.5" width="{width - 1}" height="11" fill="none" stroke="#888"/>'
    style = "vertical-align:middle"
    return f'<svg width="{width}" height="12" style="{style}" role="img">{"".join(boxes)}{frame}</svg>'


def _legend(parts: Mapping[str, float], colours: Mapping[str, str], show: Any) -> str:
    items = []
    for name, value in parts.items():
        colour = colours.get(name, "#9d9d9d")
        square = f'<span style="display:inline-block;width:10px;height:10px;background:{colour}"></span>'
        items.append(f"{square} {escape(name.replace('_', ' '))} {show(value)}")
    return f'<p style="margin:2px 0">{" &nbsp; ".join(items)}</p>'
