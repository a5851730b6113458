"""The plans of a job on one kind of device: searched, refilled with unequal pipelines, ordered by what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Literal, Protocol

from meshwright.errors import InfeasibleError
from meshwright.fields.job import SpaceFields
from meshwright.formats.cluster import Assumption
from meshwright.library.calibration import calibration as calibration_of
from meshwright.planning.axes import space_of, target_rule
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.one_kind import BestPlans, Refusals, Search, find_best
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.search.search import search
from meshwright.search.space import Space, uncomposed
from meshwright.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    from meshwright.planning.repair.leanest import Leanest
    from meshwright.search.front import FrontPlan

MOST_NAMED = 8
"""Values of a pinned axis that an assumption lists; more narrow little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OneKindPlans:
    """What a search on one kind of device found, at least one plan."""

    found: BestPlans
    space: Space | None = None
    """What was searched on the whole cluster; None where it narrows nothing that the answer has to name."""
    chosen: Assumption | None = None
    """Why the plan of a target is not the quickest, where a simpler one ties with it."""
    front: tuple[FrontPlan, ...] = ()
    """Plans that no other beats in time, memory, devices and cost; empty unless requested."""


def one_kind_plans(
    inputs: JobInputs, limits: SpaceFields, aim: Aim, *, top: int, target: str | None = None, pareto: bool = False
) -> OneKindPlans:
    """The best plans on one kind of device; see `one_kind_search`, whose arguments these are.

    Raises:
        InputError: contradictory limits.
        UnsupportedError: an unknown target, or one that cannot run the model.
        InfeasibleError: no plan fits, or none keeps to the limits.
    """
    searched = one_kind_search(inputs, limits, aim, top=top, target=target, pareto=pareto)
    if not searched.found.result.plans:
        raise no_plan_of(inputs, limits, searched.found, target)
    return searched


def one_kind_search(
    inputs: JobInputs,
    limits: SpaceFields,
    aim: Aim,
    *,
    top: int,
    target: str | None = None,
    pareto: bool = False,
    near: float = math.inf,
    searched: Search = search,
) -> OneKindPlans:
    """What a search on one kind of device finds, which may be nothing.

    Args:
        inputs: model, cluster of one group, workload.
        limits: pinned and forbidden axes, and schedules.
        aim: what the plans are ordered by, and limits of time and price.
        top: how many layouts.
        target: only plans that this framework can run.
        pareto: whether to find the front.
        near: only plans that take at most this many times the quickest one.
        searched: searches a space.

    Raises:
        InputError: contradictory limits.
        UnsupportedError: an unknown target, or one that cannot run the model.
        InfeasibleError: plans fit, and none keeps to the limits.
    """
    spec, cluster, workload, refuses = inputs.model, inputs.cluster, inputs.workload, target_rule(target)

    space_for = _space_for(inputs, limits, refuses, near)
    space = space_for(cluster)
    found = find_best(
        spec, cluster, workload, space_for, aim, top=top, refuses=refuses, pareto=pareto, searched=searched
    )
    alone = any(uncomposed(axis, values) for axis, values in space.pins if axis not in space.opened)
    alike = pareto or alone or _equal_pipelines_suffice(found, cluster)
    if aim == QUICKEST and refuses is None and not alike:
        from meshwright.planning.unequal import with_unequal  # loads the composer

        found = with_unequal(inputs, found, partial(space_for, free=space.opened), top=top)
    if not found.result.plans:
        return OneKindPlans(found=found, space=space)
    if calibration_of(workload.calibration).run is not None and aim.by.exact:
        found = _measured_again(found)
    chosen = None
    if target is not None and aim == QUICKEST:
        from meshwright.planning.for_target import simplest_first

        found, chosen = simplest_first(found)
    if not pareto:
        return OneKindPlans(found=found, space=space, chosen=chosen)
    from meshwright.search.front import device_front

    front = device_front(spec, found.cluster, workload, space_for, found.result)
    return OneKindPlans(found=found, space=space, front=front)


class _SpaceFor(Protocol):
    """The search space on a part of the cluster, with some of the pins freed."""

    def __call__(self, part: ClusterSpec, free: tuple[str, ...] = ()) -> Space: ...


def _space_for(inputs: JobInputs, limits: SpaceFields, refuses: Refusals | None, near: float = math.inf) -> _SpaceFor:
    """What is searched on a part of a cluster: what the limits leave, and the target can run."""
    spec, workload = inputs.model, inputs.workload

    @cache  # a target is asked about dozens of plans to say what it can run
    def space_for(part: ClusterSpec, free: tuple[str, ...] = ()) -> Space:
        asked = space_of(spec, workload, part.devices, **limits.keywords())
        opened = tuple(axis for axis in asked.opened if axis not in free)
        space = replace(asked, pins=tuple(pin for pin in asked.pins if pin[0] not in free), opened=opened, near=near)
        if refuses is None:
            return space
        from meshwright.planning.target_space import restricted

        return restricted(space, spec, part, workload, refuses)

    return space_for


def no_plan_of(
    inputs: JobInputs, limits: SpaceFields, found: BestPlans, target: str | None, *, asked: JobInputs | None = None
) -> InfeasibleError:
    """The constraint that binds, and what would make a plan fit.

    Args:
        inputs: the question, as the target prices it.
        limits: the limits of the search.
        found: what it found, no plan.
        target: the target whose plans were searched.
        asked: the question as it was asked, where the target was chosen for it and another may run what is trained
            instead.
    """
    from meshwright.planning.repair.no_plan import freed_pins, no_plan
    from meshwright.planning.repair.of_tuning import Otherwise

    spec, cluster, workload = inputs.model, inputs.cluster, inputs.workload
    space_for = _space_for(inputs, limits, target_rule(target))
    whole = space_of(spec, workload, cluster.devices, **limits.keywords())
    pins = tuple(pin for pin in whole.pins if pin[0] not in whole.opened)
    freed = {some: partial(space_for, free=tuple(axis for axis, _ in some)) for some in freed_pins(pins, cluster)}
    given = inputs if asked is None else asked
    return no_plan(
        spec,
        cluster,
        workload,
        space_for,
        found,
        freed,
        by_tokens=given.by_tokens,
        software_given=given.software_given,
        otherwise=Otherwise(model=asked.model, space_for=_space_for(asked, limits, None)) if asked else None,
    )


def leanest_of(inputs: JobInputs, limits: SpaceFields, target: str | None) -> list[Leanest]:
    """The plans of least memory among those that are searched, the one that needs the least first.

    Args:
        inputs: model, cluster of one group, workload.
        limits: the limits of the search.
        target: only plans that this framework can run.
    """
    from meshwright.planning.repair.leanest import leanest

    space = _space_for(inputs, limits, target_rule(target))(inputs.cluster)
    return leanest(inputs.model, inputs.cluster, inputs.workload, space)


def excluded_of(
    inputs: JobInputs, limits: SpaceFields, target: str | None, best_s: float, reason: Literal["memory", "time"]
) -> tuple[Leanest, ...]:
    """Examples of plans that the search excluded; see `excluded_plans`, whose arguments these are."""
    from meshwright.planning.excluded import excluded_plans

    space = _space_for(inputs, limits, target_rule(target))(inputs.cluster)
    return excluded_plans(inputs, space, best_s, reason)


def _equal_pipelines_suffice(found: BestPlans, cluster: ClusterSpec) -> bool:
    """Whether equal pipelines use every device: one device, or a power of two of them with a plan on all."""
    if cluster.devices == 1:
        return True
    power_of_two = cluster.devices & (cluster.devices - 1) == 0
    return power_of_two and found.cluster.devices == cluster.devices and bool(found.result.plans)


def pinned_notes(space: Space) -> Iterator[Assumption]:
    """The axes that a search was narrowed to, and those it was opened to."""
    if space.opened:
        from meshwright.planning.axes.methods import searched_of  # few questions open axes

        left = searched_of(space)
        whole = [axis for axis, (values, every) in left.items() if every and axis != "schedule"]
        said = ["every exact schedule"] * ("schedule" in left and left["schedule"][1])
        said += [f"every value of {', '.join(whole)}"] * bool(whole)
        said += [f"of {axis} only {', '.join(values)}" for axis, (values, every) in left.items() if not every]
        yield Assumption(name="methods", value="; ".join(said), basis="stated")
    for axis, values in space.pins:
        if len(values) <= MOST_NAMED and axis not in space.opened:
            yield Assumption(name=f"only {axis}", value=", ".join(map(str, values)), basis="stated")
    if space.pinned("offload") is None:
        yield Assumption(name="offload", value="nothing, unless asked for", basis="assumed")


def target_note(target: str) -> Assumption:
    """The framework that has to run the plans."""
    from meshwright.targets import target_named  # few questions name one

    return Assumption(name="target", value=f"plans that {target_named(target).title} can run", basis="stated")


def _measured_again(found: BestPlans) -> BestPlans:
    """Ordered once more: the plan whose own step was measured stands where the measurement puts it."""
    plans = tuple(sorted(found.result.plans, key=lambda plan: plan.estimate.step_time_s))
    return replace(found, result=replace(found.result, plans=plans))
