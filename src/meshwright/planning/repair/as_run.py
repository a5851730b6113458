"""Repairs priced as the frameworks run them that can: with their kernels and memory, in plans that fit there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache, partial

from meshwright.errors import MeshwrightError
from meshwright.estimate.price import estimate_plan
from meshwright.library.software import canonical
from meshwright.planning.for_target import refusals_in_search, software_of
from meshwright.planning.one_kind import accepted
from meshwright.planning.repair.job_repair import FittingPlan, JobRepair, costing, fitting
from meshwright.planning.run_by import asked_about, few
from meshwright.planning.target_space import restricted
from meshwright.specs.job import Job
from meshwright.targets import TARGETS


def launched(repairs: Iterable[JobRepair]) -> tuple[JobRepair, ...]:
    """Repairs that a framework runs, freed pins, and what nobody asked for; all of them where none is left.

    Tiles that no framework makes are no change that anybody runs: of MLPs none has them beside its other settings.

    Args:
        repairs: each with those that run it.
    """
    found = tuple(repairs)
    return tuple(one for one in found if one.run_by or _may_be_run(one)) or found


def _may_be_run(repair: JobRepair) -> bool:
    """Whether another plan with the change may be run, or what the user stated or is told to state decides that."""
    workload = repair.found.job.workload if repair.found is not None else None
    tiled = workload is not None and max(workload.loss_tiles, workload.mlp_tiles) > 1
    return repair.option.startswith(("free ", "--software ")) or (repair.run_by is None and not tiled)


def as_run(repair: JobRepair) -> JobRepair:
    """A repair priced as the quickest of the frameworks that run it, with those that are priced alike.

    Args:
        repair: priced as the question is.

    Returns:
        The same where nobody was asked, or no framework runs a plan with its change; and on more devices than a few,
        where those are named that run the plan as it is priced.
    """
    if repair.run_by is None or repair.found is None or not few(repair.found.job.cluster):
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
