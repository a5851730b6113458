"""Orders by list scheduling of stages: whenever a worker is free, it runs the ready task ranked first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshwright.errors import InputError
from meshwright.schedules.list_scheduling import GreedyByRank, Work, list_schedule
from meshwright.schedules.lists import table_of_lists
from meshwright.schedules.table import Kind, Placement, ScheduleTable

Key = tuple[int, ...]
MOST_LOOKS = 10_000_000
"""Stages looked at while an order is made: some seconds."""


def list_table(
    placement: Placement,
    micro_batches: Sequence[int],
    ticks: tuple[int, int],
    rank: Callable[[Kind, int, int], Key],
    cap: Callable[[int], int | None] | None = None,
    lengths: Sequence[int] | None = None,
) -> ScheduleTable:
    """The order in which workers that never wait on purpose run forwards and backwards of stages.

    Args:
        placement: the placement of the virtual stages, one or more chains.
        micro_batches: the micro-batches that enter each chain.
        ticks: whole time units of a forward and of a backward of one chunk; only their ratio matters.
        rank: the rank of a task by kind, virtual stage and micro-batch; the lowest runs first.
        cap: most micro-batches of a virtual stage between the start of its forward and the end of its backward, None
            for any number; a worker with nothing else to do then waits.
        lengths: the lengths of the virtual stages, in whole chunks; None: stages are equal.
    """
    looks = 2 * placement.stages * max(micro_batches) * -(-placement.stages // placement.p)
    if looks > MOST_LOOKS:
        what = f"{placement.stages:,} virtual stages on {placement.p} workers"
        why = "a free worker looks at each of its stages before every task, which would take minutes"
        raise InputError(what=what, why=why, fix="fewer chunks a worker", field="v", code="MW240")
    work = Work(
        placement=placement,
        micro_batches=tuple(micro_batches),
        forward_s=[ticks[0] * length for length in lengths or [1] * placement.stages],
        gradient_s=[ticks[1] * length for length in lengths or [1] * placement.stages],
    )
    caps = None if cap is None else [cap(stage) for stage in range(placement.stages)]
    lists = list_schedule(work, GreedyByRank(rank, caps)).lists
    return table_of_lists(placement, tuple(micro_batches), lists)
