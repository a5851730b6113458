"""A schedule table as the actions that `torch.distributed.pipelining` runs, and back; refuses what PyTorch cannot say.

PyTorch (2.13) knows one chain of virtual stages, each on one rank with one version of its weights, and recomputes only
inside a backward. It keeps the losses of the last stage in the order in which they arise and finds them by number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.formats.torch_csv import KINDS, Actions
from meshwright.schedules.table import Kind, Placement, ScheduleTable
from meshwright.shapes import Bool, Int

TORCH_KIND = {Kind.F: "F", Kind.B: "B", Kind.I: "I", Kind.W: "W"}
"""PyTorch's word for each kind of task."""


def to_actions(table: ScheduleTable) -> Actions:
    """The actions of every rank, in the table's order.

    A recomputation right in front of its backward is left out: activation checkpointing does it there.

    Args:
        table: the schedule.

    Raises:
        UnsupportedError: listing all that PyTorch cannot do of it.
    """
    kept = ~_inside_backward(table)
    problems = list(_refused(table, kept))
    if problems:
        raise UnsupportedError(problems, code="MW421")
    torch_kind = np.zeros(max(Kind) + 1, np.int32)
    torch_kind[list(TORCH_KIND)] = [KINDS.index(name) for name in TORCH_KIND.values()]
    joined = np.zeros(table.tasks, bool) if table.fused is None else table.fused
    return Actions(
        rank=table.worker[kept],
        kind=torch_kind[table.kind[kept]],
        stage=table.stage[kept],
        micro_batch=table.micro_batch[kept],
        joined=joined[kept],
    )


def from_actions(actions: Actions) -> ScheduleTable:
    """The table of these actions, checked as every table is.

    Args:
        actions: of every rank.

    Raises:
        InputError: a stage is missing or on two ranks, or the table's own checks fail.
    """
    problems = _gaps(actions)
    if problems:
        raise InputError(problems, code="MW246")
    worker = np.empty(int(actions.stage.max()) + 1, np.int32)
    worker[actions.stage] = actions.rank
    kind = np.full(len(KINDS), -1, np.int32)
    kind[[KINDS.index(name) for name in TORCH_KIND.values()]] = list(TORCH_KIND)
    return ScheduleTable(
        placement=Placement.of_chains([worker.tolist()]),
        micro_batches=(int(actions.micro_batch.max()) + 1,),
        worker=actions.rank,
        kind=kind[actions.kind],
        stage=actions.stage,
        micro_batch=actions.micro_batch,
        fused=actions.joined,
    )


def _inside_backward(table: ScheduleTable) -> Bool[np.ndarray, " tasks"]:
    """Recomputations whose own backward is the next task of the worker."""
    backward = np.isin(np.append(table.kind[1:], Kind.F), (Kind.B, Kind.I))
    same = [np.append(column[1:] == column[:-1], False) for column in (table.worker, table.stage, table.micro_batch)]
    return (table.kind == Kind.R) & backward & np.logical_and.reduce(same)


def _refused(table: ScheduleTable, kept: Bool[np.ndarray, " tasks"]) -> Iterator[Problem]:
    def refusal(what: str, why: str, fix: str) -> Problem:
        return Problem(what=what, why=f"torch.distributed.pipelining {why}", fix=fix, field="schedule")

    if table.placement.chains > 1:
        what = f"{table.placement.chains} chains of stages, that many copies of the weights"
        yield refusal(what, "runs one chain, each stage on one rank", "a schedule of one chain, such as dualpipev")
    if table.segments > 1:
        what = f"{table.segments} segments of every sequence"
        yield refusal(what, "runs whole sequences", "a schedule of whole micro-batches, such as 1f1b")
    for kind in np.unique(table.kind[kept]):
        if kind not in TORCH_KIND:
            tasks = kept & (table.kind == kind)
            what = f"{tasks.sum()} tasks of kind {Kind(kind).name}"
            yield refusal(what, f"has actions {', '.join(TORCH_KIND.values())} for tasks", "a schedule without them")
    last = table.placement.stages - 1
    units = table.micro_batch[(table.kind == Kind.F) & (table.stage == last)]
    if table.placement.chains == 1 and np.any(units[1:] < units[:-1]):
        what = f"the last stage runs its forwards in the order {', '.join(map(str, units[:8].tolist()))} ..."
        yield refusal(what, "takes its losses to be in the order of the micro-batches", "number them in that order")


def _gaps(actions: Actions) -> list[Problem]:
    """Stages on two ranks, and stages or micro-batches that are left out."""
    problems = []
    rank_of = dict(zip(actions.stage[::-1].tolist(), actions.rank[::-1].tolist(), strict=True))
    expected = np.array([rank_of[stage] for stage in actions.stage.tolist()])
    for stage in np.unique(actions.stage[expected != actions.rank])[:8].tolist():
        ranks = np.unique(actions.rank[actions.stage == stage]).tolist()
        what = f"stage {stage} is on ranks {', '.join(map(str, ranks))}"
        why = "a stage lives on one rank, which runs all its actions"
        problems.append(Problem(what=what, why=why, fix="move its actions to one line", field="schedule"))
    for noun, column in (("stage", actions.stage), ("micro-batch", actions.micro_batch)):
        missing = _first_gap(column)
        if missing is not None:
            what = f"{noun} {missing} is missing, though {noun} {column.max()} is there"
            why = f"every {noun} counts from 0, and none is left out"
            problems.append(
                Problem(what=what, why=why, fix="add its actions, or number them all anew", field="schedule")
            )
    stages, units = int(actions.stage.max()) + 1, int(actions.micro_batch.max()) + 1
    if not problems and stages * units > len(actions):
        what = f"{len(actions):,} actions for {stages:,} stages and {units:,} micro-batches"
        why = f"every stage runs each micro-batch forward and backward, {2 * stages * units:,} tasks at least"
        problems.append(Problem(what=what, why=why, fix="add the actions that are missing", field="schedule"))
    return problems


def _first_gap(column: Int[np.ndarray, " actions"]) -> int | None:
    """The smallest number from 0 on that a column lacks below its largest."""
    found = np.unique(column[column >= 0])
    gaps = np.nonzero(found != np.arange(len(found)))[0]
    return int(gaps[0]) if len(gaps) else None
