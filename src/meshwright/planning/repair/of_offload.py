"""States in host memory or on disks where a job does not fit the devices, and hosts with more memory."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from meshwright.estimate.away import HOST_SHARE
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.away import host_problems, update_problems
from meshwright.planning.axes.offload import IN_MEMORY, ON_DISKS, offload_text, spelled
from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.repair.job_repair import FittingPlan, Repairs, best_plan, job_repair
from meshwright.planning.run_by import few, run_by
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import offload_of
from meshwright.specs.workload import Workload
from meshwright.units import GIGA, significant

MOST_TRIED_DEVICES = 16
"""Up to so many, everything that may be away is tried."""
HARDLY_SLOWER = 1.1
"""Step over the quickest for which less memory of the host is worth it."""
MOST_HOST_BYTES = 4.4e12
"""Memory of one host beyond which nobody is told to use it: 32 modules of 128 GiB, all that two sockets take."""


def offload_repairs(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The quickest plan with states in host memory, and the quickest with states on disks where the host states them.

    On a few devices it is the quickest that a framework runs, where one runs any; on more devices than people fine-tune
    on, the first that fits with as little as possible away.
    """
    group = cluster.groups[0]
    asked = space_for(cluster).pinned("offload") or ()
    if asked == ("none",):
        return
    for tokens in (IN_MEMORY, ON_DISKS):
        tried: list[tuple[str, FittingPlan]] = []
        for token in tokens:
            away = offload_of(token)
            if token in asked:
                continue
            if any(host_problems(away, group)) or any(update_problems(away, workload)):
                continue
            found = best_plan(model, cluster, workload, partial(with_offload, space_for, token))
            if found and _host_bytes(found.estimate, group) <= MOST_HOST_BYTES:
                tried.append((token, found))
                if cluster.devices > MOST_TRIED_DEVICES:
                    break
        if tried:
            able = [one for one in tried if run_by(one[1].job)] if few(cluster) else tried
            token, best = _least_away(able or tried, group)
            text = f"{offload_text(token)}{_on_host(best.estimate, group)}"
            yield job_repair(spelled(token), text, best)


def larger_host(model: ModelSpec, cluster: ClusterSpec, workload: Workload, space_for: SpaceFor) -> Repairs:
    """The host memory that is enough for what is asked to be away, where the host states less."""
    group = cluster.groups[0]
    asked = [str(value) for value in space_for(cluster).pinned("offload") or () if value != "none"]
    if group.host.memory_bytes is None or not asked:
        return
    roomy = replace(cluster, groups=(replace(group, host=replace(group.host, memory_bytes=None)),))
    tried = []
    for token in asked:
        if any(host_problems(offload_of(token), group)) or any(update_problems(offload_of(token), workload)):
            continue
        found = best_plan(model, roomy, workload, partial(with_offload, space_for, token))
        if found and group.host.memory_bytes < _host_bytes(found.estimate, group) <= MOST_HOST_BYTES:
            tried.append((token, found))
    if tried:
        token, best = _least_away(tried, group)
        size = math.ceil(_host_bytes(best.estimate, group) / GIGA)
        yield job_repair(f"--host-ram {size}GB", f"{offload_text(token)}, which needs that much", best)


def with_offload(space_for: SpaceFor, token: str, part: ClusterSpec) -> Space:
    """The space of a part with one value of what is away."""
    own = space_for(part)
    return replace(own, pins=(*(pin for pin in own.pins if pin[0] != "offload"), ("offload", (token,))))


def _least_away(tried: list[tuple[str, FittingPlan]], group: NodeGroup) -> tuple[str, FittingPlan]:
    """The quickest that leaves the usual reserve; of those hardly slower the one that asks least of the host."""
    free = [one for one in tried if one[1].estimate.fits == "yes"] or tried
    limit_s = HARDLY_SLOWER * min(one[1].estimate.step_time_s for one in free)
    near = [one for one in free if one[1].estimate.step_time_s <= limit_s]
    return min(near, key=lambda one: (_host_bytes(one[1].estimate, group), one[1].estimate.step_time_s))


def _on_host(estimate: StepEstimate, group: NodeGroup) -> str:
    """How much memory a host needs for it, where it does not say how much it has."""
    if group.host.memory_bytes is not None:
        return ""
    need = _host_bytes(estimate, group)
    return f" (a host with {significant(need / GIGA)} GB)" if need else ""


def _host_bytes(estimate: StepEstimate, group: NodeGroup) -> float:
    """Memory that a host must have."""
    return max(stage.host_bytes for stage in estimate.stages) * group.devices_per_node / HOST_SHARE
