"""What it takes to place the experts of a plan by their load, and after how many steps that pays.

    moving     per layer the most experts that arrive at a rank, with weights and states, over the links of its group
    it pays    where loads stay for more than moving / (step with experts in blocks - step with them by load)

Source: Zhai et al., "SmartMoE: Efficiently Training Sparsely-Activated Models through Combining Offline and Online
Parallelization", USENIX ATC 2023, section 5 (the switch of placements).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.rows import sharding_columns
from meshwright.kernels.collectives import all_to_all_s
from meshwright.kernels.expert_load import placed_by_load
from meshwright.kernels.lines import group_span
from meshwright.specs.job import Job
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies.crowding import crowding_of
from meshwright.strategies.data import state_bytes


class NewPlacement(NamedTuple):
    """Experts in blocks that are placed by load."""

    moved: int
    """Experts that change ranks, of all layers."""
    experts: int
    """Experts of all layers."""
    moving_s: float
    saved_s: float
    """Seconds saved per step."""

    @property
    def pays_after(self) -> int | None:
        """Steps; None where blocks are as quick."""
        return math.ceil(self.moving_s / self.saved_s) if self.saved_s > 0 else None


def new_placement(job: Job, strategy: LayerStrategy) -> NewPlacement:
    """The change from blocks to the placement of a plan.

    Args:
        job: the job with a load of experts, and a plan that places them by it.
        strategy: the strategy of layers with experts.
    """
    assert job.workload.expert_load is not None
    expert, workload = strategy.expert, job.workload
    changed, arriving = 0.0, 0.0
    for load, layers in job.workload.expert_load.by_experts(job.model).items():
        shares = crowding_of(load).shares
        placed = placed_by_load(shares, expert.ep)
        moves = placed != np.arange(shares.shape[1]) // math.ceil(shares.shape[1] / expert.ep)
        most = [np.bincount(to[moving], minlength=1).max(initial=0) for to, moving in zip(placed, moves, strict=True)]
        each = sum(layer.mlp.expert_parameters(job.model.hidden) for layer in layers) / expert.etp
        changed += float(moves.sum()) * len(layers) / len(shares)
        arriving += float(np.mean(most)) * each
    sharding = sharding_columns([strategy])
    held = state_bytes(sharding, sharding.expert_shard, workload.precision, workload.optimizer, training=True)
    per_parameter = float(np.max(held.weights + held.optimizer))
    hardware = hardware_of(job.cluster.groups[0], workload)
    span = group_span(np.array([expert.etp]), np.array([expert.ep]), hardware.domain_sizes)
    # Of the payload of an all-to-all a rank keeps its own part.
    payload = np.array([arriving * per_parameter * expert.ep / max(expert.ep - 1, 1)])
    moving_s = float(np.max(all_to_all_s(payload, inside=span, rates=hardware.rates)))
    in_blocks = tuple(replace(one, expert=replace(one.expert, placed_by_load=False)) for one in job.plan.strategies)
    before, after = (
        estimate_plan(plan, job.model, job.cluster, workload).step_time_s
        for plan in (replace(job.plan, strategies=in_blocks), job.plan)
    )
    return NewPlacement(
        moved=round(changed),
        experts=sum(layer.mlp.routed_experts for layer in job.model.layers()),
        moving_s=moving_s,
        saved_s=before - after,
    )
