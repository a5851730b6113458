"""Repairs priced as the frameworks run them that can: with their kernels and memory, in plans that fit there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial

from meshwright.errors import MeshwrightError
from meshwright.estimate.price import estimate_plan
from meshwright.library.software import canonical
from meshwright.planning.for_target import refusals_in_search, software_of
from meshwright.planning.one_kind import accepted
from meshwright.planning.repair.job_repair import FittingPlan, JobRepair, costing, fitting
from meshwright.planning.run_by import asked_about
from meshwright.planning.target_space import restricted
from meshwright.specs.job import Job
from meshwright.targets import TARGETS


def as_run(repair: JobRepair) -> JobRepair:
    """A repair priced as the quickest of the frameworks that run it, with those that are priced alike.

    Args:
        repair: on few devices, priced as the question is.

    Returns:
        The same where nobody was asked, or no framework runs a plan with its change.
    """
    if repair.run_by is None or repair.found is None:
        return repair
    found = [*_fitting(repair.found, repair.run_by)] or [*_own_plans(repair.found)]
    said = partial(costing, option=repair.option, text=repair.text, changes_training=repair.changes_training)
    if not found:
        return said(repair.found, run_by=())
    _, best = min(found, key=lambda one: one[1].estimate.step_time_s)
    return said(best, run_by=tuple(name for name, one in found if _cost(one) == _cost(best)))


def _fitting(found: FittingPlan, names: tuple[str, ...]) -> Iterator[tuple[str, FittingPlan]]:
    """The plan as each of those prices it that run it, where it fits; elsewhere the best of their own."""
    price = cache(estimate_plan)
    job = found.job
    for name in names:
        workload = replace(job.workload, software=_software(name, job))
        estimate = price(job.plan, job.model, job.cluster, workload)
        if estimate.fits != "no":
            yield name, found._replace(estimate=estimate, job=replace(job, workload=workload))
        elif (own := _own_plan(found, name)) is not None:
            yield name, own


def _own_plans(found: FittingPlan) -> Iterator[tuple[str, FittingPlan]]:
    """The best plan with the same change of each framework."""
    for name in asked_about(found.job.cluster):
        if (own := _own_plan(found, name)) is not None:
            yield name, own


def _own_plan(found: FittingPlan, name: str) -> FittingPlan | None:
    """The best plan with the same change that fits under a framework and that it runs."""
    job, refuses = found.job, refusals_in_search(name)
    workload = replace(job.workload, software=_software(name, job))
    where = job.model, job.cluster, workload
    try:
        space = restricted(found.space, *where, refuses)
        plans = accepted(*where, space, 1, refuses).plans
    except MeshwrightError:  # it has not the model, the number format or the devices
        return None
    rows = (fitting(one.row, one.estimate, *where, space) for one in plans if one.row is not None)
    return next(rows, None)


def _software(name: str, job: Job) -> str:
    tuned = job.model.lora
    return canonical(software_of(TARGETS[name], None if tuned is None else tuned.base))


def _cost(found: FittingPlan) -> tuple[str, float, float]:
    return found.plan, found.estimate.step_time_s, found.estimate.fullest.peak_memory_bytes
