"""What if the system were different: the best execution searched anew for each number of the system changed.

A number that matters little for the best execution of today may matter much for another that it makes best, so every
change is searched, not only priced; both are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from meshwright.calculon.answer import ExecutionAnswer, PricedExecution, SearchGoal
from meshwright.calculon.axes import MakeAxes
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, Execution, System
from meshwright.calculon.model import price
from meshwright.calculon.search import search
from meshwright.calculon.space import ExecutionSpace


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemNumber:
    """One number of a system."""

    name: str
    """Name as the system file spells it: `networks[0].bandwidth`."""
    value: float
    unit: str
    scaled: Callable[[float], System]
    """The system with this number times a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """The answer for one changed number."""

    factor: float
    best: PricedExecution | None
    """Best execution of the changed system; None where nothing fits."""
    repriced_rate: float | None
    """Samples per second of the unchanged system's best execution; None where it no longer fits."""
    moved: tuple[str, ...]
    """Keys in which the best execution differs from the unchanged system's."""

    @property
    def rate(self) -> float:
        """Samples per second of the best execution, 0 where nothing fits."""
        return self.best.sample_rate if self.best else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What one number of the system is worth."""

    name: str
    value: float
    unit: str
    changes: tuple[Variation, ...]
    """One per factor, in the order asked for."""

    @property
    def spread(self) -> float:
        """Samples per second between the best and the worst change."""
        rates = [change.rate for change in self.changes]
        return max(rates) - min(rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Sensitivities of the optimum, the largest first."""

    base: ExecutionAnswer
    numbers: tuple[Sensitivity, ...]


def system_numbers(system: System, datatypes: tuple[str, ...]) -> Iterator[SystemNumber]:
    """The numbers of a system that its executions may read.

    Args:
        system: the system.
        datatypes: the datatypes that executions use; engines of others do not count.
    """

    def number(name: str, value: float, unit: str, *path: str | int) -> SystemNumber:
        return SystemNumber(name=name, value=value, unit=unit, scaled=lambda factor: _scaled(system, path, factor))

    for engine in ("matrix", "vector"):
        rates = getattr(system, engine)
        for name in datatypes:
            yield number(f"{engine}.{name}.tflops", rates[name].peak / 1e12, "TFLOP/s", engine, name, "peak")
    for tier in ("mem1", "mem2"):
        memory = getattr(system, tier)
        if memory.capacity_bytes > 0:
            yield number(f"{tier}.GiB", memory.capacity_bytes / 2**30, "GiB", tier, "capacity_bytes")
            yield number(f"{tier}.GBps", memory.rate.peak / 1e9, "GB/s", tier, "rate", "peak")
    for place, network in enumerate(system.networks):
        where = f"networks[{place}]"
        bandwidth = network.bandwidth_bytes_per_s / 1e9
        yield number(f"{where}.bandwidth", bandwidth, "GB/s", "networks", place, "bandwidth_bytes_per_s")
        if network.latency_s > 0:
            yield number(f"{where}.latency", network.latency_s * 1e6, "µs", "networks", place, "latency_s")
        if network.size > 1:
            yield number(f"{where}.size", network.size, "processors", "networks", place, "size")


def _at(owner: Any, path: tuple[str | int, ...]) -> Any:
    """What lies at a path of field names, keys and positions."""
    for step in path:
        owner = getattr(owner, str(step)) if is_dataclass(owner) else owner[step]
    return owner


def _scaled(owner: Any, path: tuple[str | int, ...], factor: float) -> Any:
    """The same with the number at a path times a factor; whole numbers stay whole, and at least 1."""
    if not path:
        return max(1, int(owner * factor)) if isinstance(owner, int) else owner * factor
    step, inner = path[0], _scaled(_at(owner, path[:1]), path[1:], factor)
    if is_dataclass(owner):
        return replace(owner, **{str(step): inner})  # type: ignore[type-var]
    if isinstance(owner, Mapping):
        return {**owner, step: inner}
    return tuple(inner if place == step else one for place, one in enumerate(owner))


def what_if(
    space: ExecutionSpace,
    axes: MakeAxes,
    *,
    factors: tuple[float, ...] = (0.5, 2.0),
    fixed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """How the best execution's sample rate changes with each number of the system, searched anew each time.

    Args:
        space: the space of the unchanged system.
        axes: makes the axes of a changed one.
        factors: each number is multiplied by each of these, one number at a time.
        fixed: whether to correct the model's known errors.
        progress: called with the searches done and the searches in all.

    Returns:
        The unchanged optimum and the numbers, that with the largest spread first.

    Raises:
        InfeasibleError: the space is empty.
    """
    goal = SearchGoal(top=1, front=False, fixed=fixed)
    base = search(space, goal)
    best = base.best[0] if base.best else None
    datatypes = tuple(str(value) for value in space.axes.axis("datatype").values)
    numbers = list(system_numbers(space.system, datatypes))
    total = 1 + len(numbers) * len(factors)
    found = []
    for place, number in enumerate(numbers):
        changes = []
        for turn, factor in enumerate(factors):
            if progress is not None:
                progress(1 + place * len(factors) + turn, total)
            changed = number.scaled(factor)
            answer = search(replace(space, system=changed, axes=axes(changed)), goal)
            now = answer.best[0] if answer.best else None
            changes.append(
                Variation(
                    factor=factor,
                    best=now,
                    repriced_rate=_rate(space.app, changed, best.execution, fixed=fixed) if best else None,
                    moved=_moved(best, now),
                )
            )
        found.append(Sensitivity(name=number.name, value=number.value, unit=number.unit, changes=tuple(changes)))
    found.sort(key=lambda one: -one.spread)
    return WhatIf(base=base, numbers=tuple(found))


def _rate(app: Application, system: System, execution: Execution, *, fixed: bool) -> float | None:
    priced = price(app, system, ExecutionColumns.from_executions([execution]), fixed=fixed)
    return float(priced["sample_rate"][0]) if priced.ok[0] else None


def _moved(before: PricedExecution | None, after: PricedExecution | None) -> tuple[str, ...]:
    if before is None or after is None:
        return ()
    names = Execution.__slots__
    return tuple(name for name in names if getattr(before.execution, name) != getattr(after.execution, name))
