"""A plan on several kinds of device, in the terminal: what it takes, who holds which layers, what mixing is worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from meshwright.report.parts import bullet, columns, heading
from meshwright.units import GIB, seconds, significant


def render_mixed(document: Mapping[str, Any]) -> RenderableType:
    """The answer of a plan set with one mixed plan."""
    plan = document["plans"][0]
    estimate, verdict = plan["estimate"], document["verdict"]
    parts = ", ".join(f"{name} {seconds(value)}" for name, value in estimate["breakdown_s"].items() if value)
    return Group(
        Text(verdict["text"], style="bold"),
        *(bullet(line) for line in verdict["why"]),
        *(bullet(f"{one['devices']} alone: {_time(one['step_time_s'])}") for one in verdict["alone"]),
        bullet(f"a step: {parts}"),
        heading("Who holds which layers"),
        _stage_table(estimate["stages"]),
    )


def _time(step_time_s: float | None) -> str:
    return "does not fit" if step_time_s is None else seconds(step_time_s)


def _stage_table(stages: list[Mapping[str, Any]]) -> Table:
    names = ("pipelines", "micro-batches", "stage", "on", "tp", "dp", "mbs", "layers", "per micro-batch", "GiB")
    table = columns(*names, fold=("pipelines", "stage", "on", "layers"))
    for numbers, rows in _alike(stages):
        for row in rows:
            first = row is rows[0]
            layers = row["layers"]
            held = f"{layers[0][0]}-{layers[0][1]}" if layers else "none"
            ends = (["embedding"] if row["stage"] == 0 else []) + (["head"] if row is rows[-1] else [])
            table.add_row(
                numbers if first else "",
                str(row["micro_batches"]) if first else "",
                str(row["stage"]),
                f"{row['devices']} {row['group']}",
                str(row["tp"]),
                str(row["dp"]),
                str(row["mbs"]),
                " + ".join([held, *ends]),
                seconds(row["micro_batch_s"]),
                f"{significant(row['peak_memory_bytes'] / GIB)}/{significant(row['capacity_bytes'] / GIB)}",
            )
    return table


def _alike(stages: list[Mapping[str, Any]]) -> Iterator[tuple[str, list[Mapping[str, Any]]]]:
    """Pipelines that differ in their number only, under one heading."""
    pipelines = [list(rows) for _, rows in groupby(stages, key=lambda row: row["pipeline"])]

    def content(rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key != "pipeline"} for row in rows]

    for _, same in groupby(pipelines, key=content):
        group = list(same)
        first, last = group[0][0]["pipeline"], group[-1][0]["pipeline"]
        yield str(first) if first == last else f"{first}-{last}", group[0]
