"""The page of `trace`: the whole step, its beginning in detail, where each stage's seconds go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import columns, heading
from meshwright.report.picture import Picture
from meshwright.report.timeline_text import TimelineText
from meshwright.units import of_capacity, percent, seconds

MOST_ROWS = 32
"""Workers above which the beginning of the step is not drawn a second time."""


def render_trace(document: Mapping[str, Any], picture: Picture) -> RenderableType:
    """The page of a `meshwright.trace/1`.

    Args:
        document: the trace as data.
        picture: the same step, to draw.
    """
    return Group(
        Text(document["title"], style="bold"),
        Text(),
        _Drawn(document, picture),
        heading(f"Seconds of the step, {seconds(document['step_time_s'])}"),
        _shares(document),
    )


class _Drawn:
    """The whole step and, where its micro-batches are too many to be named, its beginning again."""

    def __init__(self, document: Mapping[str, Any], picture: Picture) -> None:
        self.document, self.picture = document, picture

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        step_s = self.document["step_time_s"]
        gutter = [f"{percent(stage['busy_s'] / step_s):>4} busy" for stage in self.document["stages"]]
        whole = TimelineText([self.picture], whole=True, gutters=[gutter])
        yield whole
        if not whole.fits(options.max_width) and self.picture.timeline.table.p <= MOST_ROWS:
            yield heading("Its beginning")
            yield TimelineText([self.picture], memory=False)


def _shares(document: Mapping[str, Any]) -> Table:
    names = ("  stage", "busy", "idle", "data-parallel", "optimizer", "peak memory")
    table = columns(*names, fold=("  stage",))
    for stage in document["stages"]:
        parts = [seconds(stage[f"{name}_s"]) for name in ("busy", "idle", "data_parallel", "optimizer")]
        memory = of_capacity(stage["peak_memory_bytes"], stage["capacity_bytes"])
        table.add_row(f"  {stage['name'].removeprefix('stage ')}", *parts, memory)
    return table
