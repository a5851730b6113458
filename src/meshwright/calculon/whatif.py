"""What if the system were different: the best execution searched anew for each number of the system changed.

A number that matters little for the best execution of today may matter much for another that it makes best, so every
change is searched, not only priced; both are told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from meshwright.calculon.answer import Priced, SearchResult
from meshwright.calculon.axes import Axes
from meshwright.calculon.executions import ExecutionColumns
from meshwright.calculon.inputs import Application, Execution, Network, System
from meshwright.calculon.model import price
from meshwright.calculon.search import search
from meshwright.calculon.space import Space

MakeAxes = Callable[[System], Axes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """One number of a system."""

    name: str
    """As the system file spells it: `networks[0].bandwidth`."""
    value: float
    unit: str
    scaled: Callable[[float], System]
    """The system with this number times a factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """The answer for one changed number."""

    factor: float
    best: Priced | None
    """Of the changed system; None where nothing fits."""
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
    changes: tuple[Changed, ...]
    """One per factor, in the order asked for."""

    @property
    def spread(self) -> float:
        """Samples per second between the best and the worst change."""
        rates = [change.rate for change in self.changes]
        return max(rates) - min(rates)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Sensitivities of the optimum, the largest first."""

    base: SearchResult
    numbers: tuple[Sensitivity, ...]


def system_numbers(system: System, datatypes: tuple[str, ...]) -> Iterator[Number]:
    """The numbers of a system that its executions may read.

    Args:
        system: the system.
        datatypes: that executions use; engines of others do not count.
    """
    for engine in ("matrix", "vector"):
        rates = getattr(system, engine)
        for name in datatypes:
            rate = rates[name]

            def faster(factor: float, engine: str = engine, name: str = name) -> System:
                rates: dict[str, Any] = dict(getattr(system, engine))
                rates[name] = replace(rates[name], peak=rates[name].peak * factor)
                changed: dict[str, Any] = {engine: rates}
                return replace(system, **changed)

            yield Number(name=f"{engine}.{name}.tflops", value=rate.peak / 1e12, unit="TFLOP/s", scaled=faster)
    for tier in ("mem1", "mem2"):
        memory = getattr(system, tier)
        if memory.capacity_bytes <= 0:
            continue

        def larger(factor: float, tier: str = tier) -> System:
            memory = getattr(system, tier)
            return replace(system, **{tier: replace(memory, capacity_bytes=memory.capacity_bytes * factor)})

        def quicker(factor: float, tier: str = tier) -> System:
            memory = getattr(system, tier)
            rate = replace(memory.rate, peak=memory.rate.peak * factor)
            return replace(system, **{tier: replace(memory, rate=rate)})

        yield Number(name=f"{tier}.GiB", value=memory.capacity_bytes / 2**30, unit="GiB", scaled=larger)
        yield Number(name=f"{tier}.GBps", value=memory.rate.peak / 1e9, unit="GB/s", scaled=quicker)
    for place, network in enumerate(system.networks):

        def wider(factor: float, place: int = place) -> System:
            old = system.networks[place]
            return _network(system, place, replace(old, bandwidth_bytes_per_s=old.bandwidth_bytes_per_s * factor))

        def slower(factor: float, place: int = place) -> System:
            old = system.networks[place]
            return _network(system, place, replace(old, latency_s=old.latency_s * factor))

        bandwidth = network.bandwidth_bytes_per_s / 1e9
        yield Number(name=f"networks[{place}].bandwidth", value=bandwidth, unit="GB/s", scaled=wider)
        if network.latency_s > 0:
            yield Number(name=f"networks[{place}].latency", value=network.latency_s * 1e6, unit="µs", scaled=slower)
        if float(network.size).is_integer() and network.size > 1:

            def bigger(factor: float, place: int = place) -> System:
                old = system.networks[place]
                return _network(system, place, replace(old, size=max(1, int(old.size * factor))))

            yield Number(name=f"networks[{place}].size", value=network.size, unit="processors", scaled=bigger)


def _network(system: System, place: int, network: Network) -> System:
    networks = (*system.networks[:place], network, *system.networks[place + 1 :])
    return replace(system, networks=networks)


def what_if(
    app: Application,
    system: System,
    num_procs: int,
    batch: int,
    axes: MakeAxes,
    *,
    factors: tuple[float, ...] = (0.5, 2.0),
    fixed: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """How the best execution's sample rate changes with each number of the system, searched anew each time.

    Args:
        app: the application.
        system: the unchanged system.
        num_procs: processors.
        batch: largest batch.
        axes: makes the space of a system.
        factors: each number is multiplied by each of these, one number at a time.
        fixed: with the model's known errors mended.
        progress: called with the searches done and the searches in all.

    Returns:
        The unchanged optimum and the numbers, that with the largest spread first.

    Raises:
        InfeasibleError: the space is empty.
    """
    base = search(Space(app, system, num_procs, batch, axes(system)), top=1, front=False, fixed=fixed)
    best = base.best[0] if base.best else None
    datatypes = tuple(str(value) for value in axes(system).axis("datatype").values)
    numbers = list(system_numbers(system, datatypes))
    total = 1 + len(numbers) * len(factors)
    found = []
    for place, number in enumerate(numbers):
        changes = []
        for turn, factor in enumerate(factors):
            if progress is not None:
                progress(1 + place * len(factors) + turn, total)
            changed = number.scaled(factor)
            space = Space(app, changed, num_procs, batch, axes(changed))
            answer = search(space, top=1, front=False, fixed=fixed)
            now = answer.best[0] if answer.best else None
            changes.append(
                Changed(
                    factor=factor,
                    best=now,
                    repriced_rate=_rate(app, changed, best.execution, fixed=fixed) if best else None,
                    moved=_moved(best, now),
                )
            )
        found.append(Sensitivity(name=number.name, value=number.value, unit=number.unit, changes=tuple(changes)))
    found.sort(key=lambda one: -one.spread)
    return WhatIf(base=base, numbers=tuple(found))


def _rate(app: Application, system: System, execution: Execution, *, fixed: bool) -> float | None:
    priced = price(app, system, ExecutionColumns.from_executions([execution]), fixed=fixed)
    return float(priced["sample_rate"][0]) if priced.ok[0] else None


def _moved(before: Priced | None, after: Priced | None) -> tuple[str, ...]:
    if before is None or after is None:
        return ()
    names = Execution.__slots__
    return tuple(name for name in names if getattr(before.execution, name) != getattr(after.execution, name))
