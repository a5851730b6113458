"""Why a plan is the answer, as data: where its time goes, where its memory peaks, what the search proves, its price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from meshwright.estimate.result import LinkTraffic, StepPrice
from meshwright.planning.objectives import OBJECTIVES, QUICKEST, Aim
from meshwright.planning.reason import Reason
from meshwright.search.result import PlanCertificate
from meshwright.specs.cluster import ClusterSpec
from meshwright.units import HOUR_S

if TYPE_CHECKING:
    from meshwright.formats.plan_json import PlannedJob

FEW_DEVICES = 8
"""A host of usual size, on which most people fine-tune; answers for no more say which frameworks run the plan. On more,
people chose their framework before."""


def plan_reasons(
    job: PlannedJob, estimate: StepPrice, certificate: PlanCertificate | None, objective: str = "time"
) -> Iterator[Reason]:
    """Where the time goes, where the memory peaks, what was proved.

    Args:
        job: the plan.
        estimate: the estimate of it.
        certificate: the certificate of the search; None where nothing was searched.
        objective: a key of `OBJECTIVES`.
    """
    full = estimate.fullest
    yield Reason.of("time", parts=dict(estimate.breakdown_s))
    yield Reason.of(
        "memory",
        place=estimate.place(full),
        moment=full.peak_moment,
        free_bytes=full.capacity_bytes - full.peak_memory_bytes,
    )
    yield from host_reasons(job.cluster, estimate)
    if certificate is None:
        return
    if rule := OBJECTIVES[objective].rule:
        yield Reason.of("objective", name=objective, rule=rule)
    yield search_reason(certificate, objective, estimate.step_time_s)
    if len(job.plan.pipelines) > 1:
        yield Reason.of("unequal pipelines")
    elif job.name is None:
        yield Reason.of("recompute per layer" if len(job.plan.strategies) > 1 else "unequal chunks")


def host_reasons(cluster: ClusterSpec, estimate: StepPrice) -> Iterator[Reason]:
    """What the fullest host holds of states and activations that are away from their devices.

    Args:
        cluster: its groups and their hosts.
        estimate: the estimate of a plan.
    """
    away = [stage for stage in estimate.stages if stage.host_bytes or stage.disk_bytes]
    if not away:
        return
    groups = {group.name: group for group in cluster.groups}
    full = max(away, key=lambda stage: stage.host_bytes * groups[stage.group].devices_per_node)
    group = groups[full.group]
    yield Reason.of(
        "host",
        group=group.name,
        devices=group.devices_per_node,
        host_bytes=full.host_bytes * group.devices_per_node,
        memory_bytes=group.host.memory_bytes,
        shared=group.device.unified_memory,
        disk_bytes=full.disk_bytes * group.devices_per_node,
        disk_size_bytes=group.host.disk_bytes,
        fits=all(stage.fits_host for stage in away),
    )


def search_reason(certificate: PlanCertificate, objective: str = "time", step_time_s: float | None = None) -> Reason:
    """What the search proves of the best plan.

    Args:
        certificate: the certificate of the search.
        objective: a key of `OBJECTIVES`.
        step_time_s: the seconds of a step of the best plan.

    Returns:
        `gap` is how far the best plan is above the lower bound, relative to the plan; None where either is unknown.
    """
    bound = certificate.bound_step_time_s
    return Reason.of(
        "search",
        proof=OBJECTIVES[objective].proof,
        space=certificate.space,
        priced=certificate.priced,
        feasible=certificate.feasible,
        optimal=certificate.optimal,
        bound_s=bound,
        gap=None if bound is None or not step_time_s else max(0.0, 1.0 - bound / step_time_s),
    )


def price_reasons(job: PlannedJob, estimate: StepPrice, aim: Aim = QUICKEST) -> Iterator[Reason]:
    """What keeps to which limits, what a step costs and what of it each link takes.

    Args:
        job: the plan.
        estimate: the estimate of it.
        aim: what was asked for; prices matter where it or a priced link makes them.
    """
    if aim.limited:
        yield Reason.of("limits", rule=aim.rule())
    paid = estimate.traffic_price_per_step > 0
    if estimate.price_per_step is not None and (aim.limited or aim.by.rents or paid):
        used = Counter[str]()
        for stage in estimate.stages:
            used[stage.group] += stage.devices
        yield price_reason(estimate.price_per_step, estimate.step_time_s, used, job.cluster)
    yield from traffic_reasons(estimate.traffic, job.cluster)
    if estimate.energy_j is not None and (aim.by.counts_energy or _states_energy(job.cluster)):
        yield energy_reason(estimate.energy_j, estimate, job.cluster)


def _states_energy(cluster: ClusterSpec) -> bool:
    """Whether anything of the cluster's power is stated."""
    stated = cluster.pue != 1 or cluster.carbon_kg_per_kwh is not None
    return stated or any(group.power_w_per_device is not None for group in cluster.groups)


def energy_reason(energy_j: float, estimate: StepPrice, cluster: ClusterSpec) -> Reason:
    """What energy a step takes on which devices.

    Args:
        energy_j: the joules of the step.
        estimate: the estimate of the plan.
        cluster: its groups have the powers.
    """
    used = Counter[str]()
    for stage in estimate.stages:
        used[stage.group] += stage.devices
    groups = {group.name: group for group in cluster.groups}
    return Reason.of(
        "energy",
        energy_j=energy_j,
        step_time_s=estimate.step_time_s,
        groups=[
            {
                "name": name,
                "devices": count,
                "power_w": groups[name].busy_power_w,
                "waiting_w": groups[name].waiting_power_w,
                "limit": groups[name].power_w_per_device is None,
            }
            for name, count in used.items()
        ],
        pue=cluster.pue,
        carbon_kg_per_kwh=cluster.carbon_kg_per_kwh,
        idle=cluster.devices - sum(used.values()),
    )


def price_reason(price_per_step: float, step_time_s: float, used: Mapping[str, int], cluster: ClusterSpec) -> Reason:
    """What a step costs.

        price of the devices = sum over groups of  price per device and hour x devices in use x step / 3600

    Args:
        price_per_step: the price per step of devices and traffic, USD.
        step_time_s: the seconds of a step of the step.
        used: devices of each group.
        cluster: its groups have the prices.
    """
    rates = {group.name: group.price_per_hour or 0.0 for group in cluster.groups}
    hour = sum(rates[name] * count for name, count in used.items())
    return Reason.of(
        "price",
        price_per_step=price_per_step,
        devices_price=hour * step_time_s / HOUR_S,
        step_time_s=step_time_s,
        groups=[{"name": name, "devices": count, "per_hour": rates[name]} for name, count in used.items()],
        idle=cluster.devices - sum(used.values()),
    )


def traffic_reasons(traffic: tuple[LinkTraffic, ...], cluster: ClusterSpec) -> Iterator[Reason]:
    """What crosses each link that is paid for."""
    for one in traffic:
        link = cluster.link(*one.between)
        if link is not None and link.price_per_gb:
            yield Reason.of(
                "link price",
                between=one.between,
                activation_bytes=one.activation_bytes,
                gradient_bytes=one.gradient_bytes,
                price_per_step=one.price_per_step,
                per_gb=link.price_per_gb,
            )
