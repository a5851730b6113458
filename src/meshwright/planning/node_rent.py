"""The best plans by any aim on equal nodes: how many of them to rent, and which plans keep to the limits.

    price of a step   price per device and hour x devices x step / 3600

On the devices that are rented the quickest plan is the cheapest one. Without a price, device-hours order the plans.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from meshwright.errors import InputError, UnsupportedError
from meshwright.planning.compose.costing import SECONDS_PER_HOUR, Offer
from meshwright.planning.finding import CLEARLY_FASTER, Found, Refusals, SpaceFor, find_plans, resized
from meshwright.planning.objectives import Aim, admitted, require_prices
from meshwright.search.result import FoundPlan
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload


def find_best(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    aim: Aim,
    *,
    top: int = 5,
    refuses: Refusals | None = None,
    pareto: bool = False,
) -> Found:
    """The best plans by an aim, on as many nodes as it takes.

    Args:
        model: the model.
        cluster: one group of equal nodes.
        workload: the step.
        space_for: the search space for a number of devices.
        aim: time, on all devices that can be used well; cost, on the whole cluster, or on halves and three quarters of
            its nodes, as time is where the price of a step is limited; memory, the least peak among plans at most 10%
            slower than the quickest.
        top: how many layouts.
        refuses: what a target refuses of a job.
        pareto: also find the front of time and memory.

    Returns:
        Plans that keep to the limits, none if nothing fits; the part of the cluster they use and why the rest idles.

    Raises:
        InputError: a price is limited and not known.
        InfeasibleError: plans fit, and none keeps to the limits.
    """
    if math.isfinite(aim.max_price_per_step):
        require_prices(group.device.name for group in cluster.groups if group.price_per_hour is None)
    least_memory = aim.objective == "memory"
    on = partial(
        find_plans,
        model,
        workload=workload,
        space_for=space_for,
        top=top,
        refuses=refuses,
        pareto=pareto or least_memory,
    )
    whole = on(cluster=cluster)
    if least_memory:
        front = whole.result.pareto or whole.result.plans
        front = tuple(sorted(front, key=lambda plan: plan.estimate.peak_memory_bytes))
        whole = replace(whole, result=replace(whole.result, plans=front))
    found = [whole]
    if aim.rents and not least_memory:
        found += _on_fewer(cluster, on)
    best = whole
    for other in found[1:]:
        if not best.result.plans or _clearly_better(_offers(other)[0], _offers(best)[0], aim):
            best = other
    if best is not whole:
        used = f"{best.cluster.devices} of {cluster.devices} devices used, the others idle and not rented"
        best = replace(best, warnings=(f"{used}: {_why_fewer(whole, best, aim)}",))
    kept = tuple(offer.plan for offer in _offers(best) if aim.excess(offer) == 0)
    if best.result.plans and not kept:
        raise_unmet(found, aim, model)
    return replace(best, result=replace(best.result, plans=kept[:top]))


def raise_unmet(found: Sequence[Found], aim: Aim, model: ModelSpec) -> None:
    """Say which limits no plan keeps to.

    Args:
        found: on each part of a cluster, the whole one first; none keeps to the limits.
        aim: the limits.
        model: of the plans.

    Raises:
        InfeasibleError: always.
    """
    offers = sorted((offer for one in found for offer in _offers(one)), key=aim.rank)
    if found[0].cluster.groups[0].price_per_hour is None:
        offers = [replace(offer, price_per_step=0.0) for offer in offers]
    admitted(aim, offers, f"{model.name} on {found[0].cluster.name}")


def _on_fewer(cluster: ClusterSpec, on: partial[Found]) -> list[Found]:
    """Plans on fewer and fewer nodes, as long as any fits."""
    group, found = cluster.groups[0], list[Found]()
    for nodes in _fewer(group.nodes):
        part = resized(cluster, nodes=nodes, per_node=group.devices_per_node)
        try:
            one = on(cluster=part)
        except (InputError, UnsupportedError):
            continue  # a pin or target that the whole cluster could follow and this part cannot
        if not one.result.plans:
            break
        found.append(one)
    return found


def _fewer(nodes: int) -> list[int]:
    """Halves, and three quarters, of a number of nodes, and of those again."""
    halves = [nodes >> power for power in range(nodes.bit_length())]
    return sorted({3 * half // 4 for half in halves if half % 4 == 0} | set(halves[1:]), reverse=True)


def _clearly_better(one: Offer[FoundPlan], other: Offer[FoundPlan], aim: Aim) -> bool:
    """Nearer to the limits, or, where both keep to them, better by half of what counts as clearly so."""
    excess, value = aim.rank(one)[:2]
    least_excess, least = aim.rank(other)[:2]
    return excess < least_excess or (excess == least_excess == 0 and value < least * (1 - CLEARLY_FASTER / 2))


def _why_fewer(whole: Found, part: Found, aim: Aim) -> str:
    """What the part has over the whole cluster."""
    if not whole.result.plans:
        return "no plan of all of them fits"
    before, after = _offers(whole)[0], _offers(part)[0]
    if aim.excess(before) > 0:
        return f"the best plan of all of them is beyond {aim.limits_said()}"
    return f"a step costs {100 * (1 - after.price_per_step / before.price_per_step):.0f}% fewer device-hours"


def _offers(found: Found) -> list[Offer[FoundPlan]]:
    """The plans with what they take and cost."""
    group, devices = found.cluster.groups[0], found.cluster.devices
    rate = 1.0 if group.price_per_hour is None else group.price_per_hour
    return [
        Offer(
            plan=plan,
            step_time_s=plan.estimate.step_time_s,
            price_per_step=rate * devices * plan.estimate.step_time_s / SECONDS_PER_HOUR,
            peak_memory_bytes=plan.estimate.peak_memory_bytes,
            on=f"{devices} {group.device.name}",
        )
        for plan in found.result.plans
    ]
