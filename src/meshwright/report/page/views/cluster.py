"""The cluster map: boxes of domains and nodes, which stage each device works for, and who talks to whom."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from meshwright.planning.rank_map import CROSSING, stage_groups
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.shapes import Int
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.job import Job
from meshwright.specs.plan import Worker


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Groups of nodes with their domains, stages with their devices and groups of ranks, links between the groups.

    Args:
        plan: the plan whose stages are placed.
        source: the answer, for the links as they are described.
    """
    cluster = plan.job.cluster
    starts = list(accumulate((group.devices for group in cluster.groups), initial=0))
    stages = list(_stages(plan))
    described = source.document["inputs"]["cluster"]
    return {
        "groups": [
            {
                "name": group.name,
                "device": group.device.name,
                "first": first,
                "nodes": group.nodes,
                "per_node": group.devices_per_node,
                "domains": [
                    {
                        "name": domain.name,
                        "size": domain.size,
                        "bytes_per_s": domain.bandwidth_bytes_per_s,
                        "basis": domain.basis,
                    }
                    for domain in group.domains
                ],
            }
            for group, first in zip(cluster.groups, starts, strict=False)
        ],
        "links": [
            {"between": link["between"], "bytes_per_s": link["bandwidth_bytes_per_s"], "basis": link["basis"]}
            for link in described["links"]
        ],
        "stages": stages,
        "warnings": list(_leaving(plan, stages, starts)),
        "ranks": list(source.document["rank_map"]["stages"]) if plan is source.plans[0] else [],
    }


def stage_members(worker: Worker) -> Int[np.ndarray, " devices"]:
    """Devices of a stage in the order of their ranks.

    Args:
        worker: the worker of a plan.
    """
    return np.concatenate([np.arange(first, last + 1) for first, last in worker.devices])


def _stages(plan: PlanOnPage) -> Iterator[dict[str, Any]]:
    """Every stage of every pipeline, with the kinds of groups among its ranks."""
    job = plan.job
    experts = isinstance(job, Job) and job.model.is_moe
    numbers = iter(plan.entry["estimate"]["stages"])
    for number, pipeline in enumerate(job.plan.pipelines):
        for place, worker in enumerate(pipeline.workers):
            stage = next(numbers)
            kinds: list[tuple[str, int, int]] = []
            if any(chunk.runs for chunk in worker.chunks):
                strategy = job.plan.strategies[job.plan.strategy_index(pipeline, worker)]
                kinds = [kind for kind in stage_groups(strategy, experts=experts) if kind[1] > 1]
            yield {
                "pipeline": number,
                "stage": place,
                "group": stage["group"],
                "devices": [list(pair) for pair in worker.devices],
                "layers": [list(pair) for chunk in worker.chunks for pair in chunk.layers],
                "kinds": [[name.strip(), size, stride] for name, size, stride in kinds],
            }


def _leaving(plan: PlanOnPage, stages: list[dict[str, Any]], starts: list[int]) -> Iterator[dict[str, Any]]:
    """Groups that should stay inside a domain and do not, by kind: how many of how many, and where."""
    workers = [worker for pipeline in plan.job.plan.pipelines for worker in pipeline.workers]
    groups = {group.name: (group, first) for group, first in zip(plan.job.cluster.groups, starts, strict=False)}
    found: dict[tuple[str, int, str], list[int]] = {}
    for stage, worker in zip(stages, workers, strict=True):
        group, first = groups[stage["group"]]
        for name, size, stride in stage["kinds"]:
            if name.split()[0] in CROSSING:
                crossing, whole = _crossing(stage_members(worker) - first, size, stride, group)
                count = found.setdefault((name, size, group.name), [0, 0])
                count[0], count[1] = count[0] + crossing, count[1] + whole
    for (name, size, place), (crossing, whole) in found.items():
        if crossing:
            domain = groups[place][0].domains[0]
            yield {
                "kind": name,
                "size": size,
                "groups": crossing,
                "of": whole,
                "domain": domain.name,
                "domain_size": domain.size,
            }


def _crossing(devices: Int[np.ndarray, " devices"], size: int, stride: int, group: NodeGroup) -> tuple[int, int]:
    """Groups of a stage that reach over the border of an innermost domain, and all of them."""
    whole = len(devices) // (size * stride) * size * stride
    blocks = (devices[:whole] // group.domains[0].size).reshape(-1, size, stride)
    crossing = (blocks != blocks[:, :1]).any(axis=1)
    return int(crossing.sum()), int(crossing.size)
