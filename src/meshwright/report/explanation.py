"""The ladder, the neighbours and the sensitivities of a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import bullet, heading

STYLES = {"fits": "green", "tight": "yellow", "no": "red", "not legal": "dim"}
MARKS = {"fits": "+", "tight": "~", "no": "x", "not legal": "-"}


def render_explanation(document: Mapping[str, Any]) -> RenderableType:
    """The page of a `meshwright.explanation/1`.

    Args:
        document: the explanation as data.
    """
    parts: list[RenderableType] = [Text(document["title"], style="bold"), Text(document["text"])]
    parts += [bullet(note) for note in document["notes"]]
    if document["ladder"]:
        lead = "plain data parallelism" if document["name"] else "even stages"
        parts += [heading(f"From {lead} to this plan"), steps(document["ladder"])]
    if document["neighbours"]:
        parts += [heading("One change away"), steps(document["neighbours"])]
    if document["sensitivity"]:
        parts += [
            heading("Sensitivity of the step, largest first"),
            *(bullet(one["text"]) for one in document["sensitivity"]),
        ]
    parts.append(Text("\n+ fits   ~ fits tightly   x does not fit   - not legal", style="dim"))
    return Group(*parts)


def steps(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Mark, change and what became of it."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=2)
    table.add_column(overflow="fold", ratio=5)
    for entry in entries:
        outcome = entry["outcome"]
        mark = Text(f" {MARKS[outcome]}", style=STYLES[outcome])
        table.add_row(mark, Text(entry["change"], overflow="fold"), Text(entry["text"], overflow="fold"))
    return table
