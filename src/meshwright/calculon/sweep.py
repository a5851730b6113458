"""Many searches, one after the other or on a cluster: applications x systems x processors x batches.

Every design ends in a `Found`: its search, or why there is none. What is done with it, such as writing it to a file,
is the caller's, so that nothing waits in memory.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from meshwright.calculon.answer import Certificate, Partial, SearchResult, result_of
from meshwright.calculon.axes import Axes
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.legality import reject
from meshwright.calculon.model import price
from meshwright.calculon.search import search_part
from meshwright.calculon.space import Space
from meshwright.calculon.statistics import CalculonColumns
from meshwright.errors import InfeasibleError

TASK_EXECUTIONS = 1 << 26
"""A task of a cluster is at most about this many executions: some tenths of a second."""
DESIGNS_AT_ONCE = 256
"""Designs cut into parts together, so that the first answers do not wait for all spaces to be counted."""
ALL_ROWS = 1 << 15
"""Executions of a space priced together where all of them are wanted."""

MakeAxes = Callable[[System], Axes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One search of a sweep."""

    number: int
    """Position in the sweep."""
    app: Application
    system: System
    num_procs: int
    batch: int
    axes: Axes

    @property
    def space(self) -> Space:
        """What is searched."""
        return Space(self.app, self.system, self.num_procs, self.batch, self.axes)

    def to_dict(self) -> dict[str, object]:
        """As data, by names."""
        return {
            "design": self.number,
            "app": self.app.name,
            "system": self.system.name,
            "num_procs": self.num_procs,
            "batch": self.batch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What came of a design."""

    design: Design
    result: SearchResult | None
    """None for an empty space."""
    why_not: str
    """Empty where executions were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What each search of a sweep is asked for."""

    top: int = 10
    stop_microbatch: bool = False
    fixed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A part of a design's space, small enough to be done again if it is lost."""

    design: Design
    block: tuple[int, int]
    """First of `space.degrees`, and after the last."""


Runner = Callable[[list[Task], Asked], Iterator[tuple[int, Partial]]]
"""Does tasks in any order; gives position and result of every task once, as they end."""


def designs_of(
    apps: list[Application], systems: list[System], num_procs: list[int], batches: list[int], axes: MakeAxes
) -> list[Design]:
    """Every combination, applications slowest."""
    every = [(a, s, n, b) for a in apps for s in systems for n in num_procs for b in batches]
    return [
        Design(number=place, app=app, system=system, num_procs=number, batch=batch, axes=axes(system))
        for place, (app, system, number, batch) in enumerate(every)
    ]


def tasks_of(design: Design, executions: int = TASK_EXECUTIONS) -> list[Task]:
    """A design's space in parts of about equal size, along its splits of the processors; none for an empty space."""
    space = design.space
    tasks: list[Task] = []
    first = held = 0
    for place, degrees in enumerate(space.degrees):
        held += degrees.layouts * space.settings(degrees.above_one).rows
        if held >= executions or place + 1 == len(space.degrees):
            tasks.append(Task(design=design, block=(first, place + 1)))
            first, held = place + 1, 0
    return tasks


def do_task(task: Task, asked: Asked) -> Partial:
    """Search a part of a design's space.

    Parts prune by nothing found elsewhere, so that their counts do not depend on where and when they are done.

    Args:
        task: the part.
        asked: for what.
    """
    return search_part(
        task.design.space,
        top=asked.top,
        stop_microbatch=asked.stop_microbatch,
        fixed=asked.fixed,
        block=slice(*task.block),
    )


def run_here(tasks: list[Task], asked: Asked) -> Iterator[tuple[int, Partial]]:
    """Do tasks in this process, in order."""
    for place, task in enumerate(tasks):
        yield place, do_task(task, asked)


def sweep(
    designs: list[Design], asked: Asked, runner: Runner = run_here, *, executions: int = TASK_EXECUTIONS
) -> Iterator[Found]:
    """Search every design.

    Args:
        designs: what to search.
        asked: for what.
        runner: does the parts; in this process by default.
        executions: of a part, about.

    Returns:
        What came of each design, in order, each as soon as it and all before it have ended.
    """
    for first in range(0, len(designs), DESIGNS_AT_ONCE):
        yield from _sweep(designs[first : first + DESIGNS_AT_ONCE], asked, runner, executions)


def _sweep(designs: list[Design], asked: Asked, runner: Runner, executions: int) -> Iterator[Found]:
    tasks: list[Task] = []
    left: dict[int, int] = {}
    for design in designs:
        parts = tasks_of(design, executions)
        left[design.number] = len(parts)
        tasks += parts
    merged: dict[int, Partial] = {}
    waiting = list(designs)[::-1]
    started = time.perf_counter()
    for place, part in runner(tasks, asked):
        number = tasks[place].design.number
        merged.setdefault(number, Partial()).merge(part, asked.top)
        left[number] -= 1
        while waiting and not left[waiting[-1].number]:
            yield _found(waiting.pop(), merged, asked, started)
    while waiting:
        yield _found(waiting.pop(), merged, asked, started)


def _found(design: Design, merged: dict[int, Partial], asked: Asked, started: float) -> Found:
    part = merged.pop(design.number, None)
    if part is None:
        return Found(design=design, result=None, why_not=_why_empty(design))
    result = result_of(design.space, part, started=started, fixed=asked.fixed)
    return Found(design=design, result=result, why_not="" if result.best else why_nothing(result.certificate))


def why_nothing(certificate: Certificate) -> str:
    """What excludes every execution, the rule that excludes most first."""
    rules = sorted(certificate.pruned, key=lambda rule: -rule[1])
    return "; ".join(f"{count:,} of {certificate.space:,}: {rule}" for rule, count in rules)


def _why_empty(design: Design) -> str:
    try:
        design.space.require_executions()
    except InfeasibleError as error:
        return error.problems[0].why
    return ""


def every_execution(design: Design, *, fixed: bool = False) -> Iterator[tuple[np.ndarray, Any, CalculonColumns]]:
    """All accepted executions of a design with all statistics, some at a time.

    Returns:
        Numbers in the space, executions and statistics.
    """
    space = design.space
    for start in range(0, space.size, ALL_ROWS):
        numbers = np.arange(start, min(start + ALL_ROWS, space.size))
        columns = space.take(numbers)
        legal = np.flatnonzero(reject(space.app, space.system, columns) == 0)
        if not len(legal):
            continue
        numbers, columns = numbers[legal], columns.take(legal)
        priced = price(space.app, space.system, columns, fixed=fixed)
        kept = np.flatnonzero(priced.ok)
        if len(kept):
            values = {name: column[kept] for name, column in priced.values.items()}
            accepted = CalculonColumns(ok=priced.ok[kept], reason=priced.reason[kept], values=values)
            yield numbers[kept], columns.take(kept), accepted


def fingerprint(designs: list[Design], asked: Asked, *, every: bool) -> str:
    """A digest of what a sweep asks, so that a file is only gone on with under the same question.

    Args:
        designs: all of the sweep.
        asked: of each search.
        every: all accepted executions are written.
    """
    data = {"designs": [asdict(portable(design)) for design in designs], "asked": asdict(asked), "all": every}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def portable(design: Design) -> Design:
    """The design with plain mappings, which can be sent to other processes."""
    system = design.system
    networks = tuple(replace(network, operations=dict(network.operations)) for network in system.networks)
    plain = replace(system, matrix=dict(system.matrix), vector=dict(system.vector), networks=networks)
    return replace(design, system=plain)
