"""The quickest plans of a job on a changed cluster, fast enough to use during a failure.

Pipeline sets of equal and unequal pipelines over all that is left; of one kind of device also equal pipelines on the
largest part that they divide, searched around the degrees of the best pipeline sets. What an answer says beside its
plans (each kind alone, what matters most) is left to `plan`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meshwright.app.plan_set import PlanSet, RankedPlan
from meshwright.planning.axes import space_of
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.pipelines import QUICK
from meshwright.planning.job_inputs import JobInputs, job_fields, job_inputs
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.usable_islands import usable_islands
from meshwright.report.words.verdict import Verdict, reasons, sentence
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.units import percent, seconds

COMPOSED = 6
"""Pipeline sets that are priced in full."""
MOST_SIZES = 1
"""Numbers of nodes that equal pipelines are tried on: the one that promises most."""


def plans_again(
    job: Job, cluster: ClusterSpec, *, top: int, pin: Iterable[str] = (), forbid: Iterable[str] = ()
) -> PlanSet | None:
    """The quickest plans on the cluster as it is after the change; None where none fits.

    Args:
        job: the earlier plan, whose model and workload stay.
        cluster: the later one.
        top: how many plans.
        pin: axes held to values.
        forbid: axes left at their plain value.

    Raises:
        InputError: what is pinned cannot be.
    """
    inputs, left_out = _inputs(job, cluster), tuple[str, ...]()
    if not cluster.homogeneous:
        inputs, left_out = usable_islands(inputs, None)

    def space_for(part: ClusterSpec) -> Space:
        return space_of(inputs.model, inputs.workload, part.devices, pin=pin, forbid=forbid, schedule=None)

    source = NativeSource(inputs, space_for, QUICK)
    found = source.composed(source.whole, max(COMPOSED, top))
    if inputs.cluster.homogeneous:
        for devices in _equal_sizes(job, inputs.cluster):
            found += source.alone(IslandPart(0, devices))
    distinct = {one.plan: one for one in found}
    if not distinct:
        return None
    ordered = sorted(distinct.values(), key=lambda one: one.step_time_s)
    return _answer(inputs, source, ordered[:top], left_out)


def _inputs(job: Job, cluster: ClusterSpec) -> JobInputs:
    return job_inputs(replace(job_fields(job.model, cluster, job.workload), tokens=None))


def _answer(inputs: JobInputs, source: NativeSource, found: list[PricedPlan], left_out: tuple[str, ...]) -> PlanSet:
    plans = tuple(
        RankedPlan(rank=rank, job=one.job, row=one.row, estimate=one.estimate)
        for rank, one in enumerate(found, start=1)
    )
    best, bound_s = plans[0], source.bound_s()
    above = percent(best.estimate.step_time_s / bound_s - 1.0)
    return PlanSet(
        model=inputs.model,
        cluster=inputs.cluster,
        workload=inputs.workload,
        assumptions=inputs.assumptions,
        verdict=Verdict(
            text=sentence(best.job, best.estimate),
            why=(
                *reasons(best.job, best.estimate, None),
                f"search: {above} above the {seconds(bound_s)} that no plan undercuts",
            ),
            runner_up=None,
        ),
        plans=plans,
        warnings=left_out,
    )


def _equal_sizes(job: Job, cluster: ClusterSpec) -> list[int]:
    """Numbers of devices that equal pipelines promise most on, whole nodes each."""
    group = cluster.groups[0]
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
