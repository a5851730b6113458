"""What can be wrong with a schedule table, each time told by the fewest tasks that show it."""

from __future__ import annotations

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.columns import ALONG, TaskColumns
from meshwright.schedules.kinds import ROUNDS, Kind, Placement

WAITS_SHOWN = 8
"""Waits of a circle that are spelt out."""


def table_problems(tasks: TaskColumns) -> list[Problem]:
    """Everything that is wrong: first what is missing or repeated, and if nothing is, what stands in a wrong order.

    Args:
        tasks: columns whose entries are within their ranges.
    """
    found = _missing_tasks(tasks)
    if not tasks.computes_only:
        from meshwright.schedules.pairing import pairing_problems  # few schedules list their transfers

        found += _misnumbered_rounds(tasks) or pairing_problems(tasks)
    if found:
        return found
    found = _early_tasks(tasks)
    if not tasks.computes_only or tasks.version is not None:
        from meshwright.schedules.lifetimes import lifetime_problems  # only where tasks are more than computing

        found += lifetime_problems(tasks)
    return found or _circle(tasks)


def column_problems(
    columns: dict[str, np.ndarray], placement: Placement, micro_batches: tuple[int, ...]
) -> list[Problem]:
    """Columns of unequal length and entries outside their range.

    Args:
        columns: worker, kind, stage and micro_batch.
        placement: the placement of the virtual stages.
        micro_batches: the micro-batches of each chain.
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1 or not lengths["worker"]:
        return [
            Problem(
                what=f"schedule table: columns of lengths {lengths}",
                why="one entry per task and at least one task",
                field="schedule",
            )
        ]
    if len(micro_batches) != placement.chains or min(micro_batches) < 1:
        return [
            Problem(
                what=f"schedule table: micro_batches {micro_batches} for {placement.chains} chains",
                why="every chain takes at least one micro-batch",
                field="micro_batches",
            )
        ]
    idle = np.nonzero(np.bincount(placement.worker, minlength=placement.p) == 0)[0]
    if len(idle):
        return [
            Problem(
                what=f"schedule table: worker {idle[0]} holds no stage ({len(idle)} such)",
                why=f"every worker from 0 to {placement.p - 1} runs tasks",
                fix="number the workers without gaps",
                field="placement",
            )
        ]
    by_micro_batch = ~ROUNDS[np.clip(columns["kind"], 0, len(Kind) - 1)]
    problems = []
    limits = {"worker": placement.p, "kind": len(Kind), "stage": placement.stages, "micro_batch": max(micro_batches)}
    for name, limit in limits.items():
        column = columns[name]
        beyond = (column >= limit) & by_micro_batch if name == "micro_batch" else column >= limit
        outside = (column < 0) | beyond
        if outside.any():
            problems.append(
                Problem(
                    what=f"schedule table: {name} {column[outside][0]} in task {int(np.nonzero(outside)[0][0])}",
                    why=f"{name} counts from 0 to {limit - 1}",
                    fix=f"use a number from 0 to {limit - 1}",
                    field=name,
                )
            )
    if problems:
        return problems
    misplaced = columns["worker"] != placement.worker[columns["stage"]]
    if misplaced.any():
        task = int(np.nonzero(misplaced)[0][0])
        stage = columns["stage"][task]
        problems.append(
            Problem(
                what=f"schedule table: stage {stage} on worker {columns['worker'][task]} ({misplaced.sum()} such)",
                why=f"the placement puts it on worker {placement.worker[stage]}",
                fix="run the task where its stage is placed",
                field="worker",
            )
        )
    beyond = columns["micro_batch"] >= np.asarray(micro_batches)[placement.chain[columns["stage"]]]
    beyond &= by_micro_batch
    if beyond.any():
        problems.append(
            Problem(
                what=f"schedule table: {beyond.sum()} tasks of micro-batches their chain does not take",
                why=f"the chains take {micro_batches} micro-batches",
                fix="number the micro-batches of each chain from 0",
                field="micro_batch",
            )
        )
    return problems


def _missing_tasks(tasks: TaskColumns) -> list[Problem]:
    """Tasks that are missing, repeated or contradict each other."""
    most = max(tasks.micro_batches)
    has = tasks.at[:, :, :most] >= 0
    problems = []
    exists = np.arange(most)[None, :] < np.asarray(tasks.micro_batches)[tasks.placement.chain][:, None]
    either = has[Kind.B] | has[Kind.I]
    split = has[Kind.I] & has[Kind.W] & ~has[Kind.B]
    unsplit = has[Kind.B] & ~has[Kind.I] & ~has[Kind.W]
    for what, wrong, rule in (
        ("no forward", exists & ~has[Kind.F], "every micro-batch runs F once on every virtual stage of its chain"),
        ("no backward", exists & ~either, "every F has exactly one B, or one I and one W"),
        (
            "a contradictory backward",
            exists & either & ~split & ~unsplit,
            "every F has exactly one B, or one I and one W",
        ),
    ):
        if wrong.any():
            stage, unit = (int(index[0]) for index in np.nonzero(wrong))
            own = tasks.at[[Kind.B, Kind.I, Kind.W], stage, unit]
            there = ", ".join(tasks.name(int(task)) for task in own if task >= 0)
            problems.append(
                Problem(
                    what=f"schedule table: stage {stage}, micro-batch {unit} has {what} ({wrong.sum()} such)"
                    + (f": {there}" if there and what.startswith("a") else ""),
                    why=rule,
                    fix=f"list the task once, on worker {tasks.placement.worker[stage]}",
                    field="schedule",
                )
            )
    repeated = tasks.tasks - int((tasks.at >= 0).sum())
    if repeated:
        again = np.nonzero(tasks.at[tasks.kind, tasks.stage, tasks.micro_batch] != np.arange(tasks.tasks))[0]
        problems.append(
            Problem(
                what=f"schedule table: {repeated} tasks are listed twice, the first of them {tasks.name(int(again[0]))}"
                f" on worker {tasks.worker[again[0]]}",
                why="a task runs once",
                fix="remove the repeated tasks",
                field="schedule",
            )
        )
    return problems


def _misnumbered_rounds(tasks: TaskColumns) -> list[Problem]:
    """Tasks of whole chunks that are not numbered 0, 1, 2, ... in their order."""
    rounds = np.nonzero(ROUNDS[tasks.kind])[0]
    group = tasks.kind[rounds].astype(np.int64) * tasks.placement.stages + tasks.stage[rounds]
    by_group = np.argsort(group, kind="stable")
    group = group[by_group]
    number = np.arange(len(group)) - np.searchsorted(group, group)
    wrong = np.nonzero(tasks.micro_batch[rounds[by_group]] != number)[0]
    if not len(wrong):
        return []
    task = int(rounds[by_group[wrong[0]]])
    return [
        Problem(
            what=f"schedule table: {tasks.name(task)} on worker {tasks.worker[task]} is number {number[wrong[0]]}"
            f" of its chunk ({len(wrong)} such)",
            why=f"{Kind(tasks.kind[task]).name} tasks of a chunk are numbered 0, 1, 2, ... in their order",
            fix=f"call it {Kind(tasks.kind[task]).name}{tasks.chunk[task]}.{number[wrong[0]]}",
            field="schedule",
        )
    ]


def _early_tasks(tasks: TaskColumns) -> list[Problem]:
    """Tasks that run before their input on the same worker."""
    for column in tasks.needs.T:
        local = (column >= 0) & (tasks.worker[column] == tasks.worker)
        early = np.nonzero(local & (tasks.node[column] >= tasks.node))[0]
        if len(early):
            task, needed = int(early[0]), int(column[early[0]])
            return [
                Problem(
                    what=f"schedule table: worker {tasks.worker[task]} runs {tasks.name(task)} before its input"
                    f" {tasks.name(needed)} ({len(early)} such)",
                    why="a task takes the results of its inputs",
                    fix=f"move {tasks.name(task)} after {tasks.name(needed)}",
                    field="schedule",
                )
            ]
    return []


def _circle(tasks: TaskColumns) -> list[Problem]:
    """Workers that wait for each other, told by the shortest circle of tasks."""
    node, level = tasks.node, tasks.node_level
    if not (level == 0).any():
        return []
    consumer = np.nonzero(tasks.crosses)[0]
    producer = tasks.needs[consumer, ALONG]
    stuck = (level[node[consumer]] == 0) & (level[node[producer]] == 0)
    consumer, producer = consumer[stuck], producer[stuck]
    from meshwright.schedules.cycles import shortest_circle  # orders that are run have none

    # At the head of each stuck list begins a wait, and from some of these there is a circle: they are tried first.
    worker = tasks.worker[consumer]
    first_stuck = np.searchsorted(worker, worker)
    heads_first = np.argsort(consumer - consumer[first_stuck], kind="stable")
    consumer, producer = consumer[heads_first], producer[heads_first]
    head = np.searchsorted(node, np.arange(int(node[-1]) + 1))
    waits = shortest_circle(node[producer], node[consumer], tasks.worker[head])
    shown = "; ".join(
        f"worker {tasks.worker[consumer[wait]]} needs {tasks.name(int(producer[wait]))} of worker"
        f" {tasks.worker[producer[wait]]} for {tasks.name(int(consumer[wait]))}"
        for wait in waits[:WAITS_SHOWN]
    )
    if len(waits) > WAITS_SHOWN:
        shown += f"; and {len(waits) - WAITS_SHOWN} more"
    # What a wait needs stands behind the task that the wait before it holds up.
    needed, blocker = int(producer[waits[0]]), int(consumer[waits[-1]])
    return [
        Problem(
            what=f"schedule table: {len(waits)} workers wait for each other in a circle: {shown}",
            why="the order of the workers and the dependencies of their tasks form a cycle (deadlock)",
            fix=f"on worker {tasks.worker[needed]}, move {tasks.name(needed)} before {tasks.name(blocker)}",
            field="schedule",
        )
    ]
