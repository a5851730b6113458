"""Memory of a processor: what the first pipeline stage keeps in each tier.

Every stage is taken to need as much as the first one.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0; Korthikanti et al., arXiv:2205.05198, for activations
of interleaved stages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.calculon.rows import Column, ExecutionRows
from meshwright.calculon.vocabulary import vocabulary_spaces

RESIDENT_BLOCKS = 2
"""Blocks that stay in the first tier when a kind of state is offloaded: one in use and one on its way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """Bytes of each kind of state: of a whole stage, and of the part that stays when it is offloaded."""

    weights: Column
    weights_resident: Column
    activations: Column
    activations_resident: Column
    checkpoints: Column
    checkpoints_resident: Column
    act_grads: Column
    weight_grads: Column
    weight_grads_resident: Column
    optimizer: Column
    optimizer_resident: Column
    tier1: Column
    tier2: Column


def live_blocks(rows: ExecutionRows) -> Column:
    """Micro-batches whose activations a stage holds at once: min(n, p) (1 + (p - 1) / (v p) if interleaved)."""
    chunks, stages = rows.chunks, rows.stages
    deeper = np.where(chunks > 1, 1 + (stages - 1) / (chunks * stages), 1.0)
    return np.minimum(rows.micro_batches, stages) * deeper


def spaces(rows: ExecutionRows) -> Spaces:
    """Memory by kind, and the need of both tiers."""
    columns, blocks, live = rows.columns, rows.blocks, live_blocks(rows)
    full = rows["full"] > 0
    weight, working, storage = (
        rows["block_weight_space"],
        rows["block_act_working_space"],
        rows["block_act_storage_space"],
    )
    checkpoint = rows["block_act_checkpoint_size"]
    unsharded, gradient = rows["block_weight_grad_space_no_sharding"], rows["block_weight_grad_space"]
    state = rows["block_optimizer_space"]

    weights = blocks * weight
    activations = np.where(full, working, working + rows.in_training(storage * (blocks * live - 1)))
    checkpoints = blocks * checkpoint * live
    weight_grads = unsharded + (blocks - 1) * gradient
    optimizer = blocks * state
    weights_resident = RESIDENT_BLOCKS * weight
    activations_resident = np.where(full, working, working + storage)
    checkpoints_resident = RESIDENT_BLOCKS * checkpoint
    weight_grads_resident = unsharded + gradient
    optimizer_resident = RESIDENT_BLOCKS * state
    act_grads = rows["block_act_grad_space"]

    tier1 = (
        np.where(columns.weight_offload, weights_resident, weights)
        + np.where(columns.activations_offload, activations_resident + checkpoints_resident, activations + checkpoints)
        + np.where(columns.optimizer_offload, weight_grads_resident + optimizer_resident, weight_grads + optimizer)
        + act_grads
    )
    tier2 = (
        columns.weight_offload * weights
        + columns.activations_offload * np.where(full, checkpoints, activations)
        + columns.optimizer_offload * (blocks * gradient + optimizer)
    )
    words = vocabulary_spaces(rows)
    if words is not None:
        # Tables and logits stay in the first tier whatever is offloaded.
        weights, weights_resident = weights + words.weights, weights_resident + words.weights
        weight_grads = weight_grads + words.weight_grads
        weight_grads_resident = weight_grads_resident + words.weight_grads
        optimizer, optimizer_resident = optimizer + words.optimizer, optimizer_resident + words.optimizer
        activations, activations_resident = activations + words.logits, activations_resident + words.logits
        tier1 = tier1 + words.weights + words.weight_grads + words.optimizer + words.logits
    return Spaces(
        weights=weights,
        weights_resident=weights_resident,
        activations=activations,
        activations_resident=activations_resident,
        checkpoints=checkpoints,
        checkpoints_resident=checkpoints_resident,
        act_grads=act_grads,
        weight_grads=weight_grads,
        weight_grads_resident=weight_grads_resident,
        optimizer=optimizer,
        optimizer_resident=optimizer_resident,
        tier1=tier1,
        tier2=tier2,
    )
