"""What the memory reserve keeps out of an answer."""

from __future__ import annotations

from meshwright.estimate.result import StepEstimate
from meshwright.planning.plan_shape import bare_row
from meshwright.planning.reason import Reason
from meshwright.planning.ties import tied
from meshwright.search.space import Space
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow

LEVERS = ("recompute", "mbs", "sharding")
"""Settings that trade memory for time on the same degrees."""
NEAR = 0.2
"""Free share of the memory below which the reserve may have decided."""


def reserve_reason(job: Job, row: PlanRow | None, estimate: StepEstimate, space: Space) -> Reason | None:
    """Which quicker plan leaves less than 8% of the memory free; None where memory decides nothing.

    Args:
        job: the best plan.
        row: the row as a row; None where its layers recompute one by one.
        estimate: the estimate of the plan.
        space: what was searched; changes its pins forbid are not looked at.
    """
    start = row or bare_row(job.plan, job.model)
    full, offload = estimate.fullest, space.pinned("offload") is not None
    saves = row is None or row.recompute != "none"
    if start is None or not (saves or full.peak_memory_bytes > (1 - NEAR) * full.capacity_bytes):
        return None
    from meshwright.planning.pricing import Pricer  # most plans leave room
    from meshwright.planning.repair.changes import neighbours

    pricer = Pricer.of(job)
    changed = [
        change.row
        for change in neighbours(start, job.model, pricer.devices)
        if change.lever in LEVERS and _allowed(change.row, space)
    ]
    priced = pricer.price_all(([start] if row is None else []) + changed)
    tight = [one for one in priced if one.estimate is not None and one.estimate.fits == "tight"]
    best = min(tight, key=lambda one: one.time_s, default=None)
    gain = 0.0 if best is None else 1.0 - best.time_s / estimate.step_time_s
    if best is None or best.estimate is None or gain < 0 or tied(gain, estimate):
        return Reason.of("reserve", plan=None, offload=offload)
    full = best.estimate.fullest
    sizes = {"peak_bytes": full.peak_memory_bytes, "capacity_bytes": full.capacity_bytes}
    return Reason.of("reserve", plan=best.row.format(), gain=gain, offload=offload, **sizes)


def _allowed(row: PlanRow, space: Space) -> bool:
    return all(getattr(row, axis) in (space.pinned(axis) or (getattr(row, axis),)) for axis in LEVERS)
