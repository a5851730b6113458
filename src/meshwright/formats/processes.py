"""Processes of a job on its nodes, one a device, and torchrun, which starts them."""

from __future__ import annotations

from itertools import accumulate

from meshwright.specs.job import Job


def per_node(job: Job) -> int:
    """Devices of a node that the job uses."""
    return min(job.cluster.groups[0].devices_per_node, job.plan.devices)


def nodes(job: Job) -> int:
    """Whole nodes of the job."""
    return max(1, job.plan.devices // per_node(job))


def unequal_nodes(job: Job) -> tuple[tuple[int, int], ...]:
    """Nodes and processes of each, run by run, where groups of unlike nodes count as one; nothing elsewhere."""
    groups = job.cluster.groups
    return groups[0].first_unequal(job.plan.devices) if len(groups) == 1 else ()


def processes_of_node(job: Job) -> tuple[str, int]:
    """How many processes a node starts, as a word of a shell, and on how many nodes.

    Where nodes differ in size the word asks for the node: `$((NODE_RANK < 1 ? 8 : 5))`.

    Args:
        job: the plan and its cluster.
    """
    runs = unequal_nodes(job)
    if not runs:
        return str(per_node(job)), nodes(job)
    *ends, every = accumulate(count for count, _ in runs)
    asked = "".join(f"NODE_RANK < {end} ? {size} : " for end, (_, size) in zip(ends, runs, strict=False))
    return f"$(({asked}{runs[-1][1]}))", every


def torchrun(job: Job, port: int | None = None) -> str:
    """torchrun with the processes of the job.

    Args:
        job: the plan and its cluster.
        port: the port of the first node, where several meet; torchrun's own by default.
    """
    each, count = processes_of_node(job)
    head = f"torchrun --nproc-per-node {each}"
    if count == 1:
        return head
    more = f" --master-port {port}" if port else ""
    return f"{head} --nnodes {count} --node-rank $NODE_RANK --master-addr $MASTER_ADDR{more}"
