"""Numbers that a plan from data sheets is sensitive to: links between groups halved, others a fifth lower."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.estimate.price import estimate_plan
from meshwright.formats.cluster import default_links
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.sensitivity import scalable_numbers
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.job import Job

LINK_CHANGE = 2.0
"""Factor by which a link between groups is made slower: few users know theirs better."""
NUMBER_CHANGE = 0.8
"""Factor on the other numbers of a group."""


def doubts_of_model(one: PricedPlan) -> Iterator[tuple[str, float]]:
    """What becomes of a step with each number worse.

    Args:
        one: a plan of a model.

    Returns:
        number and change in words, and the share by which the step gets longer.
    """
    job = one.job
    assert isinstance(job, Job)
    for said, cluster in _worse(job, {stage.group for stage in one.estimate.stages}):
        changed = estimate_plan(job.plan, job.model, cluster, job.workload)
        yield said, changed.step_time_s / one.step_time_s - 1.0


def _worse(job: Job, used: set[str]) -> Iterator[tuple[str, ClusterSpec]]:
    cluster = job.cluster
    links = cluster.links or tuple(default_links(cluster.groups))
    for number, link in enumerate(links):
        if set(link.between) <= used:
            slower = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / LINK_CHANGE)
            said = f"{link.name} bandwidth -50% [{link.basis}]"
            yield said, replace(cluster, links=(*links[:number], slower, *links[number + 1 :]))
    for number, group in enumerate(cluster.groups):
        if group.name in used:
            for name, basis, make in (
                number_of for number_of in scalable_numbers(group) if number_of[0] in _weighty(group, job)
            ):
                groups = (*cluster.groups[:number], make(NUMBER_CHANGE), *cluster.groups[number + 1 :])
                yield f"{group.name} {name} -20% [{basis}]", replace(cluster, groups=groups)


def _weighty(group: NodeGroup, job: Job) -> tuple[str, str]:
    """The two numbers of a group that usually weigh the most: its large products and its outermost links."""
    compute = job.workload.precision.compute
    wide = compute if DTYPE_BYTES[compute] != DTYPE_BYTES["bf16"] else "16-bit"
    return f"{wide} GEMM speed", f"{group.domains[-1].name} bandwidth"
