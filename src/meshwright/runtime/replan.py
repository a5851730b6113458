"""A plan for the devices that are left: the same batch and schedule on fewer stages or data ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.errors import InfeasibleError, Problem
from meshwright.runtime.plan_method import ZERO
from meshwright.schedules import schedule_named
from meshwright.schedules.simulate import makespans
from meshwright.schedules.times import Times
from meshwright.specs.row import PlanRow, default_schedule


def replan(row: PlanRow, devices: int, layers: int) -> PlanRow:
    """The quickest plan of the same batch and ZeRO stage that fits the devices.

    Stages and data ranks change, and with them the number of micro-batches. Plans whose devices hold no more of the
    model than before come first; then the makespan of the schedule decides, each stage taking its share of the layers:
    forward mbs / stages, backward twice that; of equal ones the one that holds less.

    Args:
        row: the plan that ran.
        devices: that are left.
        layers: of the model.

    Raises:
        InfeasibleError: no plan of this batch fits.
    """
    found = list(_candidates(row, devices, layers))
    if not found:
        raise InfeasibleError(
            Problem(what=f"no plan of {row.gbs} samples a step on the {devices} devices that are left",
                    why=f"it was {row.format()}", fix="start again with more devices, or another --gbs",
                    field="devices"),
            code="MW311",
        )  # fmt: skip
    before = held_share(row) * (1 + 1e-9)
    return min(found, key=lambda one: (held_share(one) > before, step_share(one), held_share(one)))


def step_share(row: PlanRow) -> float:
    """Makespan of a plan's schedule, in seconds of the whole model's forward on one sample.

    Args:
        row: the plan.
    """
    table = schedule_named(row.schedule).table(row.pp, row.micro_batches, row.vpp)
    forward = row.mbs / row.pp
    times = Times.equal(row.pp, table.v, forward_s=forward, backward_s=2 * forward, weight_s=forward)
    return float(makespans(table, times).max())


def held_share(row: PlanRow) -> float:
    """What a device holds of the model's weights, gradients and two moments, in copies of the weights.

    (w + g + 2 m) / stages, each divided by the data ranks where ZeRO splits it.

    Args:
        row: the plan.
    """
    zero = ZERO[row.sharding]
    return sum(copies / (row.dp if zero >= stage else 1) for stage, copies in ((3, 1), (2, 1), (1, 2))) / row.pp


def _candidates(row: PlanRow, devices: int, layers: int) -> Iterator[PlanRow]:
    for pp in range(1, min(devices, layers) + 1):
        for dp in range(1, devices // pp + 1):
            for schedule, vpp in dict.fromkeys([(row.schedule, row.vpp), (default_schedule(1), 1)]):
                plan = replace(row, pp=pp, dp=dp, schedule=schedule, vpp=vpp)
                if row.gbs % (dp * row.mbs) or pp * vpp > layers:
                    continue
                if not schedule_named(schedule).problems(pp, plan.micro_batches, vpp):
                    yield plan
