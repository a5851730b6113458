"""Memory: bars of every stage against its own device, over time as the schedule runs, and what makes it fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.errors import MeshwrightError, UnsupportedError
from meshwright.fields.job import JobFields
from meshwright.planning.plan_source import plan_question
from meshwright.planning.repair.of_plan import repairs_of_plan
from meshwright.planning.what_if import changes_to
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.page.views.timeline import memory_lines
from meshwright.report.picture import Picture
from meshwright.specs.measured import MeasuredJob


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Bytes of every stage by kind, at the peak and over time.

    Args:
        plan: the plan whose memory is shown.
        source: the answer.
    """
    stages = plan.entry["estimate"]["stages"]
    devices = {group.name: group.device.name for group in plan.job.cluster.groups}
    try:
        picture = plan.picture()
    except UnsupportedError:
        picture = None
    return {
        "names": [plan.estimate.place(stage) for stage in plan.estimate.stages],
        "devices": [devices[stage["group"]] for stage in stages],
        "fits": [stage.fits for stage in plan.estimate.stages],
        "over_time": None if picture is None else _over_time(picture),
        "repairs": priced_repairs(plan) if any(plan is one for one in source.plans) else None,
    }


def live_data(plan: PlanOnPage, source: PageSource, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a changed plan fit: tens of plans are priced for it, too many for every pull at a slider."""
    return {"repairs": priced_repairs(plan)}


def _over_time(picture: Picture) -> dict[str, Any]:
    """Activations as the schedule keeps them; the moment of each peak and the task that makes it."""
    lines = memory_lines(picture)
    assert lines is not None
    return {
        "end_s": picture.end_s,
        "memory": lines,
        "tasks": [_task_at(picture, worker, row["peak_s"]) for worker, row in enumerate(lines["workers"])],
    }


def _task_at(picture: Picture, worker: int, at_s: float) -> str:
    """`forward of micro-batch 7`: what begins to hold the most."""
    from meshwright.report.picture import WORDS
    from meshwright.schedules import Kind

    timeline, table = picture.timeline, picture.timeline.table
    own = slice(int(table.first[worker]), int(table.first[worker + 1]))
    begun = (timeline.start_s[own] <= at_s * (1 + 1e-12)).nonzero()[0]
    if not len(begun):
        return ""
    task = own.start + int(begun[-1])
    kind = Kind(int(table.kind[task]))
    return f"{WORDS.get(kind, kind.name)} of micro-batch {int(table.micro_batch[task]) // table.segments}"


def priced_repairs(plan: PlanOnPage) -> list[dict[str, Any]]:
    """Changes that make a plan fit which does not, each priced; none where it fits or has no row of degrees."""
    if plan.entry["estimate"]["fits"] != "no" or isinstance(plan.job, MeasuredJob):
        return []
    try:
        question = plan_question(plan.job, JobFields())
        found = repairs_of_plan(question.row, question.inputs) if question.row else ()
    except MeshwrightError:
        return []
    now_s = plan.estimate.step_time_s
    return [
        one.to_dict() | {"slower": one.step_time_s / now_s - 1.0, "changes": changes_to(plan.job, one.name)}
        for one in found
    ]
