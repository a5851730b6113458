"""The best plans on several kinds of device by data sheets or parallelizers, and the answer of any source of costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from meshwright.app.plan_set import PlanSet, RankedPlan, runner_up
from meshwright.app.requests.plan import PlanRequest
from meshwright.budget import spent
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.fields.limits import stopped_warning
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import space_of, target_rule
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.mixed.devices_used import devices_used
from meshwright.planning.mixed.mixing import Mixing, idle_devices, mixing_of
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.preemptions import Preempted, preempted
from meshwright.planning.mixed.search import MixedPlans, mixed_plans
from meshwright.planning.mixed.slices import Composition, planned_slices
from meshwright.planning.mixed.source import Launcher, PricedPlan, SearchRecord, StageSource
from meshwright.planning.mixed.spaces import space_anywhere
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.one_kind import Refusals, find_plans
from meshwright.planning.one_kind_plans import pinned_notes, target_note
from meshwright.planning.plan_shape import title
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons, price_reasons
from meshwright.planning.target_space import restricted
from meshwright.planning.used_nodes import on_used_nodes
from meshwright.planning.whole_run import WholeRun, whole_run
from meshwright.report.words.mixed import (
    composition_lines,
    idle_lines,
    mixing_lines,
    preemption_line,
    search_lines,
    worth,
)
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.titles import title_of
from meshwright.report.words.verdict import Verdict, plan_sentence, run_sentence
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredModel, MeasuredWorkload
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS
from meshwright.units import seconds, usd

if TYPE_CHECKING:
    from meshwright.planning.mixed.parallelizers import SliceSource
    from meshwright.specs.seam import Parallelizer

OWN_COMPOSED = 4
"""Pipeline sets of our own search that plans of parallelizers are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedSearch:
    """What a search on several kinds of device found, and for what question."""

    asked: Asked
    source: StageSource
    found: MixedPlans
    composition: Composition | None = None

    @property
    def best(self) -> PricedPlan:
        """By the aim."""
        return self.found.candidates[0]

    def answer(self) -> PlanSet:
        """The plans with verdict, reasons, and what mixing is worth."""
        return mixed_answer(self.asked, self.source, self.found, self.composition)


def plan_mixed(inputs: JobInputs, request: PlanRequest, aim: Aim = QUICKEST) -> PlanSet:
    """The best plans of a model on a cluster of several groups, as `mixed_search`, whose arguments these are."""
    return mixed_search(inputs, request, aim).answer()


def mixed_search(inputs: JobInputs, request: PlanRequest, aim: Aim = QUICKEST) -> MixedSearch:
    """The best plans of a model on a cluster of several groups, or of one that parallelizers plan slices for.

    Args:
        inputs: model, cluster and workload.
        request: parallelizers that plan slices of the model, our own search where there are none; limits of every
            stage; how many plans.
        aim: time, memory or cost, and their limits; every used device counts at its own price.

    Returns:
        The plans, best first, and what they are compared with.

    Raises:
        InputError: malformed or contradictory input, or a price that is missing.
        UnsupportedError: the front of time and memory is asked for.
        InfeasibleError: no plan fits, or none keeps to the limits.
    """
    named: Sequence[Parallelizer] = ()
    if request.parallelizer:
        from meshwright.planning.compose.sources.parallelizers.registry import parallelizers_named

        named = parallelizers_named(request.parallelizer)
    if request.pareto:
        raise UnsupportedError(_no_front("--parallelizer" if named else "several groups of nodes"), code="MW407")
    if inputs.model.tuning is not None:
        _check_trained(named)
    refuses, spaces = target_rule(request.target), _StageSpaces(inputs=inputs, request=request)
    anywhere = space_anywhere(inputs.cluster, partial(spaces.under, refuses))
    notes = [*pinned_notes(anywhere), *([target_note(request.target)] if request.target else ())]
    source: StageSource
    slices: SliceSource | None = None
    if named:
        from meshwright.planning.mixed.parallelizers import SliceSource

        source = slices = SliceSource(inputs, named, anywhere)
        notes = [Assumption(name="parallelizers", value=", ".join(source.names), basis="assumed"), *notes]
    else:
        pinned = any(axis != "offload" for axis, _ in space_anywhere(inputs.cluster, spaces.asked_for).pins)
        source = NativeSource(inputs, partial(spaces.under, refuses), pinned=pinned, refuses=refuses)

    def usual() -> Launcher | None:
        return None if named else _usual_launcher(inputs.cluster, spaces.under)

    target = Launcher(target=request.target, refuses=refuses, space=anywhere) if request.target and refuses else None
    found = mixed_plans(source, aim, target, usual)
    composition = _composition(slices, found, request.top, _own_search(inputs)) if slices else None
    asked = Asked(
        model=inputs.model,
        workload=inputs.workload,
        assumptions=(*inputs.assumptions, *notes),
        top=request.top,
        aim=aim,
        target=request.target,
    )
    return MixedSearch(asked=asked, source=source, found=found, composition=composition)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StageSpaces:
    """Spaces of the stages on a part of the cluster, as the request narrows them."""

    inputs: JobInputs
    request: PlanRequest

    def asked_for(self, part: ClusterSpec) -> Space:
        """Whatever starts the plan."""
        asked = self.request.space
        space = space_of(self.inputs.model, self.inputs.workload, part.devices, **asked.keywords())
        # Stages of unlike devices know 1d strategies and no offload: `all` opens neither, a name is refused further on.
        closed = {axis for axis in ("tensor", "offload") if axis not in (asked.methods or "")}
        pins = tuple(pin for pin in space.pins if pin[0] not in closed or pin[0] not in space.opened)
        return replace(space, pins=pins, opened=tuple(axis for axis in space.opened if axis not in closed))

    def under(self, refuses: Refusals | None, part: ClusterSpec) -> Space:
        """What a framework can start of it.

        Args:
            refuses: what the framework refuses of a job; None where none is asked for.
            part: of the cluster.
        """
        space, inputs = self.asked_for(part), self.inputs
        if refuses is None or not part.homogeneous:
            return space
        return restricted(space, inputs.model, part, inputs.workload, refuses)


def _check_trained(named: Sequence[Parallelizer]) -> None:
    own = [name for one in named if (name := getattr(one, "name", "")) != "native"]
    if own:
        problem = Problem(
            what=f"--parallelizer {', '.join(own)} with --lora or --freeze",
            why="it plans slices whose weights are all trained",
            fix="use meshwright's own search, or --parallelizer native",
            field="parallelizer",
        )
        raise UnsupportedError(problem, code="MW406")


def _usual_launcher(cluster: ClusterSpec, space_for: Callable[[Refusals, ClusterSpec], Space]) -> Launcher | None:
    """The first framework that can run the model under what is pinned; None where none can.

    Args:
        cluster: of the question.
        space_for: the search space of a part of it for a framework.
    """
    for name, known in TARGETS.items():
        refuses = target_rule(name) if known.suggested else None
        if refuses is None:
            continue
        try:
            space = space_anywhere(cluster, partial(space_for, refuses))
        except (UnsupportedError, InputError):
            continue
        return Launcher(target=name, refuses=refuses, space=space)
    return None


def _no_front(by: str) -> Problem:
    return Problem(
        what=f"--pareto with {by}",
        why="the front of time, memory, devices and cost is that of one kind of device",
        fix="leave it out, or plan one group by meshwright's own search",
        field="pareto",
    )


def _composition(source: SliceSource, found: MixedPlans, top: int, own: tuple[str, float] | None) -> Composition:
    """Who planned which slice of the best plan, and what it is compared with."""
    from meshwright.planning.mixed.parallelizers import claimed_s

    best = found.candidates[0]
    return Composition(
        parallelizers=source.names,
        step_time_s=best.step_time_s,
        claimed_s=tuple(claimed_s(one) for one in found.candidates[:top]),
        slices=tuple(planned_slices(best)),
        skips=source.skips(),
        own=own[0] if own else "",
        own_s=own[1] if own else None,
        tight=best.estimate.fits != "yes",
    )


def _own_search(inputs: JobInputs) -> tuple[str, float] | None:
    """Title and step of the best plan of our own search; None where it finds none."""
    model, cluster, workload = inputs.model, inputs.cluster, inputs.workload

    def space_for(part: ClusterSpec) -> Space:
        return space_of(model, workload, part.devices)

    try:
        if cluster.homogeneous:
            plans = find_plans(model, cluster, workload, space_for, top=1).result.plans
            if not plans:
                return None
            name = plans[0].row.format() if plans[0].row else None
            return title(plans[0].plan, model, name), plans[0].estimate.step_time_s
        source = NativeSource(inputs, space_for)
        able = [*source.composed(source.whole, OWN_COMPOSED)]
        able += [one for part in source.whole for one in source.alone(part)]
    except MeshwrightError:
        return None
    if not able:
        return None
    best = min(able, key=lambda one: one.step_time_s)
    return title_of(best.job, best.row), best.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an answer repeats of its question."""

    model: ModelSpec | MeasuredModel
    workload: Workload | MeasuredWorkload
    assumptions: tuple[Assumption, ...]
    top: int = 5
    """Plans of the answer."""
    aim: Aim = QUICKEST
    target: str | None = None
    """The framework that has to run the plans; None for any."""
    brief: bool = False
    """Whether comparisons, sensitivity and the runner-up are left out, where an answer has to be quick."""


def mixed_answer(
    asked: Asked, source: StageSource, found: MixedPlans, composition: Composition | None = None
) -> PlanSet:
    """The plan set of what was found, whatever the source of its costs.

    Args:
        asked: the question.
        source: that found the plans.
        found: they, the best first, and what they are compared with.
        composition: who planned which slice, where parallelizers were asked.
    """
    best, aim = found.candidates[0], asked.aim
    plans = tuple(
        RankedPlan(rank=rank, job=one.job, row=one.row, estimate=one.estimate)
        for rank, one in enumerate(found.candidates[: max(asked.top, 2)], start=1)
    )
    searched, run = source.searched(), whole_run(best.job, best.estimate)
    mixing = None if source.cluster.homogeneous or asked.brief else _mixing(source, found, searched, asked)
    behind = _preempted_quickest(found, aim)
    reasons = [
        Reason.of("identity", text=plans[0].identities()[0]),
        *plan_reasons(best.job, best.estimate, None),
        *price_reasons(best.job, best.estimate, aim),
    ]
    why = [*map(reason_text, reasons), *_cheaper_than(found, aim), *_preemption_lines(preempted(best), behind)]
    why += composition_lines(composition) if composition else ()
    why += mixing_lines(mixing, held=composition is None) if mixing else search_lines(searched, best.step_time_s)
    return PlanSet(
        model=asked.model,
        cluster=source.cluster,
        workload=asked.workload,
        assumptions=tuple(_of_used_links(asked.assumptions, source.cluster, plans[: asked.top])),
        verdict=Verdict(
            text=" ".join(_sentences(best, run, mixing)),
            why=tuple(why),
            runner_up=None if asked.brief else runner_up(plans[0], _second(plans, found, behind), aim, mixing),
            reasons=tuple(reasons),
        ),
        plans=plans[: asked.top],
        aim=aim,
        warnings=tuple(_warnings(asked, source.cluster, best, behind, composed=composition is not None)),
        run=run,
        mixing=mixing,
        searched=searched,
        composition=composition,
    )


def _of_used_links(
    assumptions: Sequence[Assumption], cluster: ClusterSpec, plans: Sequence[RankedPlan]
) -> Iterator[Assumption]:
    """What was assumed, without links to groups that none of the plans uses."""
    used = [devices_used(cluster, one.estimate) for one in plans]
    idle = {group.name for group in cluster.groups if not any(each[group.name] for each in used)}
    links = {link.name: not idle.isdisjoint(link.between) for link in cluster.links}
    yield from (one for one in assumptions if not links.get(one.name, False))


def _sentences(best: PricedPlan, run: WholeRun | None, mixing: Mixing | None) -> Iterator[str]:
    """The verdict: the plan, the whole run where its tokens are known, and what mixing is worth."""
    yield plan_sentence(best.job, best.estimate)
    if run:
        yield f"{run_sentence(run)}."
    if mixing:
        yield worth(mixing)


def _warnings(
    asked: Asked, cluster: ClusterSpec, best: PricedPlan, behind: Preempted | None, *, composed: bool
) -> Iterator[str]:
    """What stopped the search, how little memory is free, and which devices are idle."""
    if limit := spent():
        yield stopped_warning(limit)
    if composed and best.estimate.fits != "yes":
        yield "no plan leaves 8% of the memory free; these leave less"
    if not asked.brief:
        unsafe = () if behind is None else behind.groups
        yield from idle_lines(idle_devices(cluster, best.estimate, rented=asked.aim.rents, preempted=unsafe))


def _mixing(source: StageSource, found: MixedPlans, searched: SearchRecord, asked: Asked) -> Mixing:
    """What mixing is worth in the best plan."""
    best = found.candidates[0]
    return mixing_of(
        found,
        best,
        cluster=source.cluster,
        doubts=tuple(source.doubts(best)),
        frameworks=tuple(_frameworks(best, asked.target)),
        searched=searched,
        aim=asked.aim,
    )


def _preemption_lines(lost: Preempted | None, behind: Preempted | None) -> Iterator[str]:
    """What preemptions cost the best plan, and what they would cost a quicker one."""
    if lost is not None:
        yield preemption_line(lost, chosen=True)
    if behind is not None:
        yield preemption_line(behind, chosen=behind is lost)


def _preempted_quickest(found: MixedPlans, aim: Aim) -> Preempted | None:
    """The quickest step, where it is not the best because its nodes are preempted; else None."""
    quickest = found.quickest
    if aim.by is not QUICKEST.by or quickest.step_time_s >= found.candidates[0].step_time_s:
        return None
    return preempted(quickest)


def _second(plans: Sequence[RankedPlan], found: MixedPlans, behind: Preempted | None) -> RankedPlan | None:
    """The plan after the best that is slower by its step: of quicker ones another line says why they are not."""
    least_s = found.candidates[0].step_time_s if behind is not None else 0.0
    return next((one for one in plans[1:] if one.estimate.step_time_s >= least_s), None)


def _cheaper_than(found: MixedPlans, aim: Aim) -> Iterator[str]:
    """What the quickest plan would cost, where a cheaper one was chosen."""
    price, dearest = found.candidates[0].estimate.price_per_step, found.quickest.estimate.price_per_step
    if aim.rents and aim.by.paid_links and price is not None and dearest is not None and price < dearest * (1 - 1e-9):
        yield f"the quickest plan takes {seconds(found.quickest.step_time_s)} for {usd(dearest)}"


def _frameworks(one: PricedPlan, asked: str | None) -> Iterator[tuple[str, str]]:
    """Frameworks, that asked for first, and why each cannot run the plan; plans of measured layers are for none."""
    if not isinstance(one.job, Job) or not isinstance(one.estimate, StepEstimate):
        return
    job = on_used_nodes(one.job)
    own = None if asked is None else TARGETS.canonical(asked)
    for name in dict.fromkeys([*([own] if own is not None else []), *TARGETS]):
        target = TARGETS[name]
        if name != own and not target.suggested:
            continue
        # That devices are numbered otherwise follows from any unlike stage, and says the least.
        reasons = [problem.why or problem.what for problem in target.problems(job)]
        plain = [reason for reason in reasons if "numbered" not in reason]
        yield name, (plain or reasons or [""])[0]
