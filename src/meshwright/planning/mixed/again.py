"""The quickest plans of a job on a changed cluster, fast enough to use during a failure.

Pipeline sets of equal and unequal pipelines over all that is left; of one kind of device also equal pipelines on the
largest part of its largest group that they divide, searched around the degrees of the best pipeline sets. Comparisons
with parts of the cluster and the sensitivity are left to `plan`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from meshwright.planning.axes import space_of
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.effort import QUICK
from meshwright.planning.mixed.joinable import joinable
from meshwright.planning.mixed.kept import shared_again
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.search import MixedPlans
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan

COMPOSED = 6
"""Pipeline sets that are priced in full."""
MOST_SIZES = 1
"""Numbers of nodes that equal pipelines are tried on: the one that promises most."""


def plans_again(
    inputs: JobInputs,
    job: Job,
    *,
    top: int,
    pin: Iterable[str] = (),
    forbid: Iterable[str] = (),
    kept: Iterable[ExecutionPlan] = (),
    broken: Collection[str] = (),
) -> tuple[NativeSource, MixedPlans | None]:
    """The quickest plans on the cluster as it is after a change.

    Args:
        inputs: model and workload of the earlier plan, and the later cluster.
        job: the earlier plan.
        top: how many plans.
        pin: axes fixed to values.
        forbid: axes left at their plain value.
        kept: plans that leave most of the state where it is, priced beside those that are searched.
        broken: the last groups of the cluster, of nodes that lost some devices; the others are planned alone, too.

    Returns:
        What searched, and the plans, the quickest first; None where none fits.

    Raises:
        InputError: what is pinned cannot be.
    """

    def space_for(part: ClusterSpec) -> Space:
        return space_of(inputs.model, inputs.workload, part.devices, pin=pin, forbid=forbid, schedule=None)

    source = NativeSource(inputs, space_for, QUICK)
    found = _searched(source, job, max(COMPOSED, top))
    if whole := _whole_nodes(inputs.cluster, broken):
        # Fewer groups are divided more finely: of many devices the rest of a node may be worth less than that.
        others = _searched(NativeSource(replace(inputs, cluster=whole), space_for, QUICK), job, max(COMPOSED, top))
        found += [again for one in others if (again := source.priced(one.plan)) is not None]
    for plan in kept:
        found += _with_shares(source, plan)
    distinct = {one.plan: one for one in reversed(found)}  # those searched, with their degrees, stand before those kept
    if not distinct:
        return source, None
    ordered = sorted(distinct.values(), key=lambda one: one.step_time_s)
    return source, MixedPlans(candidates=tuple(ordered), quickest=ordered[0], alone={}, without={})


def _whole_nodes(cluster: ClusterSpec, broken: Collection[str]) -> ClusterSpec | None:
    """The cluster without these groups; None where it has none of them, or no others."""
    groups = tuple(group for group in cluster.groups if group.name not in broken)
    if len(groups) in (0, len(cluster.groups)):
        return None
    names = {group.name for group in groups}
    return replace(cluster, groups=groups, links=tuple(link for link in cluster.links if names >= {*link.between}))


def _searched(source: NativeSource, job: Job, most: int) -> list[PricedPlan]:
    """The best pipeline sets, and on one kind of device equal pipelines."""
    found = [one for joined in joinable(source.cluster, source.whole) for one in source.composed(joined, most)]
    groups = source.cluster.groups
    if len({group.device for group in groups}) == 1:
        largest = max(range(len(groups)), key=lambda number: groups[number].devices)
        for devices in _equal_sizes(job, groups[largest]):
            found += source.alone(IslandPart(largest, devices))
    return found


def _with_shares(source: NativeSource, plan: ExecutionPlan) -> list[PricedPlan]:
    """A plan as it is, and with its batch shared by what its pipelines are priced at."""
    one = source.priced(plan)
    if one is None or len(plan.pipelines) < 2:
        return [] if one is None else [one]
    pace_s = [
        max(stage.busy_s for stage in one.estimate.stages if stage.pipeline == number) / pipeline.num_micro_batches
        for number, pipeline in enumerate(plan.pipelines)
    ]
    again = shared_again(plan, pace_s)
    other = source.priced(again) if again is not None else None
    return [one] if other is None else [one, other]


def _equal_sizes(job: Job, group: NodeGroup) -> list[int]:
    """Numbers of devices that equal pipelines promise most on, whole nodes each."""
    sizes = [nodes * group.devices_per_node for nodes in range(1, group.nodes + 1)]
    promise = {devices: _promise(job, devices) for devices in sizes}
    able = [devices for devices in sizes if promise[devices]]
    return sorted(able, key=lambda devices: -promise[devices])[:MOST_SIZES] or [group.devices]


def _promise(job: Job, devices: int) -> float:
    """What so many devices would do: devices x m / (m + pp - 1) x layers / (pp x layers of the fullest stage).

    Degrees are the earlier plan's, but for stages pp and replicas dp; m = batch / dp is whole; 0 where no degrees fit.
    """
    strategy, layers = job.plan.strategies[0], job.model.num_layers
    rest, uneven = divmod(devices, strategy.tp * strategy.cp)
    best = 0.0
    for pp in range(1, min(rest, layers) + 1):
        if uneven or rest % pp or job.workload.global_batch % (rest // pp):
            continue
        number = job.workload.global_batch // (rest // pp)
        best = max(best, devices * number / (number + pp - 1) * layers / (pp * -(-layers // pp)))
    return best
