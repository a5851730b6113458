"""The time of a plan whose stages all have the same data-parallel degree, exactly as Sailor's simulator tells it.

    m = ceil(global batch / (b D))
    T = (m - 1) max_i(comp_i + c_i) + sum_i(comp_i + c_i) + max_i(update of the stage's first layer) + sync

A stage waits for its slowest replica; stages wait for each other at each micro-batch.

Source: sailor/Planner/simulations/runtime_simulator.py of eth-easl/sailor@cf2c8e3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from meshwright.planning.compose.sources.profiles.costs import ProfileCosts, RunningSums
from meshwright.planning.compose.sources.profiles.pipeline_pace import moves


@dataclass(frozen=True, slots=True)
class Replica:
    """One data-parallel rank of a stage."""

    device: str
    tp: int


@dataclass(frozen=True, slots=True)
class UniformStage:
    """Layers and their replicas, in ring order."""

    first_layer: int
    layers: int
    replicas: tuple[Replica, ...]

    @property
    def end(self) -> int:
        """First layer after the stage."""
        return self.first_layer + self.layers


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """Seconds of one step and its parts; the parts sum to it."""

    pipeline_s: float
    update_s: float
    sync_s: float

    @property
    def step_time_s(self) -> float:
        """The step."""
        return self.pipeline_s + self.update_s + self.sync_s


def uniform_step(
    costs: ProfileCosts, stages: tuple[UniformStage, ...], micro_batch: int, global_batch: int
) -> StepTime:
    """The step of a plan.

    Args:
        costs: the model on the cluster's devices.
        stages: in pipeline order, as many replicas in each.
        micro_batch: sequences per replica.
        global_batch: sequences per step.

    Raises:
        KeyError: a point was not profiled.
    """
    replicas = len(stages[0].replicas)
    compute_s = [
        max(_compute_s(costs, stage, replica, micro_batch) for replica in set(stage.replicas)) for stage in stages
    ]
    crossings = _crossings(costs, stages, micro_batch)
    stage_s = [compute + moving for compute, moving in zip(compute_s, moves(crossings, crossings), strict=True)]
    rounds = micro_batches(global_batch, micro_batch, replicas)
    update_s = max(
        float(_sums(costs, replica, micro_batch).update_s[stage.first_layer])
        for stage in stages
        for replica in set(stage.replicas)
    )
    return StepTime(
        pipeline_s=(rounds - 1) * max(stage_s) + sum(stage_s),
        update_s=update_s,
        sync_s=max(_sync_s(costs, stage) for stage in stages),
    )


def _sums(costs: ProfileCosts, replica: Replica, micro_batch: int) -> RunningSums:
    sums = costs.sums(replica.device, replica.tp, micro_batch)
    if sums is None:
        raise KeyError((replica.device, replica.tp, micro_batch))
    return sums


def _compute_s(costs: ProfileCosts, stage: UniformStage, replica: Replica, micro_batch: int) -> float:
    seconds = _sums(costs, replica, micro_batch).seconds
    return float(seconds[stage.end] - seconds[stage.first_layer])


def _crossings(costs: ProfileCosts, stages: tuple[UniformStage, ...], micro_batch: int) -> list[float]:
    """Seconds over each cut, the slowest pair of replicas."""
    return [
        max(
            costs.transfer_s(costs.boundary_bytes(there.first_layer) * micro_batch, (a.device, a.tp), (b.device, b.tp))
            for a, b in set(zip(here.replicas, there.replicas, strict=True))
        )
        for here, there in pairwise(stages)
    ]


def _sync_s(costs: ProfileCosts, stage: UniformStage) -> float:
    parameters = float(costs.parameters[stage.end] - costs.parameters[stage.first_layer])
    pairs = {(a.device, b.device) for a, b in pairwise(stage.replicas)}
    return costs.ring_s(parameters, min(replica.tp for replica in stage.replicas), len(stage.replicas), pairs)


def micro_batches(global_batch: int, micro_batch: int, replicas: int) -> int:
    """Micro-batches of a step: ceil(global batch / (micro-batch x replicas))."""
    return math.ceil(global_batch / (micro_batch * replicas))
