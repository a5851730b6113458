"""How passes add tasks to a table: each new one right before or right behind a task that is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.schedules.kinds import Kind
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Int


class Insertions:
    """Tasks to be added to a table; of several at one place, those added first stand first."""

    def __init__(self, table: ScheduleTable) -> None:
        self._table = table
        self._place: list[np.ndarray] = []
        self._columns: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def before(
        self,
        tasks: Int[np.ndarray, " added"],
        kind: Int[np.ndarray, " added"] | Kind,
        stage: Int[np.ndarray, " added"],
        number: Int[np.ndarray, " added"],
    ) -> None:
        """Add a task right before each of these.

        Args:
            tasks: indices; before the first task of an event, if it is fused.
            kind: of the new tasks.
            stage: virtual stage.
            number: micro-batch or round.
        """
        self._add(np.asarray(tasks), kind, stage, number)

    def behind(
        self,
        tasks: Int[np.ndarray, " added"],
        kind: Int[np.ndarray, " added"] | Kind,
        stage: Int[np.ndarray, " added"],
        number: Int[np.ndarray, " added"],
    ) -> None:
        """Add a task right behind each of these; arguments as `before`."""
        # Half a place behind the task and before whatever is added in front of the next one.
        self._add(np.asarray(tasks) + 0.5, kind, stage, number)

    def table(self) -> ScheduleTable:
        """The table with the added tasks, checked."""
        table = self._table
        if not self._place:
            return table
        added = [np.concatenate(column) for column in zip(*self._columns, strict=True)]
        place = np.concatenate([np.arange(table.tasks) + 0.25, *self._place])
        order = np.argsort(place, kind="stable")
        kind = np.concatenate([table.kind, added[0]])[order]
        stage = np.concatenate([table.stage, added[1]])[order]
        number = np.concatenate([table.micro_batch, added[2]])[order]
        nothing = len(added[0])
        fused = None if table.fused is None else np.append(table.fused, np.zeros(nothing, bool))[order]
        version = None if table.version is None else np.append(table.version, np.zeros(nothing, np.int32))[order]
        return replace(
            table,
            worker=table.placement.worker[stage],
            kind=kind,
            stage=stage,
            micro_batch=number,
            fused=fused,
            version=version,
        )

    def _add(self, place: np.ndarray, kind: np.ndarray | Kind, stage: np.ndarray, number: np.ndarray) -> None:
        kinds = np.broadcast_to(np.asarray(kind, np.int32), place.shape)
        self._place.append(place.astype(float))
        self._columns.append((kinds, np.broadcast_to(stage, place.shape), np.broadcast_to(number, place.shape)))
