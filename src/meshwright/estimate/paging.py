"""Stages that take turns on the device: each comes while the one before it computes, and runs all micro-batches.

    wait for stages c of all workers   max over workers of (bytes / host link - m * pass of the stage at work meanwhile)
    on the device                      the weights and gradients of two stages, one at work and one on its way

The first stage of a step comes while nothing else computes here; the last one is still there when its backward begins.
Workers wait together, as each takes its stages in turn with its neighbours.
Source: Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers", ASPLOS 2023; derived here.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.estimate.pipeline import StageCounts
from meshwright.estimate.run import PipelineColumns
from meshwright.shapes import Float
from meshwright.specs.precision import Precision


def with_pages(
    columns: PipelineColumns,
    counts: StageCounts,
    costs: ItemCosts,
    host_bytes_per_s: Float[np.ndarray, " workers"],
    precision: Precision,
) -> PipelineColumns:
    """A pipeline whose stages are paged, with what workers wait for their uploads.

    Args:
        columns: the columns with nothing paged.
        counts: how often each item stands in each stage.
        costs: the costs of the items, without copies of weights.
        host_bytes_per_s: the host's bytes per second of each worker's link to its host.
        precision: formats of weights and gradients.
    """
    kinds, shape = counts.work.shape[-1], columns.forward_s.shape

    def of_stages(values: Float[np.ndarray, "plans items"]) -> Float[np.ndarray, "plans workers chunks"]:
        return (values @ counts.work.reshape(-1, kinds).T).reshape(shape)

    parameters = of_stages(costs.dense_parameters + costs.expert_parameters)
    weight_bytes = parameters * precision.bytes_of("weights")
    weight_bytes = weight_bytes + of_stages(costs.frozen_dense_bytes + costs.frozen_expert_bytes)
    upload_s, m = weight_bytes / host_bytes_per_s[:, None], columns.m
    forward_s, backward_s = columns.forward_s, columns.backward_s
    # A worker further down has its first stage's upload behind it when the first micro-batch arrives.
    arrival_s = np.cumsum(forward_s[:, :, :1], axis=1) - forward_s[:, :, :1]
    ahead_s = np.maximum(upload_s - np.concatenate([arrival_s, m * forward_s[:, :, :-1]], axis=2), 0.0)
    back_s = np.zeros(shape)
    back_s[:, :, :-1] = np.maximum(upload_s[:, :, :-1] - m * backward_s[:, :, 1:], 0.0)
    # Gradients that stay on the device are counted with all of the worker's.
    leave = np.asarray(columns.sharding.away("gradients"))[:, :, None]
    held = weight_bytes + parameters * leave * precision.bytes_of("gradients")
    two = (held[:, :, :-1] + held[:, :, 1:]).max(axis=2)
    waits_s = np.broadcast_to((ahead_s.max(axis=1) + back_s.max(axis=1)).sum(axis=1)[:, None], shape[:2])
    return replace(
        columns,
        paged_s=waits_s,
        transient_bytes=columns.transient_bytes + two,
        parts_s={**columns.parts_s, "offload": columns.parts_s["offload"] + waits_s},
    )
