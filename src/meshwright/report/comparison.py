"""Two plans side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import bullet, columns, heading
from meshwright.report.picture import Picture
from meshwright.report.timeline_text import TimelineText
from meshwright.units import gib, percent, seconds


def render_comparison(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.comparison/1`.

    Args:
        document: the comparison as data.
    """
    first, second = document["plans"]
    parts: list[RenderableType] = [
        Text(document["text"], style="bold"),
        bullet(f"1: {first['title']}"),
        bullet(f"2: {second['title']}"),
        *(bullet(note) for note in document["notes"]),
    ]
    if document["settings"]:
        parts += [heading("Settings that differ"), _settings(document["settings"])]
    steps = [plan["estimate"]["step_time_s"] for plan in (first, second)]
    parts += [heading("Seconds of a step"), _numbers(document["breakdown_s"], steps, seconds)]
    peaks = [sum(d[key] for d in document["memory_bytes"]) for key in ("first", "second")]
    parts += [heading("Memory of the fullest stage"), _numbers(document["memory_bytes"], peaks, gib)]
    return Group(*parts)


def render_timelines(pictures: Sequence[Picture]) -> RenderableType:
    """Steps below each other on one time axis.

    Args:
        pictures: the steps.
    """
    gutters = [
        [f"{percent(float(busy_s) / picture.end_s):>4} busy" for busy_s in picture.timeline.busy_s]
        for picture in pictures
    ]
    return Group(
        heading("One step of each on one time axis"), TimelineText(pictures, whole=True, gutters=gutters, memory=False)
    )


def _settings(settings: Sequence[Mapping[str, str]]) -> Table:
    table = columns("  ", "1", "2", left=("  ",))
    for setting in settings:
        table.add_row(setting["name"], setting["first"], setting["second"])
    return table


def _numbers(differences: Sequence[Mapping[str, Any]], totals: Sequence[float], show: Any) -> Table:
    table = columns("  ", "1", "2", "change", left=("  ",))
    for difference in differences:
        if difference["first"] or difference["second"]:
            change = difference["change"]
            table.add_row(
                difference["name"].replace("_", " "),
                show(difference["first"]),
                show(difference["second"]),
                _signed(change, max(totals), show),
            )
    table.add_row(
        "total", show(totals[0]), show(totals[1]), _signed(totals[1] - totals[0], max(totals), show), style="bold"
    )
    return table


def _signed(change: float, scale: float, show: Any) -> str:
    if abs(change) < 5e-6 * max(scale, 1e-300):
        return ""
    return f"{'+' if change > 0 else '-'}{show(abs(change))}"
