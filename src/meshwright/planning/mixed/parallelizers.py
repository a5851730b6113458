"""Plans of what parallelizers answer for slices: each planner by itself, then all of them together, priced in full.

Claims of different planners rest on different models of time. So each one's own best plan is priced first, and its
seconds count in the pipeline set of all by how far it was off:

    weight = step by `estimate` / step as claimed,  of the quickest plan of that parallelizer alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.parallelizers.composed import SliceComposer, SliceSet, slice_composer
from meshwright.planning.compose.sources.parallelizers.execution import sliced_plan
from meshwright.planning.mixed.doubts import doubts_of_model
from meshwright.planning.mixed.slices import MOST_SKIPS
from meshwright.planning.mixed.source import PricedPlan, SearchRecord, StagesOfOwnPlans, require_one_stream
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.schedules import SCHEDULES
from meshwright.schedules.plan_rows import row_of
from meshwright.search.space import Space
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan, Schedule
from meshwright.specs.seam import Parallelizer

TRIED = 64
"""Pipeline sets that are priced until enough fit."""
PRICED = 16
"""Pipeline sets that fit and are priced in full for an answer."""
COMPARED = 4
"""Pipeline sets that fit and are priced in full for each part of the cluster that the answer is compared with."""


class SliceSource(StagesOfOwnPlans):
    """The plans that some parallelizers' answers make; each question is asked once, each plan priced once."""

    compares_rest = False

    def __init__(self, inputs: JobInputs, parallelizers: Sequence[Parallelizer], space: Space | None = None) -> None:
        """Ask nothing yet.

        Args:
            inputs: model, cluster and workload.
            parallelizers: the parallelizers, at least one.
            space: pinned axes, wherever a stage stands.
        """
        require_one_stream(inputs.model)
        if space is not None:
            _require_one_chunk(space, [one.name for one in parallelizers])
        self.inputs, self.cluster = inputs, inputs.cluster
        self.composer = slice_composer(inputs.model, inputs.cluster, inputs.workload, parallelizers, space=space)
        self._pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload)
        self._priced: dict[ExecutionPlan, StepEstimate | None] = {}
        self._refused: dict[str, None] = {}
        self._alone = {name: self.composer.weighed({name: 1.0}) for name in self.names}
        self._together: dict[object, SliceComposer] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parallelizers."""
        return tuple(dict.fromkeys(one.name for one in self.composer.questions.parallelizers))

    @property
    def counts(self) -> Counter[str]:
        """What was asked, looked at and dropped, by rule."""
        return self.composer.counts

    def skips(self) -> tuple[str, ...]:
        """What was not answered, or answered and not taken, and plans that cannot run."""
        return (*self._refused, *self.composer.skips())

    def together(self, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
        """The quickest plans that fit, those that fit tightly where no other does; as `StageSource.together`."""
        most = PRICED if thorough else COMPARED
        found, weights = list[PricedPlan](), dict[str, float]()
        for name, composer in self._alone.items():
            own = self._fitting(composer, parts, most)
            if own:
                quickest = min(own, key=_rank)
                weights[name] = quickest.step_time_s / claimed_s(quickest)
            found += own
        if len(weights) > 1:
            found += self._fitting(self._weighed(weights), parts, most)
        distinct = {one.plan: one for one in found}
        ordered = sorted(distinct.values(), key=_rank)
        return [one for one in ordered if one.estimate.fits == "yes"] or ordered

    def _weighed(self, weights: Mapping[str, float]) -> SliceComposer:
        key = tuple(weights.items())
        return self._together.setdefault(key, self.composer.weighed(weights))

    def _fitting(self, composer: SliceComposer, parts: Sequence[IslandPart], most: int) -> list[PricedPlan]:
        """The most promising pipeline sets as plans that fit, however tightly; until enough fit well."""
        promising = self._first_fitting(composer.sets(parts, TRIED), most)
        return [*promising, *self._first_fitting(self._by_price(composer.equal_sets(parts)), most)]

    def _first_fitting(self, sets: Iterable[SliceSet], most: int) -> list[PricedPlan]:
        found: list[PricedPlan] = []
        for one in sets:
            if (candidate := self._candidate(one)) is not None:
                found.append(candidate)
            if sum(one.estimate.fits == "yes" for one in found) == most:
                break
        return found

    def _candidate(self, one: SliceSet) -> PricedPlan | None:
        """The pipeline set under its best schedule; None where it cannot run or does not fit."""
        model, cluster, workload = self.inputs.model, self.cluster, self.inputs.workload
        priced = [(self._estimate(plan, one), plan) for plan in self._scheduled(sliced_plan(one, cluster))]
        able = [(own, plan) for own, plan in priced if own is not None and own.fits != "no"]
        if not able:
            return None
        estimate, plan = min(able, key=lambda pair: (pair[0].fits != "yes", pair[0].step_time_s))
        row = row_of(plan, model) if cluster.homogeneous else None
        job = Job(model=model, cluster=cluster, workload=workload, plan=plan, name=row.format() if row else None)
        return PricedPlan(job=job, estimate=estimate, row=row, slices=one)

    def _by_price(self, sets: Sequence[SliceSet]) -> list[SliceSet]:
        """Pipeline sets that can run, the quickest by `estimate` first."""
        plans = [(sliced_plan(one, self.cluster), one) for one in sets]
        legal = [(plan, one) for plan, one in plans if self._runs(plan, one)]
        self._pricer.price_rows([plan for plan, _ in legal])
        return [one for _, one in sorted(legal, key=lambda pair: self._pricer.step_time_s(pair[0]))]

    def _runs(self, plan: ExecutionPlan, one: SliceSet) -> bool:
        """Whether a plan can run; where not, why is among the skips."""
        try:
            check_plan(plan, self.inputs.model, self.cluster, self.inputs.workload)
        except MeshwrightError as error:
            names = " + ".join(dict.fromkeys(stage.parallelizer for p in one.pipelines for stage in p.stages))
            self._refused.setdefault(f"{names}: a plan that cannot run: {error.problems[0].what}")
            return False
        return True

    def _scheduled(self, plan: ExecutionPlan) -> Iterator[ExecutionPlan]:
        """The plan under each schedule that may be used: 1F1B unless others are named."""
        for name in self.composer.questions.space.pinned("schedule") or ("1f1b",):
            if not _of_one_chunk(str(name)):
                self._refused.setdefault(f"schedule {name}: workers of these pipelines have one chunk of layers")
                continue
            schedule = Schedule(name=str(name))
            yield replace(plan, pipelines=tuple(replace(pipeline, schedule=schedule) for pipeline in plan.pipelines))

    def _estimate(self, plan: ExecutionPlan, one: SliceSet) -> StepEstimate | None:
        """The plan priced in full; None where it cannot run."""
        if plan not in self._priced:
            able = self._runs(plan, one)
            estimate = estimate_of(plan, self._pricer) if able else None
            self.counts["priced in full"] += 1
            self.counts["priced in full: cannot run"] += not able
            self.counts["priced in full: too large"] += estimate is not None and estimate.fits != "yes"
            self._priced[plan] = estimate
        return self._priced[plan]

    def doubts(self, one: PricedPlan) -> Iterator[tuple[str, float]]:
        """Numbers that the plan is sensitive to; as `doubts_of_model`."""
        return doubts_of_model(one)

    def searched(self) -> SearchRecord:
        """What was asked and looked at so far."""
        counts = self.counts
        return SearchRecord(
            space=counts["partial plans"],
            priced=counts["priced in full"],
            feasible=counts["priced in full"] - counts["priced in full: too large"],
            looked_at={name: count for name, count in counts.items() if ":" not in name},
            pruned={name: count for name, count in counts.items() if ":" in name},
        )

    def nothing_fits(self) -> MeshwrightError:
        """Nobody answered anything that fits, and why."""
        counts = self.counts
        said = f"{counts['partial plans']:,} partial plans answered to {counts['questions']:,} questions"
        first = Problem(
            what=f"no plan of {self.inputs.model.name} on {self.cluster.name} was found with {', '.join(self.names)}",
            why=f"no pipeline of the {said} fits",
            fix="name another parallelizer beside: --parallelizer native",
            field="parallelizer",
        )
        skips = [Problem(what=f"skipped: {line}", field="parallelizer") for line in self.skips()[:MOST_SKIPS]]
        return InfeasibleError([first, *skips])


def _require_one_chunk(space: Space, names: Sequence[str]) -> None:
    """Refuse pins that no pipeline of partial plans has: its workers hold one chunk of layers each.

    Raises:
        InputError: none of the schedules that are asked for runs with one chunk, or other numbers of chunks are.
    """
    why = f"pipelines made of the partial plans of {', '.join(names)} have one chunk of layers per worker"
    without = "leave --parallelizer out"
    schedules = [str(name) for name in space.pinned("schedule") or ()]
    able = [name for name in schedules if _of_one_chunk(name)]
    if schedules and not able:
        needs = f"{', '.join(schedules)} need{'s' if len(schedules) == 1 else ''} other numbers of chunks; {why}"
        fix = f"use --schedule 1f1b, or {without}"
        raise InputError(what=f"the schedule is {', '.join(schedules)}", why=needs, fix=fix, field="schedule")
    if 1 not in (space.pinned("vpp") or (1,)):
        chunks = ", ".join(str(count) for count in space.pinned("vpp") or ())
        raise InputError(what=f"vpp is {chunks}", why=why, fix=f"use vpp=1, or {without}", field="pin")


def _of_one_chunk(schedule: str) -> bool:
    """Whether a schedule runs where every worker holds one chunk."""
    known = SCHEDULES[schedule]
    return known.chains == 1 and not any(one.field == "v" for one in known.problems(2, 4, 1))


def claimed_s(one: PricedPlan) -> float:
    """The step by what the parallelizers say of its slices."""
    assert one.slices is not None
    each = zip(one.slices.pipelines, one.slices.shares, strict=True)
    claims = [(pipeline.claimed, share) for pipeline, share in each]
    return max(fill_s + (share - 1) * period_s + sync_s for (fill_s, period_s, sync_s), share in claims)


def _rank(one: PricedPlan) -> tuple[bool, float]:
    return one.estimate.fits != "yes", one.step_time_s
