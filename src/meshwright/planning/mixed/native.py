"""Plans from data sheets: pipelines over any parts of a cluster, and each kind of device searched by itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain

from meshwright.budget import spent
from meshwright.errors import MeshwrightError, Problem, UnsupportedError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.rules.overlap import overlap_problems_of_plan
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.planning.compose.composer import COMPOSED, FARTHEST, SUBSET_COMPOSED, Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.links import widest_link
from meshwright.planning.compose.pipeline_sets import PipelineSet, blended, with_whole_micro_batches
from meshwright.planning.compose.sources.native.bound import least_step_s
from meshwright.planning.compose.sources.native.effort import THOROUGH, SequenceEffort
from meshwright.planning.compose.sources.native.execution import native_plan
from meshwright.planning.compose.sources.native.one_strategy import OneStrategyIslands, OneStrategyPipelines
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.planning.compose.sources.native.whole_stages import least_whole_s
from meshwright.planning.fewer_nodes import SMALL, roundest_devices
from meshwright.planning.mixed.doubts import doubts_of_model
from meshwright.planning.mixed.equal_ranks import best_of_equal_ranks, counted_as_one
from meshwright.planning.mixed.expert_ways import of_other_ways, quicker_ways
from meshwright.planning.mixed.groups_alone import GroupsAlone
from meshwright.planning.mixed.groups_as_one import plans_of_groups_as_one
from meshwright.planning.mixed.idle_devices import LeavingOut, numbers_of_devices
from meshwright.planning.mixed.joinable import joinable
from meshwright.planning.mixed.joint_groups import JointGroups
from meshwright.planning.mixed.more_chunks import MoreChunks
from meshwright.planning.mixed.neighbours import Moves
from meshwright.planning.mixed.other_schedules import under_named_schedules
from meshwright.planning.mixed.repairs import mixed_repairs
from meshwright.planning.mixed.set_cost import price_per_step
from meshwright.planning.mixed.several_pipelines import SeveralPipelines
from meshwright.planning.mixed.source import Launcher, PricedPlan, SearchRecord
from meshwright.planning.mixed.spaces import space_anywhere
from meshwright.planning.objectives import Aim
from meshwright.planning.one_kind import Refusals
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.repair.no_plan import NoPlanError, fix_of
from meshwright.schedules import DEFAULT_SCHEDULES
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.workload import Workload
from meshwright.units import gib

UNEVENLY_COMPOSED = 40
"""Pipeline sets priced in full of those with micro-batches that do not divide the batch."""
RENTED_FROM = 200
"""Pipeline sets of a part of the cluster whose price is estimated from their closed form."""
RESTATED = 6
"""Plans whose experts are reached in other ways, too."""
NO_REPAIR = "add devices, shorten --seq, or lift what is pinned or forbidden"
RENTED = 3
"""Rented sets priced in full, of the cheapest and of the quickest."""


class NativeSource:
    """Plans of one question from data sheets; each is priced once."""

    compares_rest = True

    def __init__(
        self,
        inputs: JobInputs,
        space_for: Callable[[ClusterSpec], Space],
        effort: SequenceEffort = THOROUGH,
        *,
        pinned: bool | None = None,
        refuses: Refusals | None = None,
        repairs: bool = True,
    ) -> None:
        """Price nothing yet.

        Args:
            inputs: model, cluster and workload.
            space_for: the search space of a part of the cluster.
            effort: how much is looked at.
            pinned: whether the user pinned an axis, where the space is narrower for other reasons too; None where not.
            refuses: what a target refuses of a plan, where plans are asked for that it starts.
            repairs: whether what would fit is planned where nothing does.

        Raises:
            InputError: no group allows what is pinned.
        """
        self.inputs, self.space_for = inputs, space_for
        self.model, self.cluster, self.workload = inputs.model, inputs.cluster, inputs.workload
        self.space = space_anywhere(self.cluster, space_for)
        self.effort, self._repairs = effort, repairs
        self.pinned = bool(self.space.pins) if pinned is None else pinned
        self.composer = Composer(self.model, self.cluster, self.workload, self.space, effort)
        if len(self.cluster.groups) > 1 and self.cluster.devices > SMALL:
            # Of each group the roundest number is divided between pipelines, too; to divide them all takes too long.
            self.composer.islands.fewer |= roundest_devices(self.cluster, self.workload.global_batch)
        self._pricer = PlanPricer(self.model, self.cluster, self.workload)
        self._priced = self._too_large = 0
        self._candidates: dict[ExecutionPlan, PricedPlan | None] = {}
        """Plans without a row that were priced: sets over parts of the cluster often leave the same devices idle."""
        self._sets: dict[ExecutionPlan, PipelineSet[SplitPipeline]] = {}
        """What plans were made of."""
        self._refused: dict[Problem, None] = {}
        """What a target refuses of the best plans of some devices, where it refuses all that were found."""
        self._several = SeveralPipelines(self.composer, self._pricer, self._candidate)
        self._idle = LeavingOut(
            composer=self.composer,
            uneven=lambda: self._uneven,
            composed=self.composed,
            first=self._first,
            side_by_side=self._several.over,
        )
        self._chunks = MoreChunks(composer=self.composer, first=self._first)
        self._groups = GroupsAlone(inputs, space_for, refuses, self.composer.pipelines, self._refused)

    @property
    def whole(self) -> list[IslandPart]:
        """All devices of every group."""
        return [IslandPart(number, group.devices) for number, group in enumerate(self.cluster.groups)]

    def bound_s(self) -> float:
        """Lower bound of any plan's step on this cluster, seconds."""
        return min(self._least_s(joined) for joined in joinable(self.cluster, self.whole))

    def _least_s(self, parts: Sequence[IslandPart]) -> float:
        """Lower bound of any step on some devices: in any fractions, or, of few sequences, by whole stages."""
        devices = [(self.composer.islands.hardware(part.group), part.devices) for part in parts]
        link = widest_link(self.cluster, [part.group for part in parts])
        return least_whole_s(self.model, self.workload, devices, self._schedules, link)

    @property
    def _schedules(self) -> tuple[str, ...]:
        """Names of those that pipelines may have."""
        return tuple(map(str, self.space.pinned("schedule") or DEFAULT_SCHEDULES))

    def together(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
        """Pipeline sets over these parts, or some of them, the quickest first; arguments as `StageSource.together`."""
        return under_named_schedules(self._of_usual_schedules(parts, thorough=thorough), self.space, self.priced)

    def _of_usual_schedules(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
        """Pipeline sets of 1F1B and its interleaved form, whichever schedules are named."""
        if not thorough:
            return self.composed(parts, SUBSET_COMPOSED)
        found = self.composed(parts, COMPOSED)
        found += self._unevenly(parts, min(map(_step_s, found), default=math.inf))
        best_s = min(map(_step_s, found), default=math.inf)
        found += self._idle.leaving_out(parts, best_s)
        found += self._chunks.alone(parts, found)
        found += self._chunks.quicker(parts, found)
        found += self._near(found)
        if list(parts) == self.whole and len(parts) > 1 and not spent():
            found += plans_of_groups_as_one(self.cluster, self._over)
        return [*self.in_one_group(parts, min(map(_step_s, found), default=math.inf)), *found]

    def _near(self, found: Sequence[PricedPlan]) -> list[PricedPlan]:
        """Plans quicker than the best sets by a layer or a few micro-batches elsewhere; of small clusters only."""
        if self.cluster.devices > SMALL or spent():
            return []
        return self._moves().nearest(found)

    def _moves(self) -> Moves:
        return Moves(
            cluster=self.cluster,
            pricer=self._pricer,
            priced=self.priced,
            sets=self._sets,
            mix=self.composer.islands.mix,
            ahead=self.model.tower_layers,
        )

    def in_one_group(self, parts: Sequence[IslandPart], best_s: float) -> list[PricedPlan]:
        """Plans whose ranks hold one state together, each with its share of every micro-batch, quicker than a step."""
        if spent() or not self.workload.training:
            return []
        islands = self.composer.islands
        joint = JointGroups(pricer=self._pricer, space=self.space, rate=islands.rate, candidate=self.priced)
        fewer = numbers_of_devices(self.cluster, parts, self.workload.global_batch) if len(parts) == 2 else []
        return joint.quicker(parts, best_s, [some for some in fewer if islands.least_s(some) < best_s])

    def composed(self, parts: Sequence[IslandPart], most: int) -> list[PricedPlan]:
        """The quickest pipeline sets over these parts, or some of them.

        Args:
            parts: the parts of the cluster.
            most: how many are priced in full.
        """
        return sorted([*self._first(self.composer, parts, most), *self._several.over(parts)], key=_step_s)

    def by_itself(self, part: IslandPart, most: int) -> list[PricedPlan]:
        """The quickest pipeline sets over one group, of micro-batches that do not divide the batch, too, where devices
        share it coarsely; arguments as `composed`."""
        found = self.composed([part], most)
        if self.composer.islands.shared_coarsely([part]):
            found = sorted([*found, *self._first(self._uneven, [part], most)], key=_step_s)
        return found

    def _first(self, composer: Composer, parts: Sequence[IslandPart], most: int) -> list[PricedPlan]:
        """The first few of a composer that fit, as long as they promise to be about as quick."""
        found: list[PricedPlan] = []
        # Of sizes that do not divide the batch, sets that promise little in fractions may be the quickest in whole.
        orders = composer.orders(parts, max(3 * most, UNEVENLY_COMPOSED if composer.uneven else 0))
        for promised, places in zip(orders, (most, most // 2), strict=True):
            plans = [native_plan(made, self.cluster) for made in promised[:places]]
            self._pricer.price_rows(plans)
            later = (native_plan(made, self.cluster) for made in promised[places:])
            fits = 0
            for made, plan in zip(promised, chain(plans, later), strict=True):
                self._sets[plan] = made
                if len(found) > 1 and made.step_s > FARTHEST * min(one.step_time_s for one in found):
                    break
                candidate = self._candidate(plan)
                if candidate is not None:
                    found.append(candidate)
                    fits += 1
                if fits == places:
                    break
        places = RESTATED if most >= COMPOSED else 1
        if self.cluster.devices > SMALL and any(
            own.chunks > 1 for one in found for own in self._sets[one.plan].pipelines
        ):
            found += self._moves().evener(sorted(found, key=_step_s)[:places])
        again = sorted(found, key=_step_s)[:places]
        return [
            *(better for one in again for better in quicker_ways(one, composer.space, self.workload, self.priced)),
            *found,
        ]

    def of_one_strategy(self, parts: Sequence[IslandPart], launcher: Launcher) -> list[PricedPlan]:
        """Pipelines through all of these parts that a framework starts; arguments as `StageSource.of_one_strategy`."""
        islands = OneStrategyIslands(
            model=self.model, cluster=self.cluster, workload=self.workload, space=launcher.space, parts=tuple(parts)
        )
        found: list[PricedPlan] = []
        for pipeline in OneStrategyPipelines(islands, self.effort).through(parts):
            alone = blended([pipeline], self.workload.global_batch, 0.0)
            made = with_whole_micro_batches(alone, self.workload.global_batch)
            if made is None:
                continue
            composed = native_plan(made, self.cluster)
            ways = (composed, *of_other_ways(composed, launcher.space, self.workload))
            plan = next((one for one in ways if not launcher.refuses(self._job(one))), None)
            if plan is None:
                continue
            candidate = self._candidate(plan)
            found += [candidate] if candidate else []
            if len(found) == COMPOSED:
                break
        self.composer.counts.update(islands.counts)
        found.sort(key=_step_s)
        others = (
            other for one in found[:RESTATED] for other in quicker_ways(one, launcher.space, self.workload, self.priced)
        )
        started = [*(one for one in others if not launcher.refuses(self._job(one.plan))), *found]
        return under_named_schedules(sorted(started, key=_step_s), launcher.space, self.priced, launcher.refuses)

    def _over(self, cluster: ClusterSpec) -> NativeSource:
        """The same question on another cluster."""
        return NativeSource(replace(self.inputs, cluster=cluster), self.space_for, self.effort, pinned=self.pinned)

    def least_of_equal_ranks_s(self, parts: Sequence[IslandPart]) -> float:
        """The bound of the parts counted as one group; arguments as `StageSource.least_of_equal_ranks_s`."""
        where = counted_as_one(self.cluster, parts)
        if where is None:
            return math.inf
        (group,) = where.groups
        devices = [(hardware_of(group, self.workload), group.devices)]
        return least_step_s(self.model, self.workload, devices, schedules=self._schedules)

    def of_equal_ranks(self, parts: Sequence[IslandPart], launcher: Launcher) -> PricedPlan | None:
        """The best plan of equal ranks on unlike devices; arguments as `StageSource.of_equal_ranks`."""
        try:
            return best_of_equal_ranks(self.inputs, parts, launcher)
        except UnsupportedError as refused:
            self._refused.update(dict.fromkeys(refused.problems))
            return None

    def _unevenly(self, parts: Sequence[IslandPart], best_s: float) -> list[PricedPlan]:
        """Sets of pipelines whose micro-batches do not divide the batch, where those that do share it coarsely.

        Over all parts, and over each by itself, where whole shares of the batch are looked at, too: sets of few devices
        promise less than they keep beside large ones.
        """
        if len(parts) < 2:
            return []
        islands = self.composer.islands
        coarse = islands.shared_coarsely
        several = [[part] for part in parts if part.devices > 1 and (coarse(parts) or coarse([part]))]
        each = [own for own in several if islands.least_s(own) < best_s]
        # What one kind does by itself is a time to beat for all of them.
        ways = (self._uneven, self.composer)
        alone = [one for own in each for way in ways for one in self._first(way, own, COMPOSED)]
        return [*(self._first(self._uneven, parts, UNEVENLY_COMPOSED) if coarse(parts) else []), *alone]

    @cached_property
    def _uneven(self) -> Composer:
        """Composer of micro-batches that do not divide the batch."""
        return Composer(self.model, self.cluster, self.workload, self.space, self.effort, uneven=True)

    def alone(self, part: IslandPart, *, exhaustive: bool = False) -> list[PricedPlan]:
        """The best plan of one group without the others; arguments as `StageSource.alone`."""
        priced = (self._candidate(plan, row) for plan, row in self._groups.best(part, exhaustive=exhaustive))
        equal = sorted((one for one in priced if one is not None), key=_step_s)[:1]
        unequal = list[PricedPlan]()
        if part.devices <= SMALL and part.devices & (part.devices - 1):
            # Equal ranks may leave some of so many idle, or a batch that they do not divide.
            unequal = self.by_itself(part, SUBSET_COMPOSED)
            least_s = min(map(_step_s, (*equal, *unequal)), default=math.inf)
            unequal = sorted([*unequal, *self.in_one_group([part], least_s)], key=_step_s)[:1]
        return sorted([*equal, *unequal], key=_step_s)

    def _candidate(self, plan: ExecutionPlan, row: PlanRow | None = None) -> PricedPlan | None:
        """The plan priced in full; None where it does not fit."""
        if row is None and plan in self._candidates:
            return self._candidates[plan]
        found = self._priced_in_full(plan, row)
        if row is None:
            self._candidates[plan] = found
        return found

    def _priced_in_full(self, plan: ExecutionPlan, row: PlanRow | None) -> PricedPlan | None:
        if self.model.is_moe and overlap_problems_of_plan(plan, self.model):
            return None
        check_plan(plan, self.model, self.cluster, self.workload)
        estimate = estimate_of(plan, self._pricer)
        self._priced += 1
        if estimate.fits == "no" or (estimate.fits == "tight" and not self.space.tight):
            self._too_large += 1
            return None
        # A plan on one group of several keeps its one-line form in its row only: it says nothing of where it stands.
        name = row.format() if row is not None and self.cluster.homogeneous else None
        return PricedPlan(job=replace(self._job(plan), name=name), estimate=estimate, row=row)

    def _job(self, plan: ExecutionPlan) -> Job:
        return Job(model=self.model, cluster=self.cluster, workload=self.workload, plan=plan)

    def priced(self, plan: ExecutionPlan) -> PricedPlan | None:
        """A plan made elsewhere, priced in full; None where it does not fit or cannot be."""
        try:
            return self._candidate(plan)
        except MeshwrightError:
            return None

    def rented(self, parts: Sequence[IslandPart], aim: Aim) -> list[PricedPlan]:
        """The quickest, the cheapest, and the cheapest in time of the pipeline sets over these parts, or some of them.

        Args:
            parts: the parts of the cluster.
            aim: its limit of time.
        """
        sets = self.composer.sets(parts, RENTED_FROM)
        price = {id(one): price_per_step(one, self.model, self.cluster, self.workload, aim) for one in sets}
        cheap = sorted(sets, key=lambda one: price[id(one)])
        in_time = [one for one in cheap if one.step_s <= aim.max_step_time_s]
        wanted = {id(one): one for one in (*sets[:RENTED], *cheap[:RENTED], *in_time[:RENTED])}
        made = (with_whole_micro_batches(one, self.workload.global_batch) for one in wanted.values())
        found = (self._candidate(native_plan(one, self.cluster)) for one in made if one is not None)
        return under_named_schedules([one for one in found if one is not None], self.space, self.priced)

    def doubts(self, one: PricedPlan) -> Iterator[tuple[str, float]]:
        """Numbers that the plan is sensitive to; as `doubts_of_model`."""
        return doubts_of_model(one)

    def searched(self) -> SearchRecord:
        """What was looked at so far."""
        counts = self.composer.counts
        every = dict(counts) | {"priced in full": self._priced, "priced in full: too large": self._too_large}
        return SearchRecord(
            space=counts["strategies"] + counts["stage sequences"] + counts["pipeline sets"],
            priced=self._priced,
            feasible=self._priced - self._too_large,
            looked_at={name: count for name, count in every.items() if ":" not in name},
            pruned={name: count for name, count in every.items() if ":" in name},
            bound_s=self.bound_s(),
        )

    def nothing_fits(self) -> MeshwrightError:
        """No kind of device alone, and none of them together, can hold the model, or a target refuses all that can."""
        if self._refused:
            return UnsupportedError(list(self._refused)[:8], code="MW420")
        sizes = [f"{one.devices} x {one.device.name} of {gib(one.device.memory_bytes)}" for one in self.cluster.groups]
        repairs = tuple(mixed_repairs(self.inputs, self.space_for, self._plans_of)) if self._repairs else ()
        problem = Problem(
            what=f"no plan of {self.model.name} fits {', '.join(sizes)}",
            why="neither one kind of device alone nor any pipelines over several leave 8% of the memory free",
            fix=fix_of(repairs, pinned=self.pinned) if repairs else NO_REPAIR,
            field="cluster",
        )
        return NoPlanError((problem,), repairs)

    def _plans_of(self, model: ModelSpec, workload: Workload) -> list[PricedPlan]:
        """The quickest plans of another model and step."""
        other = NativeSource(replace(self.inputs, model=model, workload=workload), self.space_for, self.effort)
        alone = (one for part in other.whole for one in other.alone(part))
        sets = joinable(self.cluster, other.whole)
        composed = [one for joined in sets for one in other.together(joined, thorough=False)]
        return [*composed, *other._near(composed), *alone]


def _step_s(one: PricedPlan) -> float:
    return one.step_time_s
