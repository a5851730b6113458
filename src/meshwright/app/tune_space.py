"""The space that tuners search: that of `plan`, and of adapters the part that the best trainer runs."""

from __future__ import annotations

from typing import Any

from meshwright.app.requests.tune import TuneRequest
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.planning.axes import space_of, target_rule
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.schedules import DEFAULT_SCHEDULES
from meshwright.search.space import Space
from meshwright.search.tuners.base import Optimum
from meshwright.search.tuners.plan_space import PlanSpace
from meshwright.specs.cluster import ClusterSpec


def tuned_space(request: TuneRequest) -> PlanSpace:
    """The space of a question.

    With adapters it is the part of the trainer whose best plan is the quickest, priced as that trainer runs it, as
    `plan` answers. Where no trainer runs a plan of the question, it is that of no framework.

    Raises:
        InputError, UnsupportedError: the question cannot be tuned.
        InfeasibleError: no plan is legal.
    """
    inputs = job_inputs(request.job)
    _require_one_kind(inputs.cluster)
    space = _space(inputs, _axes(inputs, request))
    if inputs.model.lora is None:
        return space
    from meshwright.targets import FINE_TUNING

    found = [one for trainer in FINE_TUNING if (one := _of_trainer(request, trainer)) is not None]
    fitting = [(best.value, number) for number, (_, best) in enumerate(found) if best is not None]
    if fitting:
        return found[min(fitting)[1]][0]
    return found[0][0] if found else space


def exact_optimum(space: PlanSpace) -> Optimum | None:
    """The best plan of a space, found by the exact search; None where none leaves the reserve of memory free.

    Raises:
        UnsupportedError: plans fit, and the framework runs none that were found.
    """
    if space.refuses is None:
        return space.optimum()
    from meshwright.planning.one_kind import accepted

    return space.optimum_of(accepted(space.model, space.cluster, space.workload, space.space, 1, space.refuses))


def _of_trainer(request: TuneRequest, trainer: str) -> tuple[PlanSpace, Optimum | None] | None:
    """What one trainer runs of the space, and its best plan; None where it runs nothing of it."""
    from meshwright.planning.for_target import priced_as
    from meshwright.planning.target_space import restricted
    from meshwright.targets import TARGETS

    refuses = target_rule(trainer)
    assert refuses is not None
    try:
        inputs = job_inputs(priced_as(request.job, trainer))
        axes = restricted(_axes(inputs, request), inputs.model, inputs.cluster, inputs.workload, refuses)
        space = _space(inputs, axes, under=TARGETS[trainer].title, refuses=refuses)
        return space, exact_optimum(space)
    except (InfeasibleError, InputError, UnsupportedError):
        return None


def _space(inputs: JobInputs, axes: Space, **trainer: Any) -> PlanSpace:
    return PlanSpace(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload, space=axes, **trainer)


def _axes(inputs: JobInputs, request: TuneRequest) -> Space:
    """The default space of the question, as its pins narrow it.

    Raises:
        InputError: schedules are asked for that no tuner tries.
    """
    axes = space_of(inputs.model, inputs.workload, inputs.cluster.devices, **request.space.keywords())
    others = [name for name in axes.pinned("schedule") or () if name not in DEFAULT_SCHEDULES]
    if others:
        why = "a tuner's axes are those of the default space"
        fix = f"use {', '.join(DEFAULT_SCHEDULES)}, or search the others with `plan`"
        what = f"schedules {', '.join(map(str, others))} in a tuned space"
        raise InputError(what=what, why=why, fix=fix, field="schedule", code="MW205")
    return axes


def _require_one_kind(cluster: ClusterSpec) -> None:
    """Refuse a cluster of several groups."""
    if cluster.homogeneous:
        return
    groups = ", ".join(f"{g.devices} x {g.device.name}" for g in cluster.groups)
    raise UnsupportedError(
        what=f"the cluster has {len(cluster.groups)} groups of nodes: {groups}",
        why="the axes that are tuned are those of plans on one kind of node",
        fix=(
            "use `meshwright plan`, which composes pipelines over all of them, or take one group: --gpus "
            f"{cluster.groups[0].devices}x{cluster.groups[0].device.name}"
        ),
        field="cluster",
        code="MW407",
    )
