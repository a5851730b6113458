"""Nothing fits on several kinds of device: what would, each of it planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.mixed.spaces import alone_name
from meshwright.planning.one_kind import SpaceFor
from meshwright.planning.plan_shape import groups_of
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.repair.job_repair import JobRepair
from meshwright.planning.repair.of_job import same_batch
from meshwright.planning.repair.of_offload import offload_repairs
from meshwright.planning.repair.of_tuning import lighter
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload


def mixed_repairs(
    inputs: JobInputs, space_for: SpaceFor, plans_of: Callable[[ModelSpec, Workload], Sequence[PricedPlan]]
) -> Iterator[JobRepair]:
    """One kind of device with states in the memory of its hosts, and adapters over all kinds.

    Args:
        inputs: model, cluster and workload that fit nowhere.
        space_for: the search space of a part of the cluster.
        plans_of: plans of another model and step on the same cluster.
    """
    found = []
    for number, group in enumerate(inputs.cluster.groups):
        part = inputs.cluster.part(alone_name(inputs.cluster, number), (group,))
        batch = same_batch(inputs.workload, inputs.cluster.devices, group.devices)
        for one in offload_repairs(inputs.model, part, inputs.workload, space_for):
            found.append(replace(one, option=f"--gpus {part.name}{batch} {one.option}"))
    yield from sorted(found, key=lambda one: one.step_time_s)[:1]
    for option, text, tuned, step in lighter(inputs.model, inputs.workload, software_given=inputs.software_given):
        plans = plans_of(tuned, step)
        if plans:
            best = min(plans, key=lambda one: one.step_time_s)
            full = best.estimate.fullest
            names = [groups_of(best.job, pipeline) for pipeline in range(len(best.plan.pipelines))]
            yield JobRepair(
                option=option,
                text=text,
                plan=" | ".join(" > ".join(name) for name in names),
                devices=best.plan.devices,
                step_time_s=best.step_time_s,
                peak_memory_bytes=full.peak_memory_bytes,
                capacity_bytes=full.capacity_bytes,
                changes_training=True,
            )
            return
