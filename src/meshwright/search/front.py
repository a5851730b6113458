"""The front of four wishes: time, memory, devices and cost. Fewer devices are slower, and often cheaper per step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from meshwright.search.points import thinned
from meshwright.search.result import FoundPlan, SearchResult
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

FRONT_STEP = 0.01
"""A plan joins the front only if it beats every other in some wish by this share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPlan:
    """A plan and what it takes."""

    plan: FoundPlan
    devices: int
    cost: float
    """Cost per step, in device-seconds, or in the price's currency where the cluster states one."""

    @property
    def wishes(self) -> tuple[float, float, float, float]:
        """Time, peak memory, devices, cost: less is better in each."""
        estimate = self.plan.estimate
        return (estimate.step_time_s, estimate.peak_memory_bytes, float(self.devices), self.cost)


def smaller_clusters(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    """The cluster with half of its nodes, a quarter, and so on to one; of one node, half of its devices and so on.

    Args:
        cluster: one group of equal nodes.
    """
    group = cluster.groups[0]
    nodes, devices = group.nodes, group.devices_per_node
    while nodes * devices > 1:
        nodes, devices = (nodes // 2, devices) if nodes > 1 else (1, devices // 2)
        size = nodes * devices
        domains = tuple(replace(domain, size=min(domain.size, size)) for domain in group.domains)
        unequal = group.first_unequal(size)
        part = replace(group, nodes=nodes, devices_per_node=devices, domains=domains, unequal_nodes=unequal)
        yield cluster.part(f"{size}x{group.device.name}", (part,))


def device_front(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: Callable[[ClusterSpec], Space],
    whole: SearchResult,
) -> tuple[FrontPlan, ...]:
    """Plans that no other beats in time, memory, devices and cost at once.

    Args:
        model: the model.
        cluster: all devices.
        workload: the step.
        space_for: the space of the search on a part of the cluster.
        whole: what the search over all devices found, with its front of time and memory.

    Returns:
        The front, quickest first: the plans of all devices, and the quickest of each halving of them that still fits.
    """
    found = [_priced(plan, cluster) for plan in (*whole.pareto, *whole.plans)]
    for part in smaller_clusters(cluster):
        plans = search(model, part, workload, space_for(part), top=1, refine=False).plans
        if not plans:
            break
        found.append(_priced(plans[0], part))
    return tuple(thinned(sorted(found, key=lambda plan: plan.wishes), lambda plan: plan.wishes, FRONT_STEP))


def _priced(plan: FoundPlan, cluster: ClusterSpec) -> FrontPlan:
    seconds = plan.estimate.step_time_s * plan.plan.devices
    price = cluster.groups[0].price_per_hour
    return FrontPlan(plan=plan, devices=plan.plan.devices, cost=seconds if price is None else seconds * price / 3600.0)
