"""How passes add tasks to a table: each new one right before or right behind a task that is there."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from meshwright.schedules.kinds import WEIGHTED, Kind
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Bool, Int


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StageRuns:
    """Stretches in which a worker works on one virtual stage without turning to another one."""

    stage: Int[np.ndarray, " runs"]
    number: Int[np.ndarray, " runs"]
    """How many runs the stage had before."""
    first: Int[np.ndarray, " runs"]
    """First task of each run."""
    last: Int[np.ndarray, " runs"]
    ahead: Int[np.ndarray, " runs"]
    """Task before which something has to begin that is to be ready for the run, some compute tasks before it."""
    backward: Bool[np.ndarray, " runs"]
    """Whether the run makes weight gradients."""


def stage_runs(table: ScheduleTable, ahead: int) -> StageRuns:
    """The runs of every stage, in the order of stages.

    Args:
        table: any table.
        ahead: compute tasks of the worker, at most, before which preparations may begin; they stay behind the stage's
            own run before.
    """
    uses = np.nonzero(WEIGHTED[table.kind])[0]
    # Events that use weights, counted over all workers; fused tasks are one.
    event = np.unique(table.node[uses], return_inverse=True)[1]
    by_stage = np.argsort(table.stage[uses], kind="stable")
    stage, event_of = table.stage[uses[by_stage]], event[by_stage]
    opens = np.append(True, (stage[1:] != stage[:-1]) | (np.diff(event_of) > 1))
    starts = np.nonzero(opens)[0]
    ends = np.append(starts[1:], len(stage)) - 1
    run_stage = stage[starts]
    number = np.arange(len(starts)) - np.searchsorted(run_stage, run_stage)
    head = np.unique(event, return_index=True)[1]
    own_first = np.searchsorted(table.worker[uses[head]], table.placement.worker[run_stage])
    behind_own = np.where(number > 0, np.append(0, event_of[ends[:-1]] + 1), 0)
    begin = np.maximum(np.maximum(event_of[starts] - ahead, own_first), behind_own)
    makes = np.isin(table.kind[uses[by_stage]], (Kind.B, Kind.W))
    return StageRuns(
        stage=run_stage,
        number=number,
        first=uses[by_stage[starts]],
        last=uses[by_stage[ends]],
        ahead=uses[head[begin]],
        backward=np.logical_or.reduceat(makes, starts),
    )


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
            tasks: indices; of fused tasks, before the first of them.
            kind: the kind of the new tasks.
            stage: virtual stage.
            number: micro-batch or round.
        """
        table = self._table
        place = tasks if table.fused is None else np.searchsorted(table.node, table.node[tasks])
        self._add(np.asarray(place), kind, stage, number)

    def behind(
        self,
        tasks: Int[np.ndarray, " added"],
        kind: Int[np.ndarray, " added"] | Kind,
        stage: Int[np.ndarray, " added"],
        number: Int[np.ndarray, " added"],
    ) -> None:
        """Add a task right behind each of these, of fused tasks behind the last of them; arguments as `before`."""
        table = self._table
        place = tasks if table.fused is None else np.searchsorted(table.node, table.node[tasks], side="right") - 1
        # Half a place behind the task and before whatever is added in front of the next one.
        self._add(np.asarray(place) + 0.5, kind, stage, number)

    def table(self) -> ScheduleTable:
        """The table with the added tasks, checked."""
        table = self._table
        if not sum(len(place) for place in self._place):
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
