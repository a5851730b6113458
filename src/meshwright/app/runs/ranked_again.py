"""The best plans of a job before and after a measured step moved the numbers behind their prices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meshwright.errors import InfeasibleError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import SpaceFields
from meshwright.library.calibration import calibration_record
from meshwright.library.clusters import refitted
from meshwright.planning.objectives import QUICKEST
from meshwright.planning.one_kind_plans import one_kind_plans
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.records import Record
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.workload import Workload

MOST = 3
"""Most plans of either list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedAgain(Record):
    """One plan under the numbers of before and of after."""

    name: str
    rank_before: int | None
    """1 is the best; None where it is not among the best."""
    rank_after: int | None
    before_s: float
    after_s: float
    measured: bool
    """Whether it is the plan that ran."""


def ranked_again(
    inputs: JobInputs, known: Calibration, record: dict[str, Any], ran: ExecutionPlan, name: str
) -> tuple[RankedAgain, ...]:
    """The best plans of either set of numbers, and the plan that ran, the best of after first.

    Args:
        inputs: the job, on one kind of device, under the framework that ran.
        known: the calibration of before.
        record: the content of the new file.
        ran: the plan that was measured.
        name: its one-line form.
    """
    learned = calibration_record(record)
    after = (
        refitted(inputs.cluster, known, learned),
        replace(inputs.workload, calibration=learned),
    )
    sides = ((inputs.cluster, inputs.workload), after)
    lists = [_best(inputs, cluster, workload) for cluster, workload in sides]
    plans = lists[1] | {title: plan for title, plan in lists[0].items() if title not in lists[1]}
    plans = plans if name in plans else plans | {name: ran}
    orders = [list(found) for found in lists]
    rows = []
    for title, plan in plans.items():
        times = [estimate_plan(plan, inputs.model, cluster, workload).step_time_s for cluster, workload in sides]
        ranks = [order.index(title) + 1 if title in order else None for order in orders]
        rows.append(
            RankedAgain(
                name=title,
                rank_before=ranks[0],
                rank_after=ranks[1],
                before_s=times[0],
                after_s=times[1],
                measured=title == name,
            )
        )
    return tuple(sorted(rows, key=lambda row: row.after_s))


def _best(inputs: JobInputs, cluster: ClusterSpec, workload: Workload) -> dict[str, ExecutionPlan]:
    """Plans by their one-line form, the best first; none where nothing fits."""
    asked = replace(inputs, cluster=cluster, workload=workload)
    try:
        found = one_kind_plans(asked, SpaceFields(), QUICKEST, top=MOST).found
    except InfeasibleError:
        return {}
    return {plan.row.format(): plan.plan for plan in found.result.plans if plan.row is not None}
