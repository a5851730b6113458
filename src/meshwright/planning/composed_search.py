"""Plans composed of parallelizers' answers and priced in full: each planner by itself, then all of them together.

Claims of different planners rest on different models of time. So each one's own best plan is priced first, and its
seconds count in the composition of all by how far it was off:

    weight = step by `estimate` / step as claimed,  of the quickest plan of that parallelizer alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.errors import MeshwrightError
from meshwright.estimate.price import check_plan, estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.planning.compose.pipeline_sets import Blend
from meshwright.planning.compose.sources.parallelizers.composed import SliceComposer, slice_composer
from meshwright.planning.compose.sources.parallelizers.execution import sliced_plan
from meshwright.planning.compose.sources.parallelizers.slice_pipelines import SlicePipeline
from meshwright.planning.job_inputs import JobInputs
from meshwright.schedules.plan_rows import row_of
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import Parallelizer

TRIED = 64
"""Compositions that are priced until enough fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """A blend as a plan, priced."""

    blend: Blend[SlicePipeline]
    plan: ExecutionPlan
    row: PlanRow | None
    estimate: StepEstimate

    @property
    def claimed_s(self) -> float:
        """The step by what the parallelizers say of their slices."""
        each = zip(self.blend.pipelines, self.blend.shares, strict=True)
        claims = [(pipeline.claimed, share) for pipeline, share in each]
        return max(fill_s + (share - 1) * period_s + sync_s for (fill_s, period_s, sync_s), share in claims)


class ComposedSearch:
    """The plans that some parallelizers' answers make; each question is asked once, each plan priced once."""

    def __init__(self, inputs: JobInputs, parallelizers: Sequence[Parallelizer]) -> None:
        """Ask nothing yet.

        Args:
            inputs: model, cluster and workload.
            parallelizers: at least one.
        """
        self.inputs = inputs
        self.composer = slice_composer(inputs.model, inputs.cluster, inputs.workload, parallelizers)
        self._pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload)
        self._priced: dict[ExecutionPlan, StepEstimate | None] = {}
        self._refused: dict[str, None] = {}
        self._alone = {name: self.composer.weighed({name: 1.0}) for name in self.names}
        self._together: dict[object, SliceComposer] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parallelizers."""
        return tuple(dict.fromkeys(one.name for one in self.composer.questions.parallelizers))

    @property
    def counts(self) -> Counter[str]:
        """What was asked, looked at and dropped, by rule."""
        return self.composer.counts

    def skips(self) -> tuple[str, ...]:
        """What was not answered, or answered and not taken, and plans that cannot run."""
        return (*self._refused, *self.composer.skips())

    def best(self, groups: Sequence[int], most: int) -> list[Composed]:
        """The quickest plans that fit; those that fit tightly where no other does.

        Args:
            groups: of the cluster that may be used.
            most: plans of each parallelizer alone and of all together that are priced.
        """
        found, weights = list[Composed](), dict[str, float]()
        for name, composer in self._alone.items():
            own = self._fitting(composer, groups, most)
            if own:
                quickest = min(own, key=_rank)
                weights[name] = quickest.estimate.step_time_s / quickest.claimed_s
            found += own
        if len(weights) > 1:
            found += self._fitting(self._weighed(weights), groups, most)
        distinct = {one.plan: one for one in found}
        ordered = sorted(distinct.values(), key=_rank)
        return [one for one in ordered if one.estimate.fits == "yes"] or ordered

    def _weighed(self, weights: Mapping[str, float]) -> SliceComposer:
        key = tuple(weights.items())
        return self._together.setdefault(key, self.composer.weighed(weights))

    def _fitting(self, composer: SliceComposer, groups: Sequence[int], most: int) -> list[Composed]:
        """The most promising blends as plans that fit, however tightly; until enough fit well."""
        found: list[Composed] = []
        for blend in composer.blends(groups, TRIED):
            plan = sliced_plan(blend, self.inputs.cluster)
            estimate = self._estimate(plan, blend)
            if estimate is not None and estimate.fits != "no":
                row = row_of(plan, self.inputs.model) if self.inputs.cluster.homogeneous else None
                found.append(Composed(blend=blend, plan=plan, row=row, estimate=estimate))
            if sum(one.estimate.fits == "yes" for one in found) == most:
                break
        return found

    def _estimate(self, plan: ExecutionPlan, blend: Blend[SlicePipeline]) -> StepEstimate | None:
        """The plan priced in full; None where it cannot run."""
        if plan not in self._priced:
            self._priced[plan] = None
            try:
                check_plan(plan, self.inputs.model, self.inputs.cluster, self.inputs.workload)
                self._priced[plan] = estimate_of(plan, self._pricer)
            except MeshwrightError as error:
                names = " + ".join(dict.fromkeys(stage.parallelizer for p in blend.pipelines for stage in p.stages))
                self._refused.setdefault(f"{names}: a plan that cannot run: {error.problems[0].what}")
                self.counts["priced in full: cannot run"] += 1
            self.counts["priced in full"] += 1
            estimate = self._priced[plan]
            self.counts["priced in full: too large"] += estimate is not None and estimate.fits != "yes"
        return self._priced[plan]


def _rank(one: Composed) -> tuple[bool, float]:
    return one.estimate.fits != "yes", one.estimate.step_time_s
