"""Where a target refuses a plan: which one of its set it starts, and which other targets start this one."""

from __future__ import annotations

import os
from collections.abc import Iterator

from meshwright.errors import InputError, MeshwrightError, Problem
from meshwright.estimate.price import estimate_plan
from meshwright.formats.plan_json import read_job
from meshwright.planning.plan_source import PlanLike
from meshwright.planning.used_nodes import on_used_nodes
from meshwright.specs.job import Job
from meshwright.targets import TARGETS, Target
from meshwright.units import percent

_MOST = 32
"""Plans of a set that are asked about."""


def instead(plan: PlanLike, job: Job, target: Target) -> Problem | None:
    """What to export in place of a plan that a target refuses; None where nothing is known that starts.

    Args:
        plan: the plan as it was given; a plan set holds others.
        job: the plan, on the nodes that it uses.
        target: the target that refuses it.
    """
    what = f"{target.title} does not start this plan"
    for number, other in _listed(plan):
        if other.plan == job.plan or target.problems(on_used_nodes(other)):
            continue
        slower = _step_s(other) / _step_s(job) - 1.0
        beside = f"{percent(abs(slower))} {'slower' if slower >= 0 else 'quicker'}"
        why = f"the best of its set that it starts is #{number}, {other.name or 'of uneven stages'}: {beside}"
        return Problem(what=what, why=why, fix=f"export {_path(plan)}#{number} --to {target.name}", field="plan")
    others = [name for name, one in TARGETS.items() if one.suggested and one.read is not None and not one.problems(job)]
    if not others:
        return None
    titles = ", ".join(TARGETS[name].title for name in others)
    fix = f"use --to {others[0]}, or search what it starts: plan --target {target.name}"
    return Problem(what=what, why=f"it can be started by {titles}", fix=fix, field="target")


def _step_s(job: Job) -> float:
    return estimate_plan(job.plan, job.model, job.cluster, job.workload).step_time_s


def _path(plan: PlanLike) -> str:
    """Path of a plan file, without the number of a plan in it; empty for a plan that is in no file."""
    if not isinstance(plan, (str, os.PathLike)):
        return ""
    whole = os.fspath(plan)
    head, mark, number = whole.rpartition("#")
    return head if mark and number.isdecimal() and not os.path.exists(whole) else whole


def _listed(plan: PlanLike) -> Iterator[tuple[int, Job]]:
    """The plans of a set with their numbers, the best first."""
    path = _path(plan)
    if not path or path.lstrip().startswith("{"):
        return
    for number in range(1, _MOST + 1):
        try:
            planned = read_job(path, index=number).planned
        except (InputError, MeshwrightError):
            return
        if isinstance(planned, Job):
            yield number, planned
