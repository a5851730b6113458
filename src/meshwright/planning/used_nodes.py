"""A plan on the nodes it uses, in the order in which its stages use them: what a launcher is told.

A framework numbers its ranks stage by stage over the nodes it is started on, whatever a cluster file lists first. Nodes
that stay idle are not started, and the others are started in the order of the stages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, groupby, pairwise

from meshwright.planning.fewer_nodes import first_nodes
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan

Node = tuple[int, int]
"""Number of a group in its cluster, and of a node in the group."""


def on_used_nodes(job: Job) -> Job:
    """The same plan on a cluster of the nodes it uses, devices numbered from 0 as a launcher does.

    Args:
        job: a plan that may leave nodes or whole groups idle, or whose first stage is on a later group.

    Returns:
        The job itself where it uses every node in the order of its cluster.
    """
    if _numbered_through(job.plan, job.cluster.devices):
        return job
    groups = job.cluster.groups
    if len(groups) == groups[0].nodes == 1:
        return job
    nodes = _launched(job)
    if nodes == [(group, node) for group, one in enumerate(groups) for node in range(one.nodes)]:
        return job
    runs = [(groups[group], len(list(run))) for group, run in groupby(nodes, key=lambda node: node[0])]
    started = tuple(_of_nodes(job.cluster, group, count) for group, count in runs)
    name = ",".join(f"{group.devices}x{group.device.name}" for group in started)
    names = {group.name for group in started}
    links = tuple(link for link in job.cluster.links if names >= set(link.between))
    cluster = replace(job.cluster.part(name, started), links=links)
    return replace(job, cluster=cluster, plan=_renumbered(job.plan, _moves(job.cluster, nodes)))


def used_nodes_note(job: Job, *, each_node: bool = False) -> str | None:
    """Which nodes a plan is started on and in which order, where a launcher could do otherwise; else None.

    Args:
        job: the plan and its cluster.
        each_node: whether a launcher of nodes of unlike sizes starts on each as many processes as it has devices.
    """
    groups, nodes = job.cluster.groups, _launched(job)
    sizes = groups[0].first_unequal(job.plan.devices) if each_node and len(groups) == 1 else ()
    if sizes:
        return f"start one launcher on every node: {', '.join(_node_runs(sizes, groups[0].members))}"
    if len(groups) == 1 and len(members := groups[0].members) > 1:
        each = "device" if groups[0].devices_per_node == 1 else f"{groups[0].devices_per_node} devices"
        # Launchers count devices from 0: two of one node would take the same ones.
        return (
            f"start one launcher for every {each}: node ranks go through {', then '.join(members)}; of several in one"
            " node each sees its own devices alone (CUDA_VISIBLE_DEVICES)"
        )
    idle = "; the others idle" if len(nodes) < sum(group.nodes for group in groups) else ""
    runs = [(groups[group].name, [node for _, node in run]) for group, run in groupby(nodes, key=lambda node: node[0])]
    if len(runs) == 1:
        name, numbers = runs[0]
        where = f"{'node' if len(numbers) == 1 else 'nodes'} {_ranges(numbers)} of {name}"
        alone = f"start it on {where} alone: nodes and ranks are counted from 0 there{idle}"
        return alone if idle else _domains_note(groups[0])
    words: list[str] = []
    first = 0
    for name, numbers in runs:
        ranks = [*range(first, first + len(numbers))]
        rank, node, are = ("rank", "node", "is") if len(ranks) == 1 else ("ranks", "nodes", "are")
        words.append(f"node {rank} {_ranges(ranks)} {are} {node} {_ranges(numbers)} of {name}")
        first += len(numbers)
    return f"start its nodes in the order of the stages: {', '.join(words)}{idle}"


def _domains_note(group: NodeGroup) -> str | None:
    """How nodes are numbered where a scale-up domain holds several of them, and there is more than one."""
    (domain, *_), each = group.domains, group.devices_per_node
    if not each < domain.size < group.devices:
        return None
    return (
        f"start it on {domain.size // each} nodes of each {domain.name} domain: node ranks go through one domain after"
        " the other"
    )


def _node_runs(sizes: Sequence[tuple[int, int]], names: Sequence[str]) -> Iterator[str]:
    """`node rank 0 has 8 devices (H100)`: nodes of one size in turn, with the groups they are of."""
    first = 0
    # Of a group whose last node is used in part there are two runs: their names would not be in step.
    named = names if len(names) == len(sizes) else [""] * len(sizes)
    for (count, each), name in zip(sizes, named, strict=True):
        rank, have = ("rank", "has") if count == 1 else ("ranks", "have")
        devices = "1 device" if each == 1 else f"{each} devices"
        yield f"node {rank} {_ranges([*range(first, first + count)])} {have} {devices}{f' ({name})' if name else ''}"
        first += count


def _launched(job: Job) -> list[Node]:
    """The nodes that a plan uses, in the order of its stages where that numbers its devices through."""
    groups = job.cluster.groups
    in_order = list(dict.fromkeys(_nodes_by_stage(job)))
    numbers = [group for group, _ in groupby(in_order, key=lambda node: node[0])]
    if len(set(numbers)) == len(numbers):  # a group is one run of nodes: no other description of it is needed
        used = sum(groups[group].devices_per_node for group, _ in in_order)
        if _numbered_through(_renumbered(job.plan, _moves(job.cluster, in_order)), used):
            return in_order
    return sorted(in_order)


def _numbered_through(plan: ExecutionPlan, devices: int) -> bool:
    """Whether the stages take all devices in their order."""
    held = [span for pipeline in plan.pipelines for worker in pipeline.workers for span in worker.devices]
    follow = all(one[1] + 1 == other[0] for one, other in pairwise(held))
    return follow and held[0][0] == 0 and held[-1][1] == devices - 1


def _nodes_by_stage(job: Job) -> Iterator[Node]:
    """The nodes of every worker in turn."""
    for pipeline in job.plan.pipelines:
        for worker in pipeline.workers:
            for first, last in worker.devices:
                start = 0
                for number, group in enumerate(job.cluster.groups):
                    low, high = max(first, start) - start, min(last, start + group.devices - 1) - start
                    if low <= high:
                        for node in range(low // group.devices_per_node, high // group.devices_per_node + 1):
                            yield number, node
                    start += group.devices


def _moves(cluster: ClusterSpec, nodes: list[Node]) -> list[tuple[int, int, int]]:
    """First and last device of each node, and how far down its numbers go where nodes are started in this order."""
    starts = [0, *accumulate(group.devices for group in cluster.groups)]
    moves: list[tuple[int, int, int]] = []
    at = 0
    for group, node in nodes:
        each = cluster.groups[group].devices_per_node
        first = starts[group] + node * each
        moves.append((first, first + each - 1, first - at))
        at += each
    return sorted(moves)


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
