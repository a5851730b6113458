"""The smallest changes that make a plan legal and fit, each really priced."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from meshwright.budget import spent
from meshwright.planning.pricing import Priced, Pricer
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.repair.changes import Change, describe, distance, repairs
from meshwright.records import Record
from meshwright.specs.row import PlanRow

MOST_REPAIRS = 5
MOST_PAIRS = 40
"""Single changes that are changed once more where no single one repairs the plan."""
TOGETHER = 64
"""Changes that are priced at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair(Record):
    """A change that makes the plan legal and fit, priced."""

    change: str
    name: str
    changes: int
    """Settings that differ."""
    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    fits: str
    changes_training: bool


Spelled = Callable[[PlanRow], PlanRow | None]
"""A row as a target says it, None where it does not."""


def repairs_of_plan(
    row: PlanRow, inputs: JobInputs, short_bytes: float = 0.0, spelled: Spelled = lambda row: row
) -> tuple[Repair, ...]:
    """One change that makes a row legal and fit, else two, quickest first.

    Args:
        row: the row of the plan.
        inputs: its model, cluster and workload.
        short_bytes: more than is predicted, which must fit too.
        spelled: how the file that is repaired says a row.
    """
    pricer = Pricer(inputs.model, inputs.cluster, inputs.workload, inputs.cluster.devices)
    precision = inputs.workload.precision
    singles = list(repairs(row, inputs.model, pricer.devices, precision))
    found = _good(row, singles, pricer, short_bytes, spelled)
    if not found:
        pairs = _each_once(
            again
            for change in singles[:MOST_PAIRS]
            for again in repairs(change.row, inputs.model, pricer.devices, precision)
        )
        found = _good(row, pairs, pricer, short_bytes, spelled)
    found.sort(key=lambda one: (one.changes_training, one.fits == "tight", one.step_time_s))
    return tuple(found[:MOST_REPAIRS])


def _good(
    row: PlanRow, changes: Iterable[Change], pricer: Pricer, short_bytes: float, spelled: Spelled
) -> list[Repair]:
    found: dict[PlanRow, Repair] = {}
    for change, priced in _priced(changes, pricer):
        if not priced.fits or priced.estimate is None:
            continue
        changed = spelled(change.row)
        if changed is None or changed in found:
            continue
        priced = priced if changed == change.row else pricer.price(changed)
        if not priced.fits or priced.estimate is None:
            continue
        full = priced.estimate.fullest
        if full.peak_memory_bytes + short_bytes > full.capacity_bytes:
            continue
        found[changed] = Repair(
            change=describe(row, changed),
            name=changed.format(),
            changes=distance(row, changed),
            step_time_s=priced.estimate.step_time_s,
            peak_memory_bytes=full.peak_memory_bytes,
            capacity_bytes=full.capacity_bytes,
            fits=priced.estimate.fits,
            changes_training=change.changes_training or changed.gbs != row.gbs,
        )
    return list(found.values())


def _each_once(changes: Iterable[Change]) -> Iterator[Change]:
    """The first change to each row: most pairs lead where another one does."""
    seen = set[PlanRow]()
    for change in changes:
        if change.row not in seen:
            seen.add(change.row)
            yield change


def _priced(changes: Iterable[Change], pricer: Pricer) -> Iterator[tuple[Change, Priced]]:
    """Changes with their prices, until the time is spent; what layers cost is priced for many together."""
    left = iter(changes)
    while not spent() and (some := list(islice(left, TOGETHER))):
        yield from zip(some, pricer.price_all([change.row for change in some]), strict=True)
