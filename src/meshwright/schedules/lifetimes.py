"""Whether what a task uses is there: weights that are gathered, paged or updated, activations that are moved away."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.columns import TaskColumns
from meshwright.schedules.kinds import WEIGHTED, Kind
from meshwright.shapes import Bool, Int


def lifetime_problems(tasks: TaskColumns) -> list[Problem]:
    """Everything that is used before it exists or after it is freed.

    Args:
        tasks: complete and paired.
    """
    found = [
        *_kept_apart(tasks, Kind.UNSHARD, Kind.RESHARD, "gathered", there_first=False),
        *_kept_apart(tasks, Kind.RELOAD_W, Kind.OFFLOAD_W, "on the device", there_first=None),
        *_away(tasks),
        *_updates(tasks),
    ]
    return found if tasks.version is None else [*found, *_versions(tasks)]


def _kept_apart(
    tasks: TaskColumns, brings: Kind, frees: Kind, state: str, *, there_first: bool | None
) -> Iterator[Problem]:
    """Weights that are brought twice, freed twice, or used while they are away.

    `there_first` says whether they are there at the start; None: unless the first thing that happens is to bring them.
    """
    if brings not in tasks.kinds and frees not in tasks.kinds:
        return
    change = (tasks.kind == brings).astype(np.int64) - (tasks.kind == frees)
    by_stage = np.argsort(tasks.stage, kind="stable")
    stage, change = tasks.stage[by_stage], change[by_stage]
    first = np.searchsorted(stage, np.arange(tasks.placement.stages))
    changes = np.nonzero(change)[0]
    opening = np.zeros(tasks.placement.stages, np.int64)
    touched, where = np.unique(stage[changes], return_index=True)
    opening[touched] = 0 if there_first is False else (change[changes[where]] < 0)
    total = np.cumsum(change)
    before = (total - change) - (total - change)[first][stage] + opening[stage]
    concerned = np.isin(stage, touched)
    twice = (change > 0) & (before != 0)
    gone = (change < 0) & (before != 1)
    absent = concerned & _uses_weights(tasks, brings)[by_stage] & (before != 1)
    for wrong, what, fix in (
        (twice, f"brings weights that are {state}", f"list one {frees.name} between two {brings.name}"),
        (gone, f"frees weights that are not {state}", f"list one {brings.name} before each {frees.name}"),
        (absent, f"needs weights that are not {state}", f"list it after a {brings.name} and before its {frees.name}"),
    ):
        if wrong.any():
            task = int(by_stage[np.nonzero(wrong)[0][0]])
            yield _problem(tasks, task, f"{what} ({wrong.sum()} such){_freed_by(tasks, task, frees)}", fix)


def _uses_weights(tasks: TaskColumns, brings: Kind) -> Bool[np.ndarray, " tasks"]:
    uses = WEIGHTED[tasks.kind]
    return uses | (tasks.kind == Kind.UNSHARD) if brings is Kind.RELOAD_W else uses


def _freed_by(tasks: TaskColumns, task: int, frees: Kind) -> str:
    """The task that freed what a task needs, if one did."""
    freed = int(tasks.latest(frees)[task])
    return f", freed by {tasks.name(freed)}" if freed >= 0 else ""


def _away(tasks: TaskColumns) -> Iterator[Problem]:
    """Activations that are moved away and do not come back, or come back without having been away."""
    if not tasks.kinds & {Kind.OFFLOAD_A, Kind.RELOAD_A}:
        return
    away, back = tasks.at[Kind.OFFLOAD_A], tasks.at[Kind.RELOAD_A]
    for lone, fix in ((np.where(back < 0, away, -1), "RELOAD_A"), (np.where(away < 0, back, -1), "OFFLOAD_A")):
        if (lone >= 0).any():
            task = int(lone[lone >= 0][0])
            what = f"has no {fix} of the same micro-batch ({(lone >= 0).sum()} such)"
            yield _problem(tasks, task, what, f"list {fix}{tasks.name(task).removeprefix(Kind(tasks.kind[task]).name)}")


def _updates(tasks: TaskColumns) -> Iterator[Problem]:
    """Gradients that no optimizer step applies, or no reduction sums, although their stage has such tasks."""
    for kind in (Kind.REDUCE, Kind.OPT):
        if kind not in tasks.kinds:
            continue
        last = np.full(tasks.placement.stages, -1)
        own = np.nonzero(tasks.kind == kind)[0]
        last[tasks.stage[own]] = own
        late = np.isin(tasks.kind, (Kind.B, Kind.W)) & (np.arange(tasks.tasks) > last[tasks.stage])
        late &= last[tasks.stage] >= 0
        if late.any():
            task = int(np.nonzero(late)[0][0])
            closing = tasks.name(int(last[tasks.stage[task]]))
            what = f"makes a gradient after {closing}, the last {kind.name} of its chunk ({late.sum()} such)"
            yield _problem(tasks, task, what, f"move {closing} after it")


def _versions(tasks: TaskColumns) -> Iterator[Problem]:
    """Versions of the weights used before they are made, and backwards on another version than their forwards."""
    assert tasks.version is not None
    uses = WEIGHTED[tasks.kind]
    made = versions_made(tasks)
    early = uses & (tasks.version > made)
    if early.any():
        task = int(np.nonzero(early)[0][0])
        what = f"uses version {tasks.version[task]} of weights that have seen {made[task]} steps ({early.sum()} such)"
        yield _problem(tasks, task, what, f"list it after OPT{tasks.chunk[task]}.{tasks.version[task] - 1}")
    forward = tasks.at[Kind.F][tasks.stage, np.minimum(tasks.micro_batch, tasks.at.shape[2] - 1)]
    other = uses & (tasks.version != tasks.version[forward])
    if other.any():
        task = int(np.nonzero(other)[0][0])
        yield _problem(
            tasks,
            task,
            f"differs from {tasks.name(int(forward[task]))} in its version ({other.sum()} such)",
            "give both the version that the forward used",
        )


def versions_made(tasks: TaskColumns) -> Int[np.ndarray, " tasks"]:
    """Optimizer steps of its stage that are listed before each task.

    Args:
        tasks: the tasks of a table.
    """
    by_stage = np.argsort(tasks.stage, kind="stable")
    stage = tasks.stage[by_stage]
    steps = np.cumsum(tasks.kind[by_stage] == Kind.OPT)
    start = np.searchsorted(stage, stage)
    made = np.empty(tasks.tasks, np.int64)
    made[by_stage] = (
        steps - steps[start] + (tasks.kind[by_stage][start] == Kind.OPT) - (tasks.kind[by_stage] == Kind.OPT)
    )
    return made


def _problem(tasks: TaskColumns, task: int, what: str, fix: str) -> Problem:
    return Problem(
        what=f"schedule table: {tasks.name(task)} on worker {tasks.worker[task]} {what}",
        why="nothing is used before it exists or after it is freed",
        fix=fix,
        field="schedule",
    )
