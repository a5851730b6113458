"""A schedule table as the actions that `torch.distributed.pipelining` runs, and back; refuses what PyTorch cannot say.

PyTorch (2.13) knows one chain of virtual stages, each on one rank with one version of its weights, and recomputes only
inside a backward. It keeps the losses of the last stage in the order in which they arise and finds them by number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.formats.torch_csv import KINDS, NONE, Actions
from meshwright.schedules.columns import ALONG, TaskColumns
from meshwright.schedules.kinds import LANE, ROUNDS, Kind, Lane, Placement
from meshwright.schedules.passes import Insertions
from meshwright.schedules.table import ScheduleTable
from meshwright.shapes import Bool, Int

TORCH_KIND = {
    Kind.F: "F",
    Kind.B: "B",
    Kind.I: "I",
    Kind.W: "W",
    Kind.SEND_F: "SEND_F",
    Kind.RECV_F: "RECV_F",
    Kind.SEND_B: "SEND_B",
    Kind.RECV_B: "RECV_B",
    Kind.UNSHARD: "UNSHARD",
    Kind.RESHARD: "RESHARD",
    Kind.REDUCE: "REDUCE_GRAD",
}
"""PyTorch's word for each kind of task."""


def to_actions(table: ScheduleTable) -> Actions:
    """The actions of every rank, in the table's order; of a table with communication, all of them (compute_comms).

    A recomputation right in front of its backward is left out: activation checkpointing does it there. With
    communication, receives move forward to where the message is sent in one order for all ranks, as PyTorch posts them
    itself: its NCCL runs the messages of a rank one after the other, so that two ranks that send first would wait for
    each other. And every stage reduces its gradients, which is where PyTorch averages them over the micro-batches.

    Args:
        table: the schedule.

    Raises:
        UnsupportedError: listing all that PyTorch cannot do of it.
    """
    problems = list(_refused(table))
    if problems:
        raise UnsupportedError(problems, code="MW421")
    if not table.computes_only:
        table = _reducing(table)
    order = _one_order_of_messages(table)
    order = order[~_inside_backward(table)[order]]
    torch_kind = np.zeros(len(Kind), np.int32)
    torch_kind[list(TORCH_KIND)] = [KINDS.index(name) for name in TORCH_KIND.values()]
    joined = np.zeros(table.tasks, bool) if table.fused is None else table.fused
    return Actions(
        rank=table.worker[order],
        kind=torch_kind[table.kind[order]],
        stage=table.stage[order],
        micro_batch=np.where(ROUNDS[table.kind], NONE, table.micro_batch)[order],
        joined=joined[order],
    )


def from_actions(actions: Actions) -> ScheduleTable:
    """The table of these actions, checked as every table is.

    Args:
        actions: the actions of every rank.

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
        micro_batch=np.where(actions.micro_batch == NONE, _occurrence(actions), actions.micro_batch),
        fused=actions.joined,
    )


def _refused(table: ScheduleTable) -> Iterator[Problem]:
    def refusal(what: str, why: str, fix: str) -> Problem:
        return Problem(what=what, why=f"torch.distributed.pipelining {why}", fix=fix, field="schedule")

    if table.placement.chains > 1:
        what = f"{table.placement.chains} chains of stages, that many copies of the weights"
        yield refusal(what, "runs one chain, each stage on one rank", "a schedule of one chain, such as dualpipev")
    if table.segments > 1:
        what = f"{table.segments} segments of every sequence"
        yield refusal(what, "runs whole sequences", "a schedule of whole micro-batches, such as 1f1b")
    if table.version is not None:
        what = f"{len(np.unique(table.version))} versions of the weights"
        yield refusal(what, "runs a step with one version", "a schedule that flushes, such as pipedream-flush")
    strange = ~np.isin(table.kind, list(TORCH_KIND)) & ~_inside_backward(table)
    for kind in np.unique(table.kind[strange]).tolist():
        what = f"{np.sum(strange & (table.kind == kind))} tasks of kind {Kind(kind).name}"
        yield refusal(what, f"knows {', '.join(TORCH_KIND.values())}", "a schedule without them")
    last = table.placement.stages - 1
    units = table.micro_batch[(table.kind == Kind.F) & (table.stage == last)]
    if table.placement.chains == 1 and np.any(units[1:] < units[:-1]):
        what = f"the last stage runs its forwards in the order {', '.join(map(str, units[:8].tolist()))} ..."
        yield refusal(what, "takes its losses to be in the order of the micro-batches", "number them in that order")


def _inside_backward(table: ScheduleTable) -> Bool[np.ndarray, " tasks"]:
    """Recomputations whose own backward is the next task of the worker that computes."""
    computes = np.nonzero(LANE[table.kind] == Lane.COMPUTE)[0]
    following = np.append(computes[1:], computes[-1])
    alike = [column[computes] == column[following] for column in (table.worker, table.stage, table.micro_batch)]
    own = (table.kind[computes] == Kind.R) & np.isin(table.kind[following], (Kind.B, Kind.I))
    inside = np.zeros(table.tasks, bool)
    inside[computes] = own & np.logical_and.reduce(alike)
    return inside


def _reducing(table: ScheduleTable) -> ScheduleTable:
    """The table with a REDUCE behind the last weight gradient of every stage that has none."""
    last = np.full(table.placement.stages, -1)
    gradients = np.nonzero(np.isin(table.kind, (Kind.B, Kind.W)))[0]
    last[table.stage[gradients]] = gradients
    missing = np.setdiff1d(np.arange(table.placement.stages), table.stage[table.kind == Kind.REDUCE])
    added = Insertions(table)
    if len(missing):
        added.behind(last[missing], Kind.REDUCE, missing, np.zeros(len(missing), np.int32))
    return added.table()


def _one_order_of_messages(table: ScheduleTable) -> Int[np.ndarray, " tasks"]:
    """The tasks of every worker, each receive as early as its message is sent in an order common to all workers.

    That order is by the topological level of what computes; where receives are listed does not matter to it.
    """
    if table.computes_only:
        return np.arange(table.tasks)
    computes = LANE[table.kind] == Lane.COMPUTE
    done = np.cumsum(computes)
    earlier = (done - computes)[table.first[table.worker]]
    level = np.where(done > earlier, np.append(0, _computation(table, computes).level)[done], 0)
    receives = LANE[table.kind] == Lane.RECEIVE
    event = np.where(receives, table.needs[:, ALONG], np.arange(table.tasks))
    return np.lexsort((receives, event, level[event], table.worker))


def _computation(table: ScheduleTable, computes: Bool[np.ndarray, " tasks"]) -> TaskColumns:
    """The tasks of a table that compute, on their own."""
    return TaskColumns(
        placement=table.placement,
        micro_batches=table.micro_batches,
        worker=table.worker[computes],
        kind=table.kind[computes],
        stage=table.stage[computes],
        micro_batch=table.micro_batch[computes],
        fused=None if table.fused is None else table.fused[computes],
    )


def _occurrence(actions: Actions) -> Int[np.ndarray, " actions"]:
    """How many actions of its kind and stage are listed before each one."""
    key = actions.kind.astype(np.int64) * (int(actions.stage.max()) + 1) + actions.stage
    grouped = np.argsort(key, kind="stable")
    occurrence = np.empty(len(actions), np.int32)
    occurrence[grouped] = np.arange(len(actions)) - np.searchsorted(key[grouped], key[grouped])
    return occurrence


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
            fix = "add its actions, or number them all anew"
            problems.append(Problem(what=what, why=why, fix=fix, field="schedule"))
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
