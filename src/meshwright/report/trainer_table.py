"""The best plan under each trainer, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from meshwright.report.parts import heading
from meshwright.report.words.trainers import trainer_lines, trainers_heading


def trainer_table(trainers: Sequence[Mapping[str, Any]]) -> list[RenderableType]:
    """Heading of the table and a line for each answer.

    Args:
        trainers: the `trainers` of a plan set as data.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify, overflow="fold")
    for names, plan, time, memory in trainer_lines(trainers):
        table.add_row(names, plan, time, memory)
    return [heading(trainers_heading(trainers)), table]
