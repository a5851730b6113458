"""Processes of a job on its nodes, one a device, and torchrun, which starts them."""

from __future__ import annotations

from meshwright.specs.job import Job


def per_node(job: Job) -> int:
    """Devices of a node that the job uses."""
    return min(job.cluster.groups[0].devices_per_node, job.plan.devices)


def nodes(job: Job) -> int:
    """Whole nodes of the job."""
    return max(1, job.plan.devices // per_node(job))


def torchrun(job: Job, port: int | None = None) -> str:
    """torchrun with the processes of the job.

    Args:
        job: the plan and its cluster.
        port: of the first node, where several meet; torchrun's own by default.
    """
    head = f"torchrun --nproc-per-node {per_node(job)}"
    if nodes(job) == 1:
        return head
    more = f" --master-port {port}" if port else ""
    return f"{head} --nnodes {nodes(job)} --node-rank $NODE_RANK --master-addr $MASTER_ADDR{more}"
