"""A prediction beside its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import bullet, columns, heading, plain_row
from meshwright.report.words.reasons import PARTS
from meshwright.units import TERA, gib, rounded, seconds, signed_percent, signed_seconds, significant

UNITS = {
    "step": ("step", seconds),
    "tokens/s per device": ("tokens/s per device", rounded),
    "FLOP/s per device": ("TFLOP/s per device", lambda value: significant(value / TERA)),
    "memory allocated": ("memory allocated", gib),
    "power": ("power per device (at most)", lambda value: f"{value:,.0f} W"),
}
"""What quantities are called, and how they are written."""


def render_run_comparison(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.run-comparison/1`.

    Args:
        document: the comparison as data.
    """
    parts: list[RenderableType] = [
        Text(document["text"], style="bold"),
        bullet(f"plan: {document['plan']['title']}"),
        *(bullet(note) for note in document["notes"]),
        heading("Predicted and measured"),
        _totals(document["totals"]),
    ]
    if document["terms"]:
        parts += [heading("Seconds of a step"), _terms(document["terms"])]
    if document["causes"]:
        parts += [heading("What explains the difference, most likely first")]
        parts += [bullet(cause["text"]) for cause in document["causes"]]
        parts.append(bullet(document["left"]))
    parts += [heading("What to try"), *(bullet(text) for text in document["advice"])]
    return Group(*parts)


def _totals(totals: Sequence[Mapping[str, Any]]) -> Table:
    table = columns("  ", "predicted", "range", "measured", "difference", left=("  ",))
    for total in totals:
        name, show = UNITS[total["name"]]
        low, high = total["low"], total["high"]
        span = "" if low is None else f"{show(low)} - {show(high)}"
        change = total["measured"] / total["predicted"] - 1
        plain_row(table, name, show(total["predicted"]), span, show(total["measured"]), signed_percent(change))
    return table


def _terms(terms: Sequence[Mapping[str, Any]]) -> Table:
    reports = "as the run reports it"
    table = columns("  ", "predicted", "measured", "difference", reports, fold=("  ", reports))
    for term in terms:
        names = ", ".join(PARTS[part] for part in term["parts"]) or "time that is not predicted"
        change = term["change_s"]
        reported = term["name"] or "(not reported: the rest of the step)"
        shown = (seconds(term["predicted_s"]), seconds(term["measured_s"]), signed_seconds(change), reported)
        plain_row(table, names, *shown)
    return table
