"""Time and memory of a plan as runs of such plans were measured: `sailor_rule` with four effects that it leaves out.

    time      each replica pays its own compute and its own transfers; the slowest sum counts, not the sum of the
              slowest
              a boundary crosses between one device of each side: tensor ranks do not stripe it over their interfaces
              the rings of all tensor ranks of a node run at once and share its interfaces:
              2 (D - 1) tp t(bucket / D; link of tp devices per node) for each bucket of one rank
    memory    min(m, stages from here on) micro-batches are in flight
              while a layer runs backward, gradients and temporaries take twice what it saves
              less that no layer uses than the 5.06e9 bytes of Sailor's validation, which stand for both

No number here belongs to a model or a cluster.

Source: own derivation from 34 measured iterations of two models on GH200 and RTX nodes (eth-easl/sailor@cf2c8e3,
sailor/Planner/simulations/validation).
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from benchmarks.sailor_rule import Replica, StepTime, UniformStage, micro_batches
from meshwright.planning.compose.sources.profiles.costs import (
    BUCKET_BYTES,
    ELEMENT_BYTES,
    ProfileCosts,
    RunningSums,
)
from meshwright.planning.compose.sources.profiles.pipeline_pace import moves

FIXED_BYTES = 4e9
"""Context, libraries and communication buffers."""
TRANSIENT_SHARE = 2.0
"""Of what the largest layer of a stage saves."""


def measured_step(
    costs: ProfileCosts, stages: tuple[UniformStage, ...], micro_batch: int, global_batch: int
) -> StepTime:
    """The step of a plan.

    Args:
        costs: the model on the cluster's devices.
        stages: in pipeline order, as many replicas in each.
        micro_batch: sequences per replica.
        global_batch: sequences per step.

    Raises:
        KeyError: a point or a link was not profiled.
    """
    replicas = len(stages[0].replicas)
    rounds = micro_batches(global_batch, micro_batch, replicas)
    lines = [_stage_s(costs, stages, rank, micro_batch) for rank in range(replicas)]
    update_s = max(
        float(_sums(costs, replica, micro_batch).update_s[stage.first_layer])
        for stage in stages
        for replica in set(stage.replicas)
    )
    return StepTime(
        pipeline_s=max((rounds - 1) * max(line) + sum(line) for line in lines),
        update_s=update_s,
        sync_s=max(_sync_s(costs, stage) for stage in stages),
    )


def measured_peak_bytes(
    costs: ProfileCosts, stages: tuple[UniformStage, ...], micro_batch: int, global_batch: int
) -> float:
    """Memory of the fullest device.

    Args:
        costs: the model on the cluster's devices.
        stages: in pipeline order, as many replicas in each.
        micro_batch: sequences per replica.
        global_batch: sequences per step.
    """
    rounds = micro_batches(global_batch, micro_batch, len(stages[0].replicas))
    peaks = []
    for index, stage in enumerate(stages):
        tp = min(replica.tp for replica in stage.replicas)
        state = costs.state_bytes(tp)
        saved = micro_batch * np.diff(costs.saved_bytes(tp)[stage.first_layer : stage.end + 1])
        in_flight = min(rounds, len(stages) - index)
        kept = state[stage.end] - state[stage.first_layer] + in_flight * saved.sum()
        peaks.append(float(kept + TRANSIENT_SHARE * saved.max()))
    return FIXED_BYTES + max(peaks)


def _stage_s(costs: ProfileCosts, stages: tuple[UniformStage, ...], rank: int, micro_batch: int) -> list[float]:
    """Seconds per micro-batch of the stages that one replica of each forms."""
    held = [stage.replicas[rank] for stage in stages]
    crossing_s = [
        costs.transfer_s(costs.boundary_bytes(stage.first_layer) * micro_batch, (here.device, 1), (there.device, 1))
        for stage, (here, there) in zip(stages[1:], pairwise(held), strict=True)
    ]
    compute_s = []
    for stage, replica in zip(stages, held, strict=True):
        seconds = _sums(costs, replica, micro_batch).seconds
        compute_s.append(float(seconds[stage.end] - seconds[stage.first_layer]))
    return [one + moving for one, moving in zip(compute_s, moves(crossing_s, crossing_s), strict=True)]


def _sums(costs: ProfileCosts, replica: Replica, micro_batch: int) -> RunningSums:
    sums = costs.sums(replica.device, replica.tp, micro_batch)
    if sums is None:
        raise KeyError((replica.device, replica.tp, micro_batch))
    return sums


def _sync_s(costs: ProfileCosts, stage: UniformStage) -> float:
    """The ring of the slowest pair of neighbours, all tensor ranks at once."""
    ranks = len(stage.replicas)
    tp = min(replica.tp for replica in stage.replicas)
    payload = ELEMENT_BYTES * float(costs.parameters[stage.end] - costs.parameters[stage.first_layer]) / tp
    full, rest = divmod(payload, BUCKET_BYTES)
    slowest = 0.0
    for source, target in {(a.device, b.device) for a, b in pairwise(stage.replicas)}:
        ends = (source, tp), (target, tp)
        time_s = full * costs.transfer_s(BUCKET_BYTES / ranks, *ends) if full else 0.0
        time_s += costs.transfer_s(rest / ranks, *ends) if rest else 0.0
        slowest = max(slowest, 2 * (ranks - 1) * tp * time_s)
    return slowest
