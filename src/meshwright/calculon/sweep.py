"""Many searches, one after the other or on a cluster: applications x systems x processors x batches.

Every design ends in a `Found`: its search, or why there is none. What is done with it, such as writing it to a file,
is the caller's, so that nothing waits in memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from meshwright.calculon.answer import ExecutionAnswer, SearchGoal, space_answer
from meshwright.calculon.axes import MakeAxes
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.legality import reject
from meshwright.calculon.model import price
from meshwright.calculon.search import search_part
from meshwright.calculon.space import ExecutionSpace
from meshwright.calculon.statistics import CalculonColumns
from meshwright.errors import InfeasibleError
from meshwright.search.incumbents import SearchedPart
from meshwright.search.result import Certificate
from meshwright.search.tasks import Runner, run_here

TASK_EXECUTIONS = 1 << 26
"""A task of a cluster is at most about this many executions: some tenths of a second."""
DESIGNS_AT_ONCE = 256
"""Designs cut into parts together, so that the first answers do not wait for all spaces to be counted."""
ALL_ROWS = 1 << 15
"""Executions of a space priced together where all of them are wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """One search of a sweep."""

    number: int
    """Position in the sweep."""
    space: ExecutionSpace

    def to_dict(self) -> dict[str, object]:
        """As data, by names."""
        space = self.space
        return {
            "design": self.number,
            "app": space.app.name,
            "system": space.system.name,
            "num_procs": space.num_procs,
            "batch": space.batch,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignResult:
    """What came of a design."""

    design: Design
    result: ExecutionAnswer | None
    """None for an empty space."""
    why_not: str
    """Empty where executions were found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPart:
    """A part of a design's space as a task."""

    design: Design
    goal: SearchGoal
    block: tuple[int, int]
    """First of `space.degrees`, and after the last."""

    def __call__(self) -> SearchedPart:
        """Search it."""
        return search_part(self.design.space, self.goal, slice(*self.block))


def designs_of(
    apps: list[Application], systems: list[System], num_procs: list[int], batches: list[int], axes: MakeAxes
) -> list[Design]:
    """Every combination, applications slowest."""
    every = itertools.product(apps, systems, num_procs, batches)
    return [
        Design(number=place, space=ExecutionSpace(app, system, number, batch, axes(system)))
        for place, (app, system, number, batch) in enumerate(every)
    ]


def design_parts(design: Design, goal: SearchGoal, executions: int = TASK_EXECUTIONS) -> list[DesignPart]:
    """A design's space in parts of about equal size, along its splits of the processors; none for an empty space."""
    space = design.space
    parts: list[DesignPart] = []
    first = held = 0
    for place, degrees in enumerate(space.degrees):
        held += degrees.layouts * space.settings(degrees.above_one).rows
        if held >= executions or place + 1 == len(space.degrees):
            parts.append(DesignPart(design=design, goal=goal, block=(first, place + 1)))
            first, held = place + 1, 0
    return parts


def sweep(
    designs: list[Design], goal: SearchGoal, runner: Runner = run_here, *, executions: int = TASK_EXECUTIONS
) -> Iterator[DesignResult]:
    """Search every design.

    Args:
        designs: what to search.
        goal: what for.
        runner: does the parts; in this process by default.
        executions: the number of executions of a part, about.

    Returns:
        What came of each design, in order, each as soon as it and all before it have ended.
    """
    for first in range(0, len(designs), DESIGNS_AT_ONCE):
        yield from _sweep(designs[first : first + DESIGNS_AT_ONCE], goal, runner, executions)


def _sweep(designs: list[Design], goal: SearchGoal, runner: Runner, executions: int) -> Iterator[DesignResult]:
    tasks: list[DesignPart] = []
    left: dict[int, int] = {}
    for design in designs:
        parts = design_parts(design, goal, executions)
        left[design.number] = len(parts)
        tasks += parts
    merged: dict[int, SearchedPart] = {}
    waiting = list(designs)[::-1]
    started = time.perf_counter()
    for place, part in runner(tasks):
        number = tasks[place].design.number
        merged.setdefault(number, SearchedPart()).merge(part, goal.top)
        left[number] -= 1
        while waiting and not left[waiting[-1].number]:
            yield _found(waiting.pop(), merged, goal, started)
    while waiting:
        yield _found(waiting.pop(), merged, goal, started)


def _found(design: Design, merged: dict[int, SearchedPart], goal: SearchGoal, started: float) -> DesignResult:
    part = merged.pop(design.number, None)
    if part is None:
        return DesignResult(design=design, result=None, why_not=_why_empty(design))
    result = space_answer(design.space, part, started=started, fixed=goal.fixed)
    return DesignResult(design=design, result=result, why_not="" if result.best else why_nothing(result.certificate))


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


def fingerprint(designs: list[Design], goal: SearchGoal, *, every: bool) -> str:
    """A digest of what a sweep asks, so that a file is only gone on with under the same question.

    Args:
        designs: all of the sweep.
        goal: the goal of each search.
        every: all accepted executions are written.
    """
    data = {
        "designs": [{"number": design.number, **asdict(design.space)} for design in designs],
        "asked": {key: value for key, value in asdict(goal).items() if key != "front"},
        "all": every,
    }
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
