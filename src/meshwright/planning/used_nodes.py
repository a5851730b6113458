"""A plan on the nodes it uses alone: what a framework is asked about, as its launcher never sees the idle ones."""

from __future__ import annotations

from dataclasses import replace

from meshwright.planning.one_kind import first_nodes
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan


def on_used_nodes(job: Job) -> Job:
    """The same plan on a cluster of the nodes it uses, devices numbered from 0 in the same order.

    Args:
        job: a plan that may leave nodes or whole groups idle.

    Returns:
        The job itself where every node is used.
    """
    cluster, used = job.cluster, _used(job)
    if all(len(nodes) == group.nodes for group, nodes in zip(cluster.groups, used, strict=True)):
        return job
    moved: list[tuple[int, int, int]] = []  # first and last device of nodes that stay together, and how far they move
    start = idle = 0
    groups: list[NodeGroup] = []
    for group, nodes in zip(cluster.groups, used, strict=True):
        each = group.devices_per_node
        for node in range(group.nodes):
            first = start + node * each
            if node in nodes:
                moved.append((first, first + each - 1, idle))
            else:
                idle += each
        start += group.devices
        if nodes:
            groups.append(_of_nodes(cluster, group, len(nodes)))
    name = ",".join(f"{group.devices}x{group.device.name}" for group in groups)
    left = {group.name for group, nodes in zip(cluster.groups, used, strict=True) if not nodes}
    links = tuple(link for link in cluster.links if not left & set(link.between))
    part = replace(cluster.part(name, tuple(groups)), links=links)
    return replace(job, cluster=part, plan=_renumbered(job.plan, moved))


def used_nodes_note(job: Job) -> str | None:
    """Which nodes a plan is started on, where it leaves some idle; else None."""
    used = _used(job)
    if all(len(nodes) == group.nodes for group, nodes in zip(job.cluster.groups, used, strict=True)):
        return None
    words = []
    for group, nodes in zip(job.cluster.groups, used, strict=True):
        if nodes:
            noun = "node" if len(nodes) == 1 else "nodes"
            words.append(f"{noun} {_ranges(sorted(nodes))} of {group.name}")
    return f"start it on {' and '.join(words)} alone: nodes and ranks are counted from 0 there, the others idle"


def _used(job: Job) -> list[set[int]]:
    """Numbers of the nodes of each group that hold a device of the plan."""
    ranges = [r for pipeline in job.plan.pipelines for worker in pipeline.workers for r in worker.devices]
    found: list[set[int]] = []
    start = 0
    for group in job.cluster.groups:
        nodes: set[int] = set()
        for first, last in ranges:
            low, high = max(first, start) - start, min(last, start + group.devices - 1) - start
            if low <= high:
                nodes.update(range(low // group.devices_per_node, high // group.devices_per_node + 1))
        found.append(nodes)
        start += group.devices
    return found


def _of_nodes(cluster: ClusterSpec, group: NodeGroup, nodes: int) -> NodeGroup:
    if nodes == group.nodes:
        return group
    whole = cluster.part(group.name, (group,))
    return replace(first_nodes(whole, nodes=nodes, per_node=group.devices_per_node).groups[0], name=group.name)


def _renumbered(plan: ExecutionPlan, moved: list[tuple[int, int, int]]) -> ExecutionPlan:
    def new(devices: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for first, last in devices:
            start = len(found)
            for low, high, by in moved:
                if max(first, low) <= min(last, high):
                    one = (max(first, low) - by, min(last, high) - by)
                    if len(found) > start and found[-1][1] + 1 == one[0]:
                        one = (found.pop()[0], one[1])
                    found.append(one)
        return tuple(found)

    pipelines = tuple(
        replace(one, workers=tuple(replace(worker, devices=new(worker.devices)) for worker in one.workers))
        for one in plan.pipelines
    )
    return replace(plan, pipelines=pipelines)


def _ranges(numbers: list[int]) -> str:
    """`0-6, 8`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] + 1 == number:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
