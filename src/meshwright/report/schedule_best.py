"""The page of `schedule best`: the order that won, why, and what else was looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.parts import columns, facts_table, plain_row
from meshwright.report.picture import schedule_picture
from meshwright.report.timeline_text import TimelineText
from meshwright.schedules import Timeline
from meshwright.units import significant


def best_schedule_page(run: Mapping[str, Any], timeline: Timeline) -> RenderableType:
    """The `schedule best` page.

    Args:
        run: a `meshwright.best-schedule/1`.
        timeline: the winner, to draw.
    """
    facts = facts_table()
    plain_row(facts, "best", run["verdict"])
    if run["rule"]:
        plain_row(facts, "found by", run["rule"])
    bubbles = f"{run['bubble_makespan']:.1%} of the makespan idle, {run['bubble_span']:.1%} of the longest span"
    plain_row(facts, "bubble", bubbles)
    sought, words = ("span_s", "span s") if run["objective"] == "span" else ("makespan_s", "time s")
    table = columns("candidate", "v", words, "bound s", "why not", left=("candidate",), fold=("why not",))
    rows = sorted(run["candidates"], key=lambda seen: seen[sought] or float("inf"))
    for seen in rows:
        plain_row(
            table,
            seen["name"],
            str(seen["v"]),
            _seconds(seen[sought]),
            _seconds(seen["bound_s"]),
            seen["why_not"],
        )
    return Group(TimelineText([schedule_picture(run, timeline)]), Text(), facts, Text(), table)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else significant(seconds, 6)
