"""Plans of measured layers: the best set of pipelines on any part of a cluster, priced by the rule of its profiles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

from meshwright.errors import InfeasibleError, MeshwrightError, UnsupportedError
from meshwright.formats.profiles import ProfileSet
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.profiles.bounds import compute_bound_s
from meshwright.planning.compose.sources.profiles.cluster import measured_kinds
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts, UnmeasuredLinkError
from meshwright.planning.compose.sources.profiles.execution import execution_plan
from meshwright.planning.compose.sources.profiles.job import measured_job, pipeline_shapes
from meshwright.planning.compose.sources.profiles.price import paced_pipelines, price_pipelines
from meshwright.planning.compose.sources.profiles.search import ComposedShapes, ShapeComposer
from meshwright.planning.compose.sources.profiles.shares import shares
from meshwright.planning.mixed.measured_doubts import doubts_of_profile
from meshwright.planning.mixed.source import PricedPlan, SearchRecord, StagesOfOwnPlans
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import gib


class ProfileSource(StagesOfOwnPlans):
    """Plans of one question from measured profiles; pipelines are made and priced once."""

    compares_rest = True

    def __init__(self, profiles: ProfileSet, model: str, cluster: ClusterSpec, global_batch: int) -> None:
        """Price nothing yet.

        Args:
            profiles: the folder.
            model: one of its models.
            cluster: groups of devices that the profiles know.
            global_batch: sequences per step.

        Raises:
            UnsupportedError: a device, a zone or a link was not measured.
        """
        self.profiles, self.cluster, self.global_batch = profiles, cluster, global_batch
        self.costs = ProfileCosts(profiles, model, measured_kinds(cluster, profiles, model))
        self.composer = ShapeComposer(self.costs, global_batch)
        self._first = dict(
            zip(self.costs.kinds, accumulate((g.devices for g in cluster.groups), initial=0), strict=False)
        )
        self._best: dict[tuple[tuple[str, int], ...], PricedPlan | None] = {}
        self._whole: ComposedShapes | None = None

    def together(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
        """The best plan over these parts, or some of them; arguments as `StageSource.together`."""
        names = [group.name for group in self.cluster.groups]
        counts = {names[part.group]: part.devices for part in parts}
        key = tuple(counts.items())
        if key not in self._best:
            every = thorough and len(counts) == len(names)
            try:
                composed = self.composer.best(None if every else counts)
                self._whole = composed if every else self._whole
                self._best[key] = None if composed is None else self._candidate(composed)
            except UnmeasuredLinkError as unmeasured:
                raise UnsupportedError(unmeasured.problem(), code="MW261") from None
        one = self._best[key]
        return [] if one is None else [one]

    def _candidate(self, composed: ComposedShapes) -> PricedPlan:
        counts = shares(composed.one_set, composed.time, self.composer.pricer)
        plan = execution_plan(composed.one_set, counts, self._first)
        job = measured_job(self.profiles, self.costs, self.cluster, self.global_batch, plan)
        priced = price_pipelines(paced_pipelines(pipeline_shapes(job), self.costs), self.costs, self.cluster)
        return PricedPlan(job=job, estimate=priced)

    def doubts(self, one: PricedPlan) -> Iterator[tuple[str, float]]:
        """Numbers that the plan is sensitive to; as `doubts_of_profile`."""
        return doubts_of_profile(one)

    def searched(self) -> SearchRecord:
        """What was looked at for the whole cluster."""
        whole = self._whole
        return SearchRecord(
            space="pipelines of unequal shape over measured profiles",
            priced=whole.priced if whole else 0,
            looked_at={"shapes": whole.columns if whole else 0},
            pruned=whole.pruned if whole else {},
            bound_s=compute_bound_s(self.costs, self.global_batch),
            bound_of_shapes_s=self.composer.bound_s(),
        )

    def nothing_fits(self) -> MeshwrightError:
        """No kind of device alone, and none of them together, can hold the layers."""
        kinds = self.costs.kinds.values()
        sizes = ", ".join(f"{kind.count} x {kind.name} of {gib(kind.memory_bytes)}" for kind in kinds)
        return InfeasibleError(
            what=f"{self.costs.profile.name} does not fit {sizes}",
            why="no profiled tensor degree and micro-batch leaves room for the layers of a stage",
            fix="add devices, or devices with more memory",
            field="cluster",
        )


def priced_cluster(cluster: ClusterSpec, price: float | None) -> ClusterSpec:
    """The cluster with one price of a device and hour, where one is given for all."""
    if price is None:
        return cluster
    return replace(cluster, groups=tuple(replace(group, price_per_device_hour=price) for group in cluster.groups))
