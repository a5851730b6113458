"""Plans of equal ranks on unlike devices: each works at the pace and within the memory of the weakest of its kind.

This is what data-parallel launchers start: one strategy and one micro-batch for all ranks, whatever they stand on.
Kinds that differ little lose little by it; those that differ much are out of reach by a bound.
"""

from __future__ import annotations

from collections.abc import Sequence

from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.islands import weakest_of
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.mixed.source import Launcher, PricedPlan
from meshwright.planning.one_kind import accepted
from meshwright.specs.cluster import AND, ClusterSpec
from meshwright.specs.collective_libraries import collective_library
from meshwright.specs.job import Job


def counted_as_one(cluster: ClusterSpec, parts: Sequence[IslandPart]) -> ClusterSpec | None:
    """Some groups of a cluster as one group of their weakest device; None where a framework forms no one group of them.

    It forms none over several zones, links that are paid for, or several collective libraries.

    Args:
        cluster: of several groups.
        parts: whole groups of it.
    """
    groups = [cluster.groups[part.group] for part in parts]
    names = {group.name for group in groups}
    links = [link for link in cluster.links if set(link.between) <= names]
    apart = {(group.zone, collective_library(group.device.vendor)) for group in groups}
    if len(apart) > 1 or any(link.price_per_gb for link in links):
        return None
    name = AND.join(f"{group.devices} {group.name}" for group in groups)
    return cluster.part(name, (weakest_of(groups, links),))


def best_of_equal_ranks(inputs: JobInputs, parts: Sequence[IslandPart], launcher: Launcher) -> PricedPlan | None:
    """The best plan that gives each rank of several groups the same work; None where none fits.

    Args:
        inputs: model, cluster and workload.
        parts: whole groups of the cluster, two or more.
        launcher: the framework that starts it.

    Raises:
        UnsupportedError: plans fit, and the target refuses those found.
    """
    where = counted_as_one(inputs.cluster, parts)
    if where is None:
        return None
    result = accepted(inputs.model, where, inputs.workload, launcher.space, 1, launcher.refuses)
    if not result.plans or result.relaxed:
        return None
    best = result.plans[0]
    name = best.row.format() if best.row else None
    job = Job(model=inputs.model, cluster=where, workload=inputs.workload, plan=best.plan, name=name)
    return PricedPlan(job=job, estimate=best.estimate, row=best.row)
