"""A page for a question that no plan answers: the plans that come nearest to it, and what would answer it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.app.estimate import priced_set
from meshwright.app.pages.source import answered, planned
from meshwright.app.plans.job import priced_fields
from meshwright.app.plans.plan_set import PlanSet
from meshwright.app.requests.page import PageRequest
from meshwright.errors import InfeasibleError
from meshwright.estimate.layout import expand
from meshwright.fields.job import AimFields
from meshwright.planning.one_kind_plans import leanest_of
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.planning.repair.leanest import Leanest
from meshwright.report.page.source import PageSource
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.job import Job

LIMITS = frozenset(("max_step_time", "max_price_per_step", "days", "max_price"))
MOST_SHOWN = 5
"""Plans that come nearest: the nearest is on show, the others are listed."""


def page_without_answer(request: PageRequest, error: InfeasibleError) -> PageSource:
    """What a page draws where nothing answers its question.

    Args:
        request: the question.
        error: why there is no answer, and what would give one.

    Returns:
        The answer without limits of time and price, where they alone forbid it; else the plans that lack the least
        memory, on all devices of one kind.

    Raises:
        InfeasibleError: no plan comes near it, as where none is legal.
    """
    answer = (_without_limits(request) if request.given & LIMITS else None) or _of_least_memory(request)
    if answer is None:
        raise error
    return replace(answered(request, answer), unanswered=error.to_dict())


def _without_limits(request: PageRequest) -> PlanSet | None:
    """The answer that a limit forbids; None where memory does."""
    try:
        return planned(replace(request, aim=AimFields(objective=request.aim.objective)))
    except InfeasibleError:
        return None


def _of_least_memory(request: PageRequest) -> PlanSet | None:
    """The plans that lack the least memory, one a layout; None where there are none that lack any."""
    lean = sorted(_leanest(request), key=lambda found: found[1].over_bytes)
    sets: list[PlanSet] = []
    for inputs, one in lean:
        if one.estimate.fits == "no" and len(sets) < MOST_SHOWN:
            plan = expand(one.row, inputs.model, inputs.workload.seq_len)
            job = Job(
                model=inputs.model, cluster=inputs.cluster, workload=inputs.workload, plan=plan, name=one.row.format()
            )
            sets.append(priced_set(job, inputs.assumptions))
    plans = tuple(replace(one.plans[0], rank=rank) for rank, one in enumerate(sets, start=1))
    return replace(sets[0], plans=plans) if sets else None


def _leanest(request: PageRequest) -> Iterator[tuple[JobInputs, Leanest]]:
    """Plans of least memory of every kind of device, one a layout, with the question on that kind alone."""
    inputs = job_inputs(priced_fields(request))
    for group in inputs.cluster.groups:
        alone = inputs if inputs.cluster.homogeneous else _on(inputs, group)
        layouts = set()
        for one in leanest_of(alone, request.space, request.target):
            layout = (one.row.tp, one.row.cp, one.row.pp, one.row.ep, one.row.dp)
            if layout not in layouts:
                layouts.add(layout)
                yield alone, one


def _on(inputs: JobInputs, group: NodeGroup) -> JobInputs:
    """The question on one of several kinds of device."""
    return replace(inputs, cluster=inputs.cluster.part(group.name, (group,)))
