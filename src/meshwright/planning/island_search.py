"""All plans that one question about a mixed cluster asks for: compositions, and each kind of device alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from meshwright.errors import InputError
from meshwright.estimate.price import check_plan, estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.planning.compose.composer import Composer
from meshwright.planning.compose.execution_plan import native_plan
from meshwright.planning.compose.pipeline_sets import Blend
from meshwright.planning.compose.sources.native.bound import least_step_s
from meshwright.planning.compose.sources.native.islands import Part
from meshwright.planning.compose.sources.native.pipelines import THOROUGH, Effort
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.one_kind import find_plans, resized
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

FARTHEST = 1.12
"""Times the step of the first composition that others promise at most: closed forms are within that of `estimate`."""
SMALL = 32
"""Devices of a cluster on which compositions that leave some idle are looked at beside those that need not."""
NEAR = 8
"""Pipelines of one kind of device whose degrees its search keeps to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A plan with its estimate on the whole cluster."""

    plan: ExecutionPlan
    estimate: StepEstimate
    groups: frozenset[int]
    """That hold any of its workers."""
    row: PlanRow | None = None
    """Of a plan on one group."""

    @property
    def step_time_s(self) -> float:
        """Of the estimate."""
        return self.estimate.step_time_s


class IslandSearch:
    """All plans that one question about a mixed cluster asks for; each is priced once."""

    def __init__(self, inputs: JobInputs, space_for: Callable[[ClusterSpec], Space], effort: Effort = THOROUGH) -> None:
        self.inputs, self.space_for = inputs, space_for
        self.model, self.cluster, self.workload = inputs.model, inputs.cluster, inputs.workload
        self.space = self._anywhere()
        self.composer = Composer(self.model, self.cluster, self.workload, self.space, effort)
        self.first_device = list(accumulate((g.devices for g in self.cluster.groups), initial=0))
        self.pricer = PlanPricer(self.model, self.cluster, self.workload)
        self.priced = self.too_large = 0

    def _anywhere(self) -> Space:
        """What a stage on any group may be: the values that the whole cluster or one of its groups allows.

        Raises:
            InputError: neither allows what is pinned.
        """
        allowed: dict[str, dict[object, None]] = {}
        refused: list[InputError] = []
        for part in (self.cluster, *(self._part(number) for number in range(len(self.cluster.groups)))):
            try:
                space = self.space_for(part)
            except InputError as error:
                refused.append(error)
                continue
            for axis, values in space.pins:
                allowed.setdefault(axis, {}).update(dict.fromkeys(values))
        if len(refused) > len(self.cluster.groups):
            raise refused[0]
        return Space(pins=tuple((axis, tuple(values)) for axis, values in allowed.items()))

    def bound_s(self) -> float:
        """Seconds that no plan's step on this cluster undercuts."""
        hardware = [self.composer.islands.hardware(number) for number in range(len(self.cluster.groups))]
        devices = [group.devices for group in self.cluster.groups]
        return least_step_s(self.model, self.workload, list(zip(hardware, devices, strict=True)))

    def composed(self, groups: Iterable[int], most: int) -> list[Candidate]:
        """Compositions over these groups, or some of them, the quickest first."""
        return self._composed_of([self._whole(number) for number in groups], most)

    def leaving_out(self, groups: Sequence[int], most: int) -> list[Candidate]:
        """Compositions without some devices of one group, on a small cluster: fewer may divide a small batch better.

        Args:
            groups: that may be used.
            most: of each number of devices.
        """
        if self.cluster.devices > SMALL:
            return []
        found: list[Candidate] = []
        for number in groups:
            group = self.cluster.groups[number]
            unit = group.devices_per_node if group.nodes > 1 else 1
            rest = [self._whole(other) for other in groups if other != number]
            for devices in range(unit, group.devices, unit):
                found += self._composed_of([Part(number, devices), *rest], most)
        return found

    def _whole(self, number: int) -> Part:
        return Part(number, self.cluster.groups[number].devices)

    def _composed_of(self, parts: Sequence[Part], most: int) -> list[Candidate]:
        found: list[Candidate] = []
        for made in self.composer.made(parts, 3 * most):
            if len(found) > 1 and made.step_s > FARTHEST * min(one.step_time_s for one in found):
                break
            candidate = self.candidate(native_plan(made, self.cluster), _groups_of(made))
            if candidate is not None:
                found.append(candidate)
            if len(found) == most:
                break
        return sorted(found, key=lambda one: one.step_time_s)

    def alone(self, number: int, devices: int | None = None, *, exhaustive: bool = False) -> Candidate | None:
        """The best plan of one group without the others.

        Args:
            number: of the group.
            devices: of its first nodes that may be used; all by default.
            exhaustive: search its whole space, not only around the best strategies that compositions know.
        """
        part = self._part(number, devices)
        try:
            space = self.space_for(part)
        except InputError:
            return None  # pins that the whole cluster can follow and this group cannot
        if exhaustive:
            result = find_plans(self.model, part, self.workload, self.space_for, top=1).result
        else:
            near = self._near(number, part.devices, space)
            if near is None:
                return None
            result = search(self.model, part, self.workload, near, top=1)
        if not result.plans or result.relaxed:
            return None
        best = result.plans[0]
        return self.candidate(_moved(best.plan, self.first_device[number]), frozenset([number]), best.row)

    def _part(self, number: int, devices: int | None = None) -> ClusterSpec:
        group = self.cluster.groups[number]
        whole = ClusterSpec(name=f"{group.devices}x{group.device.name}", groups=(group,))
        if devices is None or devices == group.devices:
            return whole
        return resized(whole, nodes=devices // group.devices_per_node, per_node=group.devices_per_node)

    def _near(self, number: int, devices: int, space: Space) -> Space | None:
        """The degrees of the best pipelines on one group, every schedule, sharding and recompute with them."""
        pipelines = self.composer.pipelines([Part(number, devices)])[:NEAR]
        rows = [p.stages[0].options.plan_row(p.stages[0].row, 1) for p in pipelines]
        if not rows:
            return None
        pins = dict(space.pins)
        pins |= {
            "tp": tuple(sorted({row.tp for row in rows})),
            "cp": tuple(sorted({row.cp_degree for row in rows})),
            "ep": tuple(sorted({row.ep for row in rows})),
            "etp": tuple(sorted({row.etp for row in rows})),
            "mbs": tuple(sorted({row.mbs for row in rows})),
            "pp": tuple(sorted({len(pipeline.stages) for pipeline in pipelines})),
        }
        return replace(space, pins=tuple(pins.items()))

    def candidate(self, plan: ExecutionPlan, groups: frozenset[int], row: PlanRow | None = None) -> Candidate | None:
        """The plan priced in full; None where it does not fit."""
        check_plan(plan, self.model, self.cluster, self.workload)
        estimate = estimate_of(plan, self.pricer)
        self.priced += 1
        if estimate.fits == "no" or (estimate.fits == "tight" and not self.space.tight):
            self.too_large += 1
            return None
        return Candidate(plan=plan, estimate=estimate, groups=groups, row=row)


def _groups_of(blend: Blend[SplitPipeline]) -> frozenset[int]:
    return frozenset(stage.island for pipeline in blend.pipelines for stage in pipeline.stages)


def _moved(plan: ExecutionPlan, by: int) -> ExecutionPlan:
    """The plan on devices that start further on."""
    pipelines = tuple(
        replace(
            pipeline,
            workers=tuple(
                replace(worker, devices=tuple((first + by, last + by) for first, last in worker.devices))
                for worker in pipeline.workers
            ),
        )
        for pipeline in plan.pipelines
    )
    return replace(plan, pipelines=pipelines)
