"""Pipeline sets of measured layers as jobs that carry what was measured, and back."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from meshwright.formats.profiles import (
    End,
    LayerSizes,
    LayerTimes,
    LinkFit,
    ModelProfile,
    Point,
    ProfileSet,
    Route,
)
from meshwright.planning.compose.sources.profiles.costs import BETWEEN, ProfileCosts
from meshwright.planning.compose.sources.profiles.kinds import DeviceKind
from meshwright.planning.compose.sources.profiles.pipeline_set import PipelineShape, StageShape
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.measured import (
    MeasuredEnd,
    MeasuredJob,
    MeasuredKind,
    MeasuredLink,
    MeasuredModel,
    MeasuredPoint,
    MeasuredSizes,
)
from meshwright.specs.plan import ExecutionPlan, Pipeline, Worker


def measured_job(
    profiles: ProfileSet, costs: ProfileCosts, cluster: ClusterSpec, global_batch: int, plan: ExecutionPlan
) -> MeasuredJob:
    """A plan with what it uses of the profiles.

    Args:
        profiles: the folder.
        costs: one model of them on the cluster's kinds of device.
        cluster: its groups are those kinds.
        global_batch: sequences per step.
        plan: the plan of that model.
    """
    starts = {group.name: sum(g.devices for g in cluster.groups[:n]) for n, group in enumerate(cluster.groups)}

    def kind_of(worker: Worker) -> str:
        return max((name for name in starts if starts[name] <= worker.devices[0][0]), key=lambda name: starts[name])

    used = {
        (costs.kinds[kind_of(worker)].device, plan.strategies[plan.strategy_index(pipeline, worker)].tp)
        for pipeline in plan.pipelines
        for worker in pipeline.workers
    }
    return MeasuredJob(profile=_kept(profiles, costs, used), cluster=cluster, global_batch=global_batch, plan=plan)


def same_numbers(job: MeasuredJob, profiles: ProfileSet) -> bool:
    """Whether a folder still holds the numbers that a plan was made with."""
    costs = costs_of(job)
    model = profiles.models.get(job.profile.name)
    if model is None:
        return False
    used = {(point.device, point.tp) for point in job.profile.points}
    if any(tp not in model.sizes for _, tp in used):
        return False
    kept = _kept(profiles, ProfileCosts(profiles, job.profile.name, costs.kinds.values()), used)
    return kept.fingerprint == job.profile.fingerprint


def costs_of(job: MeasuredJob) -> ProfileCosts:
    """What prices a measured plan: the numbers that it carries. Memory is no limit here: a plan may not fit."""
    profile = job.profile
    times = {
        Point(point.device, point.tp, point.micro_batch): LayerTimes(
            forward_s=np.array(point.forward_s),
            backward_s=np.array(point.backward_s),
            update_s=np.array(point.update_s),
            basis=point.basis,
        )
        for point in profile.points
    }
    sizes = {
        one.tp: LayerSizes(
            parameters=np.array(one.parameters),
            input_elements=np.array(one.input_elements),
            output_elements=np.array(one.output_elements),
            saved_elements=np.array(one.saved_elements),
        )
        for one in profile.sizes
    }
    links = {
        Route(BETWEEN, _end(link.source), _end(link.target)): LinkFit(
            c2=link.c2, c1=link.c1, c0=link.c0, max_gb_s=link.max_gb_s
        )
        for link in profile.links
    }
    model = ModelProfile(name=profile.name, num_layers=profile.profiled_layers, times=times, sizes=sizes)
    groups = {group.name: group for group in job.cluster.groups}
    kinds = [
        DeviceKind(
            name=kind.group,
            device=kind.device,
            count=groups[kind.group].devices,
            devices_per_node=groups[kind.group].devices_per_node,
            memory_bytes=math.inf,
            zone=kind.zone,
        )
        for kind in profile.kinds
    ]
    return ProfileCosts(
        ProfileSet(source=profile.source, models={profile.name: model}, links=links), profile.name, kinds
    )


def pipeline_shapes(job: MeasuredJob) -> list[tuple[PipelineShape, tuple[int, ...]]]:
    """Every pipeline as the composer knows it, with the sequences of each of its micro-batches."""
    return [_shape(job, pipeline) for pipeline in job.plan.pipelines]


def _shape(job: MeasuredJob, pipeline: Pipeline) -> tuple[PipelineShape, tuple[int, ...]]:
    stages = []
    for worker in pipeline.workers:
        strategy = job.plan.strategies[job.plan.strategy_index(pipeline, worker)]
        layers = sum(chunk.num_layers + chunk.embedding + chunk.head for chunk in worker.chunks)
        stages.append(StageShape(job.group_of(worker.devices[0][0]), strategy.tp, strategy.dp, layers))
    ranks = stages[0].replicas
    whole = pipeline.micro_batch * ranks
    sizes = tuple(sequences * ranks for sequences, _ in pipeline.shapes) or (whole,) * pipeline.num_micro_batches
    return PipelineShape(whole, tuple(stages)), sizes


def _end(end: MeasuredEnd) -> End:
    return End(end.device, end.per_node, end.zone)


def _kept(profiles: ProfileSet, costs: ProfileCosts, used: set[tuple[str, int]]) -> MeasuredModel:
    """What a plan on these devices and degrees uses."""
    model = costs.profile
    points = tuple(
        MeasuredPoint(
            device=point.device,
            tp=point.tp,
            micro_batch=point.micro_batch,
            forward_s=tuple(times.forward_s.tolist()),
            backward_s=tuple(times.backward_s.tolist()),
            update_s=tuple(times.update_s.tolist()),
            basis=times.basis,
        )
        for point, times in sorted(model.times.items())
        if (point.device, point.tp) in used
    )
    sizes = tuple(
        MeasuredSizes(
            tp=tp,
            parameters=tuple(model.sizes[tp].parameters.tolist()),
            input_elements=tuple(model.sizes[tp].input_elements.tolist()),
            output_elements=tuple(model.sizes[tp].output_elements.tolist()),
            saved_elements=tuple(model.sizes[tp].saved_elements.tolist()),
        )
        for tp in sorted({1, *(tp for _, tp in used)})
    )
    kinds = tuple(MeasuredKind(group=k.name, device=k.device, zone=k.zone) for k in costs.kinds.values())
    links = tuple(_links(profiles, costs))
    numbers = [[asdict(one) for one in points], [asdict(one) for one in sizes], [asdict(one) for one in links]]
    text = json.dumps(numbers, sort_keys=True, separators=(",", ":"))
    return MeasuredModel(
        name=model.name,
        source=profiles.source,
        fingerprint="sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest(),
        kinds=kinds,
        points=points,
        sizes=sizes,
        links=links,
    )


def _links(profiles: ProfileSet, costs: ProfileCosts) -> Iterator[MeasuredLink]:
    """Links between any two of the cluster's kinds, at any number of devices that share an interface."""
    ends = {(kind.device, kind.zone) for kind in costs.kinds.values()}
    for route, fit in sorted(profiles.links.items(), key=lambda one: one[0]):
        source, target = route.source, route.target
        if route.kind == BETWEEN and {(source.device, source.zone), (target.device, target.zone)} <= ends:
            yield MeasuredLink(
                source=MeasuredEnd(device=source.device, per_node=source.per_node, zone=source.zone),
                target=MeasuredEnd(device=target.device, per_node=target.per_node, zone=target.zone),
                c2=fit.c2,
                c1=fit.c1,
                c0=fit.c0,
                max_gb_s=fit.max_gb_s,
            )
