"""Repairs that the target of a file can say: what a framework does not run repairs nothing of its users' files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from meshwright.errors import MeshwrightError, Problem
from meshwright.estimate.layout import expand
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.job import Job
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow

JobRule = Callable[[Job], tuple[Problem, ...]]
"""What a target refuses of a job."""


def of_degrees(rule: JobRule, job: Job) -> tuple[Problem, ...]:
    """What a target refuses of a plan's degrees: a trainer like it has its own models, formats, optimizer, adapters.

    Args:
        rule: the rule of the target.
        job: the plan and what it is for.
    """
    usual = replace(job.workload, precision=PRECISIONS["bf16"], optimizer="adamw", attention_kernel="flash")
    found = rule(replace(job, workload=usual, model=replace(job.model, tuning=None)))
    return tuple(problem for problem in found if (problem.field or "").partition(".")[0] != "model")


def as_said(
    row: PlanRow, inputs: JobInputs, rule: JobRule | None, sayable: Callable[[PlanRow], bool] | None
) -> PlanRow | None:
    """A changed row as the target says it; None where it does not.

    Tensor ranks that a repair adds come with sequence parallelism; a target without it has them without.

    Args:
        row: the row of a plan that is legal.
        inputs: its model, cluster and workload.
        rule: what the target refuses; None without a target.
        sayable: whether the user's own file can say a row; None where any file can.
    """
    for one in (row, replace(row, sp=False)) if row.tp > 1 and row.sp else (row,):
        if (rule is None or not _refused(one, inputs, rule)) and (sayable is None or sayable(one)):
            return one
    return None


def _refused(row: PlanRow, inputs: JobInputs, rule: JobRule) -> bool:
    try:
        plan = expand(row, inputs.model, inputs.workload.seq_len)
        job = Job(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload.with_batch(row.gbs), plan=plan)
        return bool(of_degrees(rule, job))
    except MeshwrightError:
        return True
