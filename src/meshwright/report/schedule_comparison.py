"""One plan under many schedules, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.plan_tables import bullet, heading
from meshwright.units import gib, seconds

FITS = {"yes": "yes", "tight": "tight", "no": "no"}


def render_schedules(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.schedule-comparison/1`.

    Args:
        document: the comparison as data.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("  schedule", no_wrap=True)
    for name in ("step", "bubble", "share", "memory"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("fits", "semantics"):
        table.add_column(name, no_wrap=True)
    table.add_column("plan", overflow="fold")
    refused = []
    for plan in document["schedules"]:
        own = plan["schedule"] == document["schedule"]
        if plan["refused"]:
            refused.append(bullet(f"{plan['schedule']}: {plan['refused']}"))
            continue
        table.add_row(
            f"{'*' if own else ' '} {plan['schedule']}",
            seconds(plan["step_time_s"]),
            seconds(plan["bubble_s"]),
            f"{100 * plan['bubble_s'] / plan['step_time_s']:.1f}%",
            gib(plan["peak_memory_bytes"]),
            FITS[plan["fits"]],
            "exact" if plan["exact_semantics"] else "not exact",
            plan["plan"],
            style="bold" if own else None,
        )
    parts: list[RenderableType] = [Text(document["text"], style="bold"), heading("The plan under each schedule"), table]
    if refused:
        parts += [heading("Refused"), *refused]
    if any(not plan["exact_semantics"] and not plan["refused"] for plan in document["schedules"]):
        why = "not exact: a step is not the gradient of its batch at one version of the weights; results differ"
        parts.append(Text(why, style="dim"))
    return Group(*parts)
