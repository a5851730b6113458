"""What a run of so many tokens takes: days, device-hours, price."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.errors import InputError, Problem
from meshwright.estimate.result import StepEstimate, StepPrice
from meshwright.estimate.sequences import tokens_of_step
from meshwright.records import Record
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.failures import Failures
from meshwright.specs.job import Job
from meshwright.units import DAY_S, HOUR_S, JOULES_PER_KWH

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob
    from meshwright.planning.goodput import Goodput

NEVER_ENDS = 1e-9
"""Share of a run that trains, below which its days are a number of no use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun(Record):
    """What training on so many tokens takes at the predicted step."""

    tokens: float
    steps: float
    days: float
    """Days of wall time: the steps and what failures and checkpoints add to them."""
    days_low: float
    days_high: float
    goodput: Goodput
    device_hours: float
    """Device-hours of the devices in use and of spare nodes that stand by."""
    price: float | None
    price_per_device_hour: float | None
    energy_kwh: float | None = None
    """Energy of the devices and what the site adds; lost work and restarts are taken at the power of steps."""
    energy_at_most: bool = True
    """Whether it rests on the limit of a device."""
    carbon_kg: float | None = None
    """CO2-equivalent; None where the electricity's is not stated."""


def whole_run(job: PlannedJob, estimate: StepPrice, tokens: float | None = None) -> WholeRun | None:
    """Days, device-hours and price of the run; None where the tokens of the run are unknown."""
    if not isinstance(job, Job) or not isinstance(estimate, StepEstimate):
        return None  # profiles do not tell how many tokens a sequence has
    tokens = tokens if tokens is not None else job.workload.tokens
    if tokens is None:
        return None
    from meshwright.planning.goodput import goodput  # few questions name the tokens of a run

    steps = tokens / tokens_of_step(job.workload)
    per_node = max(group.devices_per_node for group in job.cluster.groups)
    taken_per_hour = preemptions_per_hour(job.cluster, estimate)
    working = goodput(job.plan.devices, job.workload.failures, _snapshot_s(job, estimate), per_node, taken_per_hour)
    if working.share < NEVER_ENDS:
        raise InputError([_endless(job.workload.failures, working)], code="MW206")
    days = steps * estimate.step_time_s / DAY_S / working.share
    low, high = _range(estimate, working)
    energy = None if estimate.energy_j is None else estimate.energy_j * steps / working.share / JOULES_PER_KWH
    carbon = job.cluster.carbon_kg_per_kwh
    hours = days * 24.0 * (job.plan.devices + working.spares * per_node)
    rate = _mean_price(job, estimate)
    return WholeRun(
        tokens=tokens,
        steps=steps,
        days=days,
        days_low=days * low,
        days_high=days * high,
        goodput=working,
        device_hours=hours,
        price=None if rate is None else rate * hours + steps * estimate.traffic_price_per_step,
        price_per_device_hour=rate,
        energy_kwh=energy,
        energy_at_most=any(group.power_w_per_device is None for group in job.cluster.groups),
        carbon_kg=None if energy is None or carbon is None else energy * carbon,
    )


def preemptions_per_hour(cluster: ClusterSpec, estimate: StepPrice) -> float:
    """How often any spot node of a plan is taken away.

    Args:
        cluster: says how often one of each group is.
        estimate: the estimate of the plan; its stages say which devices it uses.
    """
    rates = {group.name: group.preemptions_per_node_hour / group.devices_per_node for group in cluster.groups}
    return sum(stage.devices * rates[stage.group] for stage in estimate.stages) if any(rates.values()) else 0.0


def _endless(stated: Failures | None, working: Goodput) -> Problem:
    """The problem that failures leave nothing of the run."""
    away = "" if stated is None or stated.repair_s is None else f", {stated.repair_s / HOUR_S:,.6g} hours of repair"
    stops = working.failures_per_day + working.preemptions_per_day
    return Problem(
        what=f"--failures: the run never ends, with {stops:,.2f} failures and preemptions a day{away}",
        why="failures, restarts and repairs leave less than a billionth of the time for training",
        fix="check the units of rate, restart, every and repair, or give spares",
        field="failures",
    )


def _mean_price(job: Job, estimate: StepEstimate) -> float | None:
    """Price of an hour of one of the used devices, on average; None where that of any is unknown."""
    rates = {group.name: group.price_per_hour for group in job.cluster.groups}
    spent = [(stage.devices, rates[stage.group]) for stage in estimate.stages]
    if any(rate is None for _, rate in spent):
        return None
    return sum(count * (rate or 0.0) for count, rate in spent) / sum(count for count, _ in spent)


def _range(estimate: StepEstimate, working: Goodput) -> tuple[float, float]:
    """Low and high of the days over their middle: the ranges of step and goodput are independent."""
    step_s, share = estimate.step_time_s, working.share
    low = math.hypot(math.log(step_s / estimate.step_time_low_s), math.log(working.high / share))
    high = math.hypot(math.log(estimate.step_time_high_s / step_s), math.log(share / working.low))
    return math.exp(-low), math.exp(high)


def _snapshot_s(job: Job, estimate: StepEstimate) -> float:
    """Copy of the largest share of main weights and moments from a device to its host."""
    links = {group.name: group.device.host_bandwidth_bytes_per_s for group in job.cluster.groups}
    return max(dict(stage.memory_bytes)["optimizer"] / links[stage.group] for stage in estimate.stages)
