"""The curve of step time, days and price over the number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import columns, heading, stopped_lines
from meshwright.report.plan_tables import render_plan_set
from meshwright.report.words.sizing import of_things
from meshwright.units import percent, seconds, significant


def render_size(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.size/1`.

    Args:
        document: the answer as data.
    """
    return Group(
        Text(document["text"], style="bold"),
        *stopped_lines(document, document["plan_set"]["warnings"]),
        heading("Counts searched"),
        Text(document["considered"], style="dim"),
        curve_table(document["curve"], document["devices"]),
        heading(f"The plan of {of_things(document['devices'], 'device')}"),
        render_plan_set(document["plan_set"]),
    )


def curve_table(curve: list[Mapping[str, Any]], chosen: int) -> Table:
    """One row a number of devices."""
    with_run = any(point["days"] is not None for point in curve)
    with_price = any(point["price"] is not None for point in curve)
    names = ["devices", "step", "MFU", *(["days"] if with_run else []), *(["price"] if with_price else [])]
    table = columns(*names, "meets", "plan", left=("meets",), fold=("plan",))
    for point in curve:
        if point["step_time_s"] is None:
            cells = ["-"] * (len(names) - 1)
        else:
            cells = [seconds(point["step_time_s"]), percent(point["mfu"])]
            cells += [significant(point["days"])] if with_run else []
            cells += [f"{point['price']:,.0f}" if point["price"] is not None else "-"] if with_price else []
        meets = "yes" if point["meets"] else "no"
        style = "bold" if point["devices"] == chosen else ""
        name = point["name"] or "nothing fits"
        table.add_row(f"{point['devices']:,}", *cells, meets, Text(name, overflow="fold"), style=style)
    return table
