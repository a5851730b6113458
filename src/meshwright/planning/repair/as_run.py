"""Repairs priced as the frameworks run them that can: with their kernels and memory, in plans that fit there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from meshwright.errors import MeshwrightError
from meshwright.estimate.price import estimate_plan
from meshwright.library.software import canonical
from meshwright.planning.for_target import refusals_in_search, software_of
from meshwright.planning.repair.job_repair import LOOKED_AT, FittingPlan, JobRepair, costing, fitting
from meshwright.search.search import search
from meshwright.targets import TARGETS


def as_run(repair: JobRepair) -> JobRepair:
    """A repair priced as the quickest of the frameworks that run it, with those that are priced alike.

    Args:
        repair: on few devices, priced as the question is.

    Returns:
        The same where nobody was asked, or none runs it; without frameworks where it fits under none of them.
    """
    if not repair.run_by or repair.found is None:
        return repair
    alike: dict[str, list[str]] = {}
    tuned = repair.found.job.model.lora
    for name in repair.run_by:
        software = canonical(software_of(TARGETS[name], None if tuned is None else tuned.base))
        alike.setdefault(software, []).append(name)
    found = [one for software, names in alike.items() if (one := _under(software, names, repair.found)) is not None]
    said = partial(costing, option=repair.option, text=repair.text, changes_training=repair.changes_training)
    if not found:
        return said(repair.found, run_by=())
    best, _ = min(found, key=lambda one: one[0].estimate.step_time_s)
    alike_priced = (names for one, names in found if _cost(one) == _cost(best))
    able = {name for names in alike_priced for name in names}
    return said(best, run_by=tuple(name for name in repair.run_by if name in able))


def _cost(found: FittingPlan) -> tuple[str, float, float]:
    return found.plan, found.estimate.step_time_s, found.estimate.fullest.peak_memory_bytes


def _under(software: str, names: Sequence[str], found: FittingPlan) -> tuple[FittingPlan, tuple[str, ...]] | None:
    """The plan under a framework, or the best of those that fit there, and which of its trainers run it."""
    job = found.job
    workload = replace(job.workload, software=software)
    estimate = estimate_plan(job.plan, job.model, job.cluster, workload)
    if estimate.fits != "no":
        return found._replace(estimate=estimate, job=replace(job, workload=workload)), tuple(names)
    try:
        plans = search(job.model, job.cluster, workload, found.space, top=LOOKED_AT, refine=False).plans
    except MeshwrightError:  # it has not the number format, or not the devices
        return None
    refused = {name: refusals_in_search(name) for name in names}
    for one in plans:
        if one.row is None:
            continue
        other = fitting(one.row, one.estimate, job.model, job.cluster, workload, found.space)
        if able := tuple(name for name in names if not refused[name](other.job)):
            return other, able
    return None
