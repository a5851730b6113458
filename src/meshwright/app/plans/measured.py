"""The best plans of a model that was measured: stages priced by the profiles of its layers."""

from __future__ import annotations

import os

from meshwright.app.plans.mixed_answer import Asked, mixed_answer
from meshwright.app.plans.plan_set import PlanSet
from meshwright.app.requests.plan import PlanRequest
from meshwright.errors import InputError, Problem, UnsupportedError, unknown_name
from meshwright.formats.cluster import Assumption
from meshwright.formats.profiles import read_profiles
from meshwright.planning.compose.sources.profiles.cluster import measured_cluster
from meshwright.planning.mixed.profiles import ProfileSource, priced_cluster
from meshwright.planning.mixed.search import mixed_plans
from meshwright.planning.objectives import aim_of
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredWorkload


def plan_measured(request: PlanRequest) -> PlanSet:
    """The best plans of a model of a folder of profiles.

    Args:
        request: the request with a model of the profiles, their folder, a cluster, and the global batch of the profiled
            length. Each plan carries the numbers it uses of the profiles.

    Returns:
        The plans, best first, with what mixing is worth.

    Raises:
        InputError: any input cannot be used; all problems together.
        UnsupportedError: the profiles know the model or a device not.
        InfeasibleError: nothing fits, or nothing keeps to the limits.
    """
    aim, asked = aim_of(request.aim), request.job
    top = request.top if "top" in request.given else 1
    model, global_batch = str(asked.model), asked.global_batch or 1
    if not aim.by.measured:
        why = "plans of measured profiles are compared by their time or their cost"
        problem = Problem(what=f"objective is {aim.objective!r}", why=why, fix="time or cost", field="objective")
        raise InputError(problem)
    folder = read_profiles(os.fspath(request.profiles or ""))
    spec = priced_cluster(measured_cluster(asked.cluster, asked.gpus, folder), asked.price)
    if model not in folder.models:
        raise UnsupportedError(unknown_name("model of the profiles", model, folder.models), code="MW401")
    source = ProfileSource(folder, model, spec, global_batch)
    found = mixed_plans(source, aim)
    job = found.candidates[0].job
    assert not isinstance(job, Job)
    points = len(source.costs.profile.interpolated)
    of = Asked(
        model=job.profile,
        workload=MeasuredWorkload(global_batch=global_batch),
        assumptions=(
            Assumption(name="layer times", value=f"profiles of {folder.source}", basis="measured"),
            Assumption(name="interpolated points", value=str(points), basis="extrapolated"),
        ),
        top=top,
        aim=aim,
    )
    return mixed_answer(of, source, found)
