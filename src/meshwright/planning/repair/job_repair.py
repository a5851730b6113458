"""A change that makes a job fit, and the quick search that says what it would then cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from meshwright.budget import spent
from meshwright.errors import MeshwrightError
from meshwright.estimate.layout import expand
from meshwright.estimate.result import StepEstimate
from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.run_by import few, refusals, run_by, titles
from meshwright.planning.target_space import plain_instead
from meshwright.records import Record, fields_of
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, default_schedule, offload_of
from meshwright.specs.tuning import STORED_BYTES
from meshwright.specs.workload import Workload
from meshwright.units import of_capacity, seconds

_SEQUENCES = re.compile(r" --gbs \d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRepair(Record):
    """A change that makes the job fit, with what it would then cost."""

    option: str
    """What to say: `--gpus 32xH100`."""
    text: str
    plan: str
    devices: int
    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    changes_training: bool = False
    """Whether the optimizer sees other steps than were asked for."""
    run_by: tuple[str, ...] | None = None
    """Targets that run the plan, by name; None where nobody asked, or none of many devices is known to."""
    found: FittingPlan | None = field(default=None, repr=False)
    """The plan with what it is for, which is no part of the data; None on several kinds of device."""

    def to_dict(self) -> dict[str, object]:
        """As data, without the plan's job."""
        return fields_of(self, "found")

    def beside(self, tokens_given: bool) -> JobRepair:
        """The same without its batch option where the batch is given in tokens, which follows devices and lengths."""
        return replace(self, option=_SEQUENCES.sub("", self.option)) if tokens_given else self

    def line(self) -> str:
        """One line for people."""
        changed = "; changes training results" if self.changes_training else ""
        peak = of_capacity(self.peak_memory_bytes, self.capacity_bytes)
        cost = f"{seconds(self.step_time_s)} per step, {peak}"
        return f"{self.option}: {self.text}, {cost} ({self.plan}{self._runners()}){changed}"

    def _runners(self) -> str:
        """Who runs it: `; Megatron-LM, DeepSpeed`."""
        if self.run_by is None:
            return ""
        return f"; {titles(self.run_by)}" if self.run_by else "; no framework known here runs it"


Repairs = Iterator[JobRepair]
Pins = tuple[tuple[str, tuple[object, ...]], ...]
"""Axes of plans, and the values that each is held to."""


TIGHTLY = ", fits tightly"
LOOKED_AT = 12
"""Plans of a few devices, the quickest of each layout, among which the first is taken that a framework runs."""


class FittingPlan(NamedTuple):
    """A plan that fits."""

    plan: str
    """The plan in one line."""
    estimate: StepEstimate
    job: Job
    """The plan and what it is for."""
    space: Space
    """Where it was found."""


def best_plan(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> FittingPlan | None:
    """The best 1F1B plan of another cluster or workload, None if nothing fits there either.

    No schedule keeps less alive at the same speed, so what fits at all fits with 1F1B; chunks may make it quicker. On a
    few devices it is the quickest that a framework runs, where one runs any.
    """
    if spent():
        return None
    try:
        space = space_for(cluster)
        if _weights_alone(model, workload, space) > cluster.devices * cluster.groups[0].device.memory_bytes:
            return None
        result = search(model, cluster, workload, _quick(space), top=LOOKED_AT if few(cluster) else 1, refine=False)
        rows = [(one.row, one.estimate) for one in result.plans if one.row is not None]
        fits = [fitting(row, estimate, model, cluster, workload, space) for row, estimate in rows]
        if not fits:
            return None
        return _run_by_some(fits, _quick(space)) if few(cluster) else fits[0]
    except MeshwrightError:
        # A pin or a number format that this cluster or step does not allow: no repair.
        return None


def _run_by_some(fits: list[FittingPlan], space: Space) -> FittingPlan:
    """The first plan that a framework runs, if need be without settings that none has; else the first of all."""
    able = next((one for one in fits if run_by(one.job)), None)
    if able is not None:
        return able
    job = fits[0].job
    plain = plain_instead(space, [*refusals(job)])
    if plain is None:
        return fits[0]
    others = search(job.model, job.cluster, job.workload, plain, top=LOOKED_AT, refine=False).plans
    where = job.model, job.cluster, job.workload, plain
    found = (fitting(one.row, one.estimate, *where) for one in others if one.row)
    return next((one for one in found if run_by(one.job)), fits[0])


def fitting(
    row: PlanRow, estimate: StepEstimate, model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space
) -> FittingPlan:
    """A plan of a row, with its job.

    Args:
        row: the plan.
        estimate: the estimate of it.
        model: the model that it trains.
        cluster: the cluster that it runs on.
        workload: the step.
        space: the space where it was found.
    """
    plan = expand(row, model, workload.seq_len)
    job = Job(model=model, cluster=cluster, workload=workload.with_batch(row.gbs), plan=plan)
    return FittingPlan(plan=row.format(), estimate=estimate, job=job, space=space)


def _weights_alone(model: ModelSpec, workload: Workload, space: Space) -> float:
    """Bytes of weights on all devices together in any plan, each weight once: more than there is needs no search."""
    lora = model.lora
    each = min(
        workload.precision.bytes_of("weights"), STORED_BYTES.get(lora.base or "", math.inf) if lora else math.inf
    )
    away = max(
        (offload_of(str(token)).weights for token in space.pinned("offload") or () if token != "none"), default=0.0
    )
    return model.parameters * each * (1.0 - away)


def _quick(space: Space) -> Space:
    """The space without interleaving, unless schedules or chunks are pinned."""
    if space.pinned("schedule") is not None or space.pinned("vpp") is not None:
        return space
    return replace(space, pins=(*space.pins, ("schedule", (default_schedule(1),))))


def job_repair(option: str, text: str, found: FittingPlan, *, changes_training: bool = False) -> JobRepair:
    """A repair of what its plan costs.

    Args:
        option: what to say.
        text: what it changes.
        found: its plan.
        changes_training: whether the optimizer sees other steps.
    """
    # On many devices other layouts were not looked at: who runs none of them is not known.
    able = run_by(found.job) or (() if few(found.job.cluster) else None)
    return costing(found, option=option, text=text, changes_training=changes_training, run_by=able)


def costing(found: FittingPlan, *, text: str, **said: Any) -> JobRepair:
    """A repair with the numbers of its plan.

    Args:
        found: the plan.
        text: what it changes.
        said: what else the plan does not say of it, by field.
    """
    full = found.estimate.fullest
    return JobRepair(
        text=text.removesuffix(TIGHTLY) + (TIGHTLY if found.estimate.fits == "tight" else ""),
        plan=found.plan,
        devices=found.job.cluster.devices,
        step_time_s=found.estimate.step_time_s,
        peak_memory_bytes=full.peak_memory_bytes,
        capacity_bytes=full.capacity_bytes,
        found=found,
        **said,
    )
