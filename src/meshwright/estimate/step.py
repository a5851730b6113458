"""Stages in, a step out: the pipeline run to its end, data parallelism around it, memory at its peak.

Plans of one pipeline shape (schedule, p, m, v) are composed together, one row each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.memory import TIGHT_SHARE, WorkerBytes, worker_bytes
from meshwright.estimate.sync import DataGroups, DataNetwork, StepSync, step_sync
from meshwright.schedules import Schedule, Times
from meshwright.shapes import Float
from meshwright.specs.workload import Workload
from meshwright.strategies.data import ShardingColumns

BREAKDOWN = ("compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "offload", "host")
"""Parts of a step, in the order they are shown; they sum to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineColumns:
    """Plans of one pipeline shape, ready to run."""

    schedule: Schedule
    p: int
    m: int
    v: int
    forward_s: Float[np.ndarray, "plans workers chunks"]
    """Per micro-batch, everything exposed included."""
    backward_s: Float[np.ndarray, "plans workers chunks"]
    kept_bytes: Float[np.ndarray, "plans workers chunks"]
    """Per micro-batch in flight."""
    parts_s: dict[str, Float[np.ndarray, "plans workers"]]
    """Forward plus backward per micro-batch by part: compute, recompute, tp, cp, ep, dp, offload, host."""
    dense_parameters: Float[np.ndarray, "plans workers"]
    expert_parameters: Float[np.ndarray, "plans workers"]
    largest_dense: Float[np.ndarray, "plans workers"]
    largest_expert: Float[np.ndarray, "plans workers"]
    transient_bytes: Float[np.ndarray, "plans workers"]
    recompute_flop: Float[np.ndarray, "plans workers"]
    """Per micro-batch and device."""
    transfer_s: Float[np.ndarray, "plans"]
    """Latency of one boundary tensor between neighbouring workers."""
    tied_s: Float[np.ndarray, "plans"]
    """Sum of a shared embedding's gradients between first and last worker."""
    communicators: Float[np.ndarray, "plans"]
    offload_weights: Float[np.ndarray, "plans"]
    sharding: ShardingColumns
    """Columns of shape plans x 1."""
    groups: DataGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Times and bytes of plans of one shape."""

    step_time_s: Float[np.ndarray, "plans"]
    breakdown_s: dict[str, Float[np.ndarray, "plans"]]
    """Of the busiest worker; parts sum to the step."""
    busy_s: Float[np.ndarray, "plans workers"]
    """Seconds of the step that each worker computes or waits for its own layers' traffic."""
    memory: WorkerBytes
    peak_bytes: Float[np.ndarray, "plans workers"]
    in_flight: Float[np.ndarray, "plans workers"]
    """Micro-batch chunks alive at the peak."""
    recompute_flop: Float[np.ndarray, "plans"]
    """Computed a second time per step and device, mean over workers."""


def step_columns(
    columns: PipelineColumns, hardware: Hardware, workload: Workload, *, transfers_apart: bool = True
) -> StepColumns:
    """Run the pipelines.

    Step = max over workers of (end of its last backward + exposed gradient sum) + the slowest optimizer + gather. The
    optimizer waits for all workers because gradients are clipped by their global norm.

    Args:
        columns: the plans.
        hardware: the device and its links.
        workload: formats and optimizer.
        transfers_apart: run once more without transfers, so that `pp` and `bubble` are told apart (needed only for
            plans that are shown).

    Returns:
        Times and bytes per plan.
    """
    m = columns.m
    end_s = _run(columns, columns.transfer_s)
    sync = exposed_sync(columns, hardware, workload)
    ready_s = end_s + sync.gradients_s + sync.copies_s
    last_s = ready_s.max(axis=1)
    busy_s = m * (columns.forward_s + columns.backward_s).sum(axis=2)
    # Shown are the parts of the busiest worker: what it waits for, at either end of the step too, is the bubble.
    busiest = busy_s.argmax(axis=1)
    rows = np.arange(len(busiest))
    tail_s = (sync.optimizer_s + sync.gather_s + sync.offload_s).max(axis=1)
    slowest = (sync.optimizer_s + sync.gather_s + sync.offload_s).argmax(axis=1)
    step_time_s = last_s + tail_s + columns.tied_s

    breakdown = {name: m * columns.parts_s[name][rows, busiest] for name in columns.parts_s}
    exposed_s = sync.gradients_s[rows, busiest] + sync.copies_s[rows, busiest]
    idle_s = np.maximum(last_s - busy_s[rows, busiest] - exposed_s, 0.0)
    if transfers_apart:
        free_s = _run(columns, np.zeros_like(columns.transfer_s)) + sync.gradients_s + sync.copies_s
        transfers_s = np.clip(last_s - free_s.max(axis=1), 0.0, idle_s)
    else:
        transfers_s = np.zeros_like(idle_s)
    breakdown["pp"] = transfers_s
    breakdown["bubble"] = idle_s - transfers_s
    breakdown["dp"] = breakdown["dp"] + sync.gradients_s[rows, busiest] + sync.gather_s[rows, slowest] + columns.tied_s
    breakdown["optimizer"] = sync.optimizer_s[rows, slowest]
    breakdown["offload"] = breakdown["offload"] + sync.copies_s[rows, busiest] + sync.offload_s[rows, slowest]

    activations, in_flight = _activations(columns)
    memory = worker_bytes(
        dense_parameters=columns.dense_parameters,
        expert_parameters=columns.expert_parameters,
        largest_dense=columns.largest_dense,
        largest_expert=columns.largest_expert,
        activations=activations,
        transient=columns.transient_bytes,
        communicators=columns.communicators[:, None],
        offload_weights=columns.offload_weights[:, None],
        sharding=columns.sharding,
        hardware=hardware,
        workload=workload,
    )
    return StepColumns(
        step_time_s=step_time_s,
        breakdown_s={name: breakdown[name] for name in BREAKDOWN},
        busy_s=busy_s,
        memory=memory,
        peak_bytes=memory.peak,
        in_flight=in_flight,
        recompute_flop=m * columns.recompute_flop.mean(axis=1),
    )


def _run(columns: PipelineColumns, transfer_s: Float[np.ndarray, "plans"]) -> Float[np.ndarray, "plans workers"]:
    return columns.schedule.end_s(columns.p, columns.m, columns.v, task_times(columns, transfer_s))


def task_times(columns: PipelineColumns, transfer_s: Float[np.ndarray, "plans"]) -> Times:
    """Durations of the tasks of every plan's pipeline, as the simulator takes them."""
    return Times(
        forward_s=columns.forward_s,
        backward_s=columns.backward_s,
        transfer_s=np.broadcast_to(transfer_s[:, None, None], columns.forward_s.shape),
    )


def exposed_sync(columns: PipelineColumns, hardware: Hardware, workload: Workload) -> StepSync:
    """What every worker waits for around its pipeline: gradients, optimizer, gathered weights."""
    network = DataNetwork(columns.sharding, columns.groups, hardware)
    return step_sync(
        columns.dense_parameters,
        columns.expert_parameters,
        columns.forward_s.sum(axis=2),
        columns.backward_s.sum(axis=2),
        np.full((1, 1), float(columns.m)),
        columns.sharding,
        network,
        workload,
    )


def _activations(
    columns: PipelineColumns,
) -> tuple[Float[np.ndarray, "plans workers"], Float[np.ndarray, "plans workers"]]:
    """Kept bytes at the worst moment of the schedule, and how many chunk activations are alive then."""
    vectors = columns.schedule.in_flight(columns.p, columns.m, columns.v)
    plans = len(columns.kept_bytes)
    kept, alive = np.zeros((plans, columns.p)), np.zeros((plans, columns.p))
    for worker, counts in enumerate(vectors):
        totals = columns.kept_bytes[:, worker, :] @ counts.T.astype(float)
        worst = totals.argmax(axis=1)
        kept[:, worker] = totals[np.arange(plans), worst]
        alive[:, worker] = counts.sum(axis=1)[worst]
    return kept, alive


def fits(peak_bytes: float, capacity_bytes: float) -> str:
    """`yes`, `tight` (less than 8% of the capacity left) or `no`."""
    if peak_bytes > capacity_bytes:
        return "no"
    return "tight" if peak_bytes > (1.0 - TIGHT_SHARE) * capacity_bytes else "yes"
