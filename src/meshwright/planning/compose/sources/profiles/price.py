"""A measured job priced by the rule that planned it, from the numbers that it carries.

    T = max over pipelines of (fill + sum over micro-batches of the slowest stage)  +  max update  +  sync

`SetPricer` finds the same time for the shares that it hands out; this prices those that a plan states.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.errors import InputError, Problem
from meshwright.estimate.memory import MEMORY_KINDS, TIGHT_SHARE
from meshwright.estimate.result import StageEstimate, StepPrice
from meshwright.planning.compose.sources.profiles.costs import STATE_BYTES, ProfileCosts
from meshwright.planning.compose.sources.profiles.gradient_rings import Held, slowest_sync_s
from meshwright.planning.compose.sources.profiles.job import costs_of, pipeline_shapes
from meshwright.planning.compose.sources.profiles.pipeline_pace import PipelinePace, PipelinePacer
from meshwright.planning.compose.sources.profiles.pipeline_set import EqualPipelines, PipelineShape, ShapeSet
from meshwright.planning.compose.sources.profiles.traffic import composition_traffic
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.measured import MeasuredJob
from meshwright.units import HOUR_S

WEIGHT_BYTES, GRADIENT_BYTES = 4, 4
"""Bytes per parameter out of `costs.STATE_BYTES`; the rest is the optimizer's moments and copies."""
PARTS = ("compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "offload", "host")
"""Parts of a step, as estimates from data sheets name them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStage(StageEstimate):
    """One stage of a pipeline of measured layers."""

    micro_batches: int
    """Micro-batches of its pipeline."""
    sequences: int
    """Sequences of its pipeline, over all micro-batches."""
    micro_batch_s: float
    """Forward, backward and transfers of one micro-batch."""
    compute_s: float
    """Forward and backward of one micro-batch."""

    def to_dict(self) -> dict[str, object]:
        """As data: what any stage says, and its micro-batches."""
        return StageEstimate.to_dict(self) | {
            "micro_batches": self.micro_batches,
            "sequences": self.sequences,
            "micro_batch_s": self.micro_batch_s,
            "compute_s": self.compute_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedPipeline:
    """One pipeline of a job with its micro-batches."""

    shape: PipelineShape
    sizes: tuple[int, ...]
    """Sequences of each micro-batch."""
    pace: PipelinePace
    paces: dict[int, PipelinePace]
    """Pace by the sequences of a micro-batch."""

    @property
    def end_s(self) -> float:
        """Seconds from the first forward to the last backward."""
        return self.pace.fill_s + sum(self.paces[size].slowest_s for size in self.sizes)

    @property
    def compute_s(self) -> float:
        """Compute of the slowest stage, all micro-batches."""
        paces = (self.paces[size] for size in self.sizes)
        return sum(pace.compute_s[pace.stage_s.index(pace.slowest_s)] for pace in paces)

    @property
    def moving_s(self) -> float:
        """Transfers of the slowest stage, all micro-batches."""
        return sum(self.paces[size].slowest_s for size in self.sizes) - self.compute_s


def paced_pipelines(
    shapes: Sequence[tuple[PipelineShape, tuple[int, ...]]], costs: ProfileCosts
) -> list[PacedPipeline]:
    """Pipelines at their pace.

    Args:
        shapes: `pipeline_shapes` of a job: each pipeline with the sequences of its micro-batches.
        costs: `costs_of` the job.

    Raises:
        InputError: a micro-batch was not measured, or replicas of two stages do not nest.
    """
    pacer, found = PipelinePacer(costs), []
    problems = []
    for number, (shape, sizes) in enumerate(shapes):
        own = {size: pacer.pace(PipelineShape(size, shape.stages)) for size in {shape.micro_batch, *sizes}}
        paces = {size: pace for size, pace in own.items() if pace is not None}
        for size in sorted(own.keys() - paces.keys()):
            problems.append(
                Problem(
                    what=f"pipelines[{number}]: micro-batches of {size} sequences cannot be priced",
                    why="some stage was not measured with its part of them, or replicas of two stages do not nest",
                    fix="plan again with --profiles",
                    field=f"pipelines[{number}].micro_batch",
                )
            )
        if shape.micro_batch in paces:
            found.append(PacedPipeline(shape=shape, sizes=sizes, pace=paces[shape.micro_batch], paces=paces))
    if problems:
        raise InputError(problems, code="MW230")
    return found


def price_job(job: MeasuredJob, costs: ProfileCosts | None = None) -> StepPrice:
    """Time, memory and price of a measured job.

    Args:
        job: the plan.
        costs: other numbers than those it carries.

    Raises:
        InputError: a micro-batch was not measured, or replicas of two stages do not nest.
    """
    costs = costs or costs_of(job)
    return price_pipelines(paced_pipelines(pipeline_shapes(job), costs), costs, job.cluster)


def price_pipelines(pipelines: Sequence[PacedPipeline], costs: ProfileCosts, cluster: ClusterSpec) -> StepPrice:
    """Time, memory and price of pipelines that train one batch together.

    Args:
        pipelines: the pipelines at their pace.
        costs: the costs of the model on the cluster's devices.
        cluster: devices, links and prices.
    """
    last = max(pipelines, key=lambda one: one.end_s)
    update_s = max(one.pace.update_s for one in pipelines)
    alike = Counter((one.pace.cuts, one.shape.stages) for one in pipelines)
    sync_s = slowest_sync_s(costs, [Held(count, cuts, stages) for (cuts, stages), count in alike.items()])
    parts = dict.fromkeys(PARTS, 0.0) | {
        "compute": last.compute_s,
        "pp": last.moving_s,
        "bubble": max(0.0, last.end_s - last.compute_s - last.moving_s),
        "dp": sync_s,
        "optimizer": update_s,
    }
    capacity = {group.name: group.device.memory_bytes for group in cluster.groups}
    stages = tuple(stage for number, one in enumerate(pipelines) for stage in _stages(number, one, costs, capacity))
    one_set = ShapeSet(tuple(EqualPipelines(one.shape, 1) for one in pipelines))
    traffic = composition_traffic(costs, one_set, [[one.sizes] for one in pipelines], cluster)
    time_s = last.end_s + update_s + sync_s
    hour = price_per_hour(cluster, stages)
    sent = sum(link.price_per_step for link in traffic)
    return StepPrice(
        step_time_s=time_s,
        breakdown_s=tuple(parts.items()),
        stages=stages,
        fits=_fits(stages),
        price_per_step=None if hour is None else hour * time_s / HOUR_S + sent,
        traffic=traffic,
    )


def price_per_hour(cluster: ClusterSpec, stages: tuple[StageEstimate, ...]) -> float | None:
    """USD per hour of the devices in use; None where the price of any group is not known."""
    rates = {group.name: group.price_per_hour for group in cluster.groups}
    if None in rates.values():
        return None
    return sum((rates[stage.group] or 0.0) * stage.devices for stage in stages)


def _stages(
    number: int, one: PacedPipeline, costs: ProfileCosts, capacity: dict[str, float]
) -> Iterator[StageEstimate]:
    for place, stage in enumerate(one.shape.stages):
        first, end = one.pace.cuts[place], one.pace.cuts[place + 1]
        layers = max(0, first - 1), min(end - 2, one.pace.cuts[-1] - 3)
        state = costs.state_bytes(stage.tp)
        state_bytes = float(state[end] - state[first])
        fixed, peak = costs.fixed_bytes(stage.tp), one.pace.stage_bytes[place]
        per_parameter = state_bytes / STATE_BYTES
        memory = dict.fromkeys(MEMORY_KINDS, 0.0) | {
            "weights": WEIGHT_BYTES * per_parameter,
            "gradients": GRADIENT_BYTES * per_parameter,
            "optimizer": state_bytes - (WEIGHT_BYTES + GRADIENT_BYTES) * per_parameter,
            "activations": peak - state_bytes - fixed,
            "overhead": fixed,
        }
        alive = len(one.shape.stages) - place
        yield MeasuredStage(
            pipeline=number,
            stage=place,
            layers=(layers,) if layers[1] >= layers[0] else (),
            group=stage.device,
            devices=stage.devices,
            tp=stage.tp,
            cp=1,
            ep=1,
            dp=stage.replicas,
            mbs=one.shape.micro_batch // stage.replicas,
            memory_bytes=tuple(memory.items()),
            peak_memory_bytes=peak,
            capacity_bytes=capacity[stage.device],
            peak_moment=f"backward with {alive} micro-batch{'es' if alive > 1 else ''} in flight",
            busy_s=sum(one.paces[size].stage_s[place] for size in one.sizes),
            micro_batches=len(one.sizes),
            sequences=sum(one.sizes),
            micro_batch_s=one.pace.stage_s[place],
            compute_s=one.pace.compute_s[place],
        )


def _fits(stages: tuple[StageEstimate, ...]) -> str:
    fullest = max(stage.peak_memory_bytes / stage.capacity_bytes for stage in stages)
    return "no" if fullest > 1 else "tight" if fullest > 1 - TIGHT_SHARE else "yes"
