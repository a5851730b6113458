"""An answer as the source of a page: its plans as data, simulated and explained when a view asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

from meshwright.app.estimate import priced_set
from meshwright.app.made_by import made_by
from meshwright.app.pages.plan_set_shape import require_plan_set
from meshwright.app.plans.plan_set import PlanSet, RankedPlan, distinct_plan_titles, ranked
from meshwright.app.requests.page import PageRequest
from meshwright.errors import UnsupportedError
from meshwright.estimate.price import PricedStep, estimate_plan
from meshwright.estimate.timeline import drawn_step
from meshwright.fields.command_line import NOT_OF_THE_ANSWER, command_line, stated_texts
from meshwright.formats.files import read_table
from meshwright.formats.plan_json import PLAN_SET_SCHEMA, read_document, with_model
from meshwright.library.made_with import calibration_of
from meshwright.planning.plan_source import job_of
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.picture import Picture
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.model import ModelSpec

NOT_OF_THE_PLAN = (*NOT_OF_THE_ANSWER, "with_run", "framework", "measured")
"""Fields of a report that `plan` is not asked."""


def page_source(request: PageRequest) -> PageSource:
    """What a page draws: plans handed on, those of a file, priced again, or those that the question finds.

    Args:
        request: the request of `report` or `web`.

    Raises:
        InputError: malformed or contradictory input, all problems together.
        UnsupportedError: an unknown name, or plans that no model prices.
        InfeasibleError: no plan fits, or none keeps to the limits.
    """
    file = request.plan_file
    if file is not None:
        return _of_file(file, command_line("report", request, without=("format", "port", "no_browser")))
    if request.answer is not None:
        return source_of(request.answer)
    return answered(request, planned(request))


def answered(request: PageRequest, answer: PlanSet) -> PageSource:
    """The answer to a question as the source of a page.

    Args:
        request: the question.
        answer: the answer of it.
    """
    command = command_line("plan", request, without=NOT_OF_THE_PLAN)
    searched = isinstance(answer.model, ModelSpec) and answer.cluster.homogeneous and answer.certificate is not None
    return replace(
        source_of(answer, command),
        asked=stated_texts(request, without=NOT_OF_THE_PLAN),
        excluded=partial(_excluded, request, answer) if searched else None,
    )


def _excluded(request: PageRequest, answer: PlanSet, reason: Literal["memory", "time"]) -> list[dict[str, Any]]:
    """Examples of plans that the search for an answer excluded."""
    from meshwright.app.plans.job import priced_fields
    from meshwright.planning.one_kind_plans import excluded_of
    from meshwright.planning.question.job_inputs import job_inputs

    inputs = job_inputs(priced_fields(request))
    best_s = answer.best.estimate.step_time_s
    found = excluded_of(inputs, request.space, request.target, best_s, reason)
    return [
        {
            "name": one.row.format(),
            "step_time_s": one.estimate.step_time_s,
            "peak_memory_bytes": one.estimate.fullest.peak_memory_bytes,
            "capacity_bytes": one.estimate.fullest.capacity_bytes,
            "stage": one.estimate.fullest.stage,
        }
        for one in found
    ]


def planned(request: PageRequest) -> PlanSet:
    """The plans that the question finds."""
    from meshwright.app.plan import plan

    answer = plan(request)
    return answer if isinstance(answer, PlanSet) else answer.answer


def source_of(answer: PlanSet, command: str = "") -> PageSource:
    """An answer as the source of a page.

    Args:
        answer: the answer of `plan` or `estimate`.
        command: gives it again.
    """
    return _source(answer.to_dict(), answer.plans, command)


def on_page(plan: RankedPlan, priced: PricedStep | None = None) -> PlanOnPage:
    """One plan, with what is made only where a view asks for it.

    Args:
        plan: the plan.
        priced: its estimate as it was made, from which its step is drawn without pricing it again.
    """

    @cache
    def picture() -> Picture:
        if priced is None or isinstance(plan.job, MeasuredJob):
            return plan.trace().picture
        from meshwright.app.trace import Trace

        return Trace(job=plan.job, step=drawn_step(priced, plan.job.workload)).picture

    @cache
    def explanation() -> Mapping[str, Any]:
        return plan.explain().to_dict()

    return PlanOnPage(
        entry=plan.shown(),
        job=plan.job,
        row=plan.row,
        estimate=plan.estimate,
        picture=picture,
        explanation=explanation,
    )


def _source(document: Mapping[str, Any], plans: tuple[RankedPlan, ...], command: str) -> PageSource:
    shown = tuple(on_page(plan) for plan in plans)
    entries = [{**one.to_dict(), "title": title} for one, title in zip(plans, distinct_plan_titles(plans), strict=True)]
    return PageSource(document={**document, "plans": entries}, plans=shown, command=command)


def _of_file(text: str, command: str) -> PageSource:
    """The plans of a file by the model of this version; the rest of a plan set as it was found."""
    path, _, place = text.partition("#")
    data: Mapping[str, Any] = {} if place else read_table(Path(path), "plan")
    if data.get("schema") != PLAN_SET_SCHEMA:
        job, warnings = job_of(text)
        return source_of(priced_set(job, warnings=warnings), command)
    require_plan_set(data, path)
    plans, moved = [], False
    for place_in_file, entry in enumerate(data["plans"], start=1):
        job = with_model(read_document(data, place_in_file).planned)
        priced = estimate_plan(job.plan, job.model, job.cluster, job.workload)
        moved = moved or not _as_before(entry.get("estimate"), priced.step_time_s)
        plans.append(replace(ranked(job, priced), rank=place_in_file))
    if not plans:
        raise UnsupportedError(_empty(path), code="MW408")
    warning = ["the plans are priced again by this version, which differs from the file's by more than 0.1%"]
    before = data.get("made_by")
    if isinstance(before, Mapping) and isinstance(before.get("command"), str):
        command = before["command"]
    document = {
        **data,
        "warnings": [*data.get("warnings", ()), *(warning if moved else ())],
        "made_by": made_by(calibration_of(plans[0].job)),
    }
    return _source(document, tuple(plans), command)


def _as_before(estimate: Any, step_time_s: float) -> bool:
    """Whether the estimate of a file, if it is one, says the step time to 0.1%."""
    before_s = estimate.get("step_time_s") if isinstance(estimate, Mapping) else None
    return isinstance(before_s, int | float) and abs(step_time_s - before_s) <= 1e-3 * step_time_s


def _empty(path: str) -> Any:
    from meshwright.errors import Problem

    return Problem(
        what=f"{path!r} holds no plan",
        why="a report needs at least one plan",
        fix="plan again, with looser limits",
        field="model",
    )
