"""One plan under many schedules, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from meshwright.report.parts import bullet, columns, heading
from meshwright.units import gib, seconds

FITS = {"yes": "yes", "tight": "tight", "no": "no"}


def render_schedules(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.schedule-comparison/1`.

    Args:
        document: the comparison as data.
    """
    names = ("  schedule", "step", "bubble", "share", "memory", "fits", "semantics", "plan")
    table = columns(*names, left=("  schedule", "fits", "semantics"), fold=("plan",))
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
