"""The best plans on several kinds of device by data sheets or parallelizers, and the answer of any source of costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from meshwright.app.plans.mixed_answer import Asked, mixed_answer
from meshwright.app.plans.plan_set import PlanSet
from meshwright.app.requests.plan import PlanRequest
from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import space_of, target_rule
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.other_schedules import schedules_apart
from meshwright.planning.mixed.search import MixedPlans, mixed_plans
from meshwright.planning.mixed.slices import Composition, planned_slices
from meshwright.planning.mixed.source import Launcher, PricedPlan, StageSource
from meshwright.planning.mixed.spaces import space_anywhere
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.one_kind import Refusals, find_plans
from meshwright.planning.one_kind_plans import pinned_notes, target_note
from meshwright.planning.plan_shape import title
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.target_space import restricted
from meshwright.report.words.titles import title_of
from meshwright.search.geometry import check_searched
from meshwright.search.space import Space, uncomposed
from meshwright.specs.cluster import ClusterSpec
from meshwright.targets import TARGETS

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
        """The best plan by the aim."""
        return self.found.candidates[0]

    def answer(self) -> PlanSet:
        """The plans with verdict, reasons, and what mixing is worth."""
        return mixed_answer(self.asked, self.source, self.found, self.composition)


def plan_mixed(inputs: JobInputs, request: PlanRequest, aim: Aim = QUICKEST) -> PlanSet:
    """The best plans of a model on a cluster of several groups, as `mixed_search`, whose arguments these are."""
    return mixed_search(inputs, request, aim).answer()


def mixed_search(inputs: JobInputs, request: PlanRequest, aim: Aim = QUICKEST, *, repairs: bool = True) -> MixedSearch:
    """The best plans of a model on a cluster of several groups, or of one that parallelizers plan slices for.

    Args:
        inputs: model, cluster and workload.
        request: parallelizers that plan slices of the model, our own search where there are none; limits of every
            stage; how many plans.
        aim: time, memory or cost, and their limits; every used device counts at its own price.
        repairs: whether what would fit is planned where nothing does.

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
    check_searched(inputs.workload)
    refuses, spaces = target_rule(request.target), _StageSpaces(inputs=inputs, request=request)
    anywhere = space_anywhere(inputs.cluster, partial(spaces.under, refuses))
    notes = [*pinned_notes(anywhere), *([target_note(request.target)] if request.target else ())]
    notes += schedules_apart(anywhere)
    source: StageSource
    slices: SliceSource | None = None
    if named:
        from meshwright.planning.mixed.parallelizers import SliceSource

        source = slices = SliceSource(inputs, named, anywhere)
        notes = [Assumption(name="parallelizers", value=", ".join(source.names), basis="assumed"), *notes]
    else:
        pinned = any(axis != "offload" for axis, _ in space_anywhere(inputs.cluster, spaces.asked_for).pins)
        source = NativeSource(inputs, partial(spaces.under, refuses), pinned=pinned, refuses=refuses, repairs=repairs)

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
        # `all` opens nothing that stages of unlike devices do not have, a name is refused further on.
        closed = {axis for axis, values in space.pins if uncomposed(axis, values) and axis not in (asked.methods or "")}
        pins = tuple(pin for pin in space.pins if pin[0] not in closed or pin[0] not in space.opened)
        return replace(space, pins=pins, opened=tuple(axis for axis in space.opened if axis not in closed))

    def under(self, refuses: Refusals | None, part: ClusterSpec) -> Space:
        """What a framework can start of it.

        Args:
            refuses: what the framework refuses of a job; None where none is asked for.
            part: the part of the cluster.
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
        cluster: the cluster of the question.
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
