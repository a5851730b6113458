"""The smallest changes that make a plan legal and fit, each really priced."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.budget import spent
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.pricing import Pricer
from meshwright.planning.repair.changes import Change, describe, distance, repairs
from meshwright.records import Record
from meshwright.specs.row import PlanRow

MOST_REPAIRS = 5
MOST_PAIRS = 40
"""Single changes that are changed once more where no single one repairs the plan."""


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


def repairs_of_plan(row: PlanRow, inputs: JobInputs, short_bytes: float = 0.0) -> tuple[Repair, ...]:
    """One change that makes a row legal and fit, else two, quickest first.

    Args:
        row: of the plan.
        inputs: its model, cluster and workload.
        short_bytes: more than is predicted, which must fit too.
    """
    pricer = Pricer(inputs.model, inputs.cluster, inputs.workload, inputs.cluster.devices)
    singles = list(repairs(row, inputs.model, pricer.devices))
    found = _good(row, singles, pricer, short_bytes)
    if not found:
        pairs = (
            again for change in singles[:MOST_PAIRS] for again in repairs(change.row, inputs.model, pricer.devices)
        )
        found = _good(row, pairs, pricer, short_bytes)
    found.sort(key=lambda one: (one.changes_training, one.fits == "tight", one.step_time_s))
    return tuple(found[:MOST_REPAIRS])


def _good(row: PlanRow, changes: Iterable[Change], pricer: Pricer, short_bytes: float) -> list[Repair]:
    found: dict[PlanRow, Repair] = {}
    for change in changes:
        if spent():
            break
        priced = pricer.price(change.row)
        if not priced.fits or priced.estimate is None or change.row in found:
            continue
        full = priced.estimate.fullest
        if full.peak_memory_bytes + short_bytes > full.capacity_bytes:
            continue
        found[change.row] = Repair(
            change=describe(row, change.row),
            name=change.row.format(),
            changes=distance(row, change.row),
            step_time_s=priced.estimate.step_time_s,
            peak_memory_bytes=full.peak_memory_bytes,
            capacity_bytes=full.capacity_bytes,
            fits=priced.estimate.fits,
            changes_training=change.changes_training or change.row.gbs != row.gbs,
        )
    return list(found.values())
