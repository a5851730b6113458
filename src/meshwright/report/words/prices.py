"""What a step costs, in words: the devices that are rented, and what crosses links that are paid for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from meshwright.estimate.result import LinkTraffic, StepEstimate
from meshwright.planning.compose.costing import SECONDS_PER_HOUR
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.units import GIGA, seconds, significant, usd


def price_lines(job: Job, estimate: StepEstimate, aim: Aim = QUICKEST) -> Iterator[str]:
    """What keeps to which limits, what a step costs and what of it each link takes.

    Args:
        job: the plan.
        estimate: of it.
        aim: what was asked for; prices are told where it or a priced link makes them matter.
    """
    if aim.limited:
        yield f"it is the {aim.rule()}"
    paid = estimate.traffic_price_per_step > 0
    if estimate.price_per_step is not None and (aim.limited or aim.objective == "cost" or paid):
        used = Counter[str]()
        for stage in estimate.stages:
            used[stage.group] += stage.devices
        yield price_said(estimate.price_per_step, estimate.step_time_s, used, job.cluster)
    yield from traffic_lines(estimate.traffic, job.cluster)


def price_said(price_per_step: float, step_time_s: float, used: Counter[str], cluster: ClusterSpec) -> str:
    """`price of a step: 0.62 USD, for 64 H100 at 2.5 USD an hour; devices that stay idle are not rented`.

    Args:
        price_per_step: of devices and traffic, USD.
        step_time_s: of the step.
        used: devices of each group.
        cluster: its groups have the prices.
    """
    rates = {group.name: group.price_per_hour or 0.0 for group in cluster.groups}
    parts = [f"{count:,} {name} at {usd(rates[name])} an hour" for name, count in used.items()]
    hour = sum(rates[name] * count for name, count in used.items())
    devices = hour * step_time_s / SECONDS_PER_HOUR
    idle = sum(used.values()) < cluster.devices
    rest = f", of it {usd(devices)} for the devices" if price_per_step > devices * (1 + 1e-9) else ""
    said = f"price of a step: {usd(price_per_step)}{rest}: {' and '.join(parts)}, {seconds(step_time_s)}"
    return f"{said}; devices that stay idle are not rented" if idle else said


def traffic_lines(traffic: tuple[LinkTraffic, ...], cluster: ClusterSpec) -> Iterator[str]:
    """What crosses each link that is paid for."""
    for one in traffic:
        link = cluster.link(*one.between)
        if link is None or not link.price_per_gb:
            continue
        kinds = [("activations", one.activation_bytes), ("gradients", one.gradient_bytes)]
        parts = " and ".join(f"{_gigabytes(size)} of {name}" for name, size in kinds if size)
        yield (
            f"{' - '.join(one.between)}: {parts} cross it in a step, {usd(one.price_per_step)} "
            f"at {link.price_per_gb:g} USD per GB"
        )


def _gigabytes(size_bytes: float) -> str:
    return f"{significant(size_bytes / GIGA)} GB"
