"""The best plans of each group of a cluster without the others, by the search of one kind of device.

That search is held to the degrees of the best pipelines on the group, and has every schedule, sharding and recompute
with them; where a group comes near the best of all it is searched as a whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.planning.compose.composer import FARTHEST
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.fewer_nodes import dividing_part, first_nodes
from meshwright.planning.mixed.spaces import alone_name
from meshwright.planning.one_kind import Refusals, accepted, find_plans
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.search.result import SearchResult
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

SMALL_ALONE = 8
"""Devices of one kind that are searched as a whole where none of their pipelines promises to fit."""
NEAR = 8
"""Pipelines of one kind of device whose degrees its search keeps to."""


@dataclass(frozen=True, slots=True)
class GroupsAlone:
    """Searches of single groups of one question."""

    inputs: JobInputs
    space_for: Callable[[ClusterSpec], Space]
    refuses: Refusals | None
    """What a target refuses of a plan."""
    pipelines: Callable[[Sequence[IslandPart]], Sequence[SplitPipeline]]
    """The quickest composed through some parts."""
    refused: dict[Problem, None] = field(default_factory=dict)
    """Gets what the target refuses where it refuses all plans that were found."""

    def best(self, part: IslandPart, *, exhaustive: bool) -> Iterator[tuple[ExecutionPlan, PlanRow | None]]:
        """The best plan of a part of a group, and of what of it divides the batch; devices numbered in the cluster.

        Args:
            part: the part of the cluster.
            exhaustive: search the whole space.
        """
        groups = self.inputs.cluster.groups
        first = list(accumulate((group.devices for group in groups), initial=0))[part.group]
        best_s = math.inf
        for devices in (part.devices, *self._fewer(part)):
            if not exhaustive and self._promised_s(IslandPart(part.group, devices)) > FARTHEST * best_s:
                continue
            result = self._searched(IslandPart(part.group, devices), exhaustive=exhaustive, beat_s=best_s)
            if result is not None and result.plans and not result.relaxed:
                best_s = min(best_s, result.plans[0].estimate.step_time_s)
                yield _moved(result.plans[0].plan, first), result.plans[0].row

    def _promised_s(self, part: IslandPart) -> float:
        """Step of the quickest pipelines of these devices by closed form; none where no pipeline is found."""
        batch = self.inputs.workload.global_batch
        return min((one.step_s(batch / one.global_micro_batch) for one in self.pipelines([part])), default=0.0)

    def _fewer(self, part: IslandPart) -> list[int]:
        """Devices that divide the batch where not all do: of the nodes, or of the one node."""
        if part.devices % self.inputs.cluster.groups[part.group].devices_per_node:
            return []
        group = self._part(part).groups[0]
        dividing = dividing_part(group.nodes, group.devices_per_node, self.inputs.workload.global_batch)
        return [dividing[0] * dividing[1]] if dividing else []

    def _searched(self, part: IslandPart, *, exhaustive: bool, beat_s: float) -> SearchResult | None:
        """The best plan of these devices of one group; None where none is looked for, or a target refuses all.

        Of the plans that are held to the degrees of the best pipelines, one that takes longer than `beat_s` is none.
        """
        group = self.inputs.cluster.groups[part.group]
        if group.nodes > 1 and part.devices % group.devices_per_node:
            return None
        model, workload, where = self.inputs.model, self.inputs.workload, self._part(part)
        try:
            space = self.space_for(where)
        except (InputError, UnsupportedError):
            return None  # pins or a target that the whole cluster can follow and this group cannot
        near = None if exhaustive else self._near(part, space)
        if not exhaustive and near is None and part.devices > SMALL_ALONE:
            return None
        try:
            if exhaustive:
                return find_plans(model, where, workload, self.space_for, top=1, refuses=self.refuses).result
            # Stages are held to fit by a closed form, which errs on the safe side: few devices are searched whole.
            return accepted(model, where, workload, near or space, 1, self.refuses, beat_s=beat_s)
        except UnsupportedError as refused:
            self.refused.update(dict.fromkeys(refused.problems))
            return None

    def _part(self, part: IslandPart) -> ClusterSpec:
        cluster = self.inputs.cluster
        group = cluster.groups[part.group]
        whole = cluster.part(alone_name(cluster, part.group), (group,))
        if part.devices == group.devices:
            return whole
        each = min(part.devices, group.devices_per_node)
        return first_nodes(whole, nodes=part.devices // each, per_node=each)

    def _near(self, part: IslandPart, space: Space) -> Space | None:
        """The degrees of the best pipelines on one group, every schedule, sharding and recompute with them."""
        pipelines = self.pipelines([part])[:NEAR]
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
