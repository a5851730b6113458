"""A change that makes a job fit, and the quick search that says what it would then cost."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from meshwright.budget import spent
from meshwright.errors import MeshwrightError
from meshwright.estimate.result import StepEstimate
from meshwright.planning.one_kind import SpaceFor
from meshwright.records import Record
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import default_schedule, offload_of
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

    def beside(self, tokens_given: bool) -> JobRepair:
        """The same without its batch option where the batch is given in tokens, which follows devices and lengths."""
        return replace(self, option=_SEQUENCES.sub("", self.option)) if tokens_given else self

    def line(self) -> str:
        """One line for people."""
        changed = "; changes training results" if self.changes_training else ""
        peak = of_capacity(self.peak_memory_bytes, self.capacity_bytes)
        return f"{self.option}: {self.text}, {seconds(self.step_time_s)} per step, {peak} ({self.plan}){changed}"


Repairs = Iterator[JobRepair]
Pins = tuple[tuple[str, tuple[object, ...]], ...]
"""Axes of plans, and the values that each is held to."""


def best_plan(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor
) -> tuple[str, StepEstimate] | None:
    """The best 1F1B plan of another cluster or workload, None if nothing fits there either.

    No schedule keeps less alive at the same speed, so what fits at all fits with 1F1B; chunks may make it quicker.
    """
    if spent():
        return None
    try:
        space = space_for(cluster)
        if _weights_alone(model, workload, space) > cluster.devices * cluster.groups[0].device.memory_bytes:
            return None
        result = search(model, cluster, workload, _quick(space), top=1, refine=False)
    except MeshwrightError:
        # A pin or a number format that this cluster or step does not allow: no repair.
        return None
    if not result.plans:
        return None
    found = result.plans[0]
    return found.row.format() if found.row else "", found.estimate


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


def job_repair(
    option: str, text: str, plan: str, estimate: StepEstimate, cluster: ClusterSpec, *, changes_training: bool = False
) -> JobRepair:
    """A repair of what its plan costs.

    Args:
        option: what to say.
        text: what it changes.
        plan: the one-line form of the plan.
        estimate: of that plan.
        cluster: of that plan.
        changes_training: whether the optimizer sees other steps.
    """
    full = estimate.fullest
    tight = ", fits tightly" if estimate.fits == "tight" else ""
    return JobRepair(
        option=option,
        text=text + tight,
        plan=plan,
        devices=cluster.devices,
        step_time_s=estimate.step_time_s,
        peak_memory_bytes=full.peak_memory_bytes,
        capacity_bytes=full.capacity_bytes,
        changes_training=changes_training,
    )
