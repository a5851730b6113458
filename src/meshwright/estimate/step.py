"""Stages in, a step out: the pipeline run to its end, data parallelism around it, memory at its peak.

Plans of one pipeline shape (schedule, p, m, v) are composed together, one row each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.live import live
from meshwright.estimate.memory import TIGHT_SHARE, WorkerBytes, worker_bytes
from meshwright.estimate.sync import DataGroups, DataNetwork, StepSync, step_sync
from meshwright.kernels.collectives import all_reduce_s, group_span
from meshwright.schedules import Schedule, Times
from meshwright.shapes import Float, Int
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
    runs: Int[np.ndarray, "workers chunks"]
    """How often a step runs each chunk."""
    forward_s: Float[np.ndarray, "plans workers chunks"]
    """Per run, everything exposed included."""
    backward_s: Float[np.ndarray, "plans workers chunks"]
    weight_s: Float[np.ndarray, "plans workers chunks"] | None = None
    """Part of the backward that is the weight gradient, for schedules that split it."""
    recompute_s: Float[np.ndarray, "plans workers chunks"] | None = None
    """Task R, for schedules that have it."""
    kept_bytes: Float[np.ndarray, "plans workers chunks"]
    """Per run in flight."""
    made_bytes: Float[np.ndarray, "plans workers chunks"] | None = None
    """Per run recomputed, or waiting for its weight gradient."""
    parts_s: dict[str, Float[np.ndarray, "plans workers"]]
    """Of the step, by part: compute, recompute, tp, cp, ep, dp, offload, host, parking."""
    dense_parameters: Float[np.ndarray, "plans workers"]
    expert_parameters: Float[np.ndarray, "plans workers"]
    largest_dense: Float[np.ndarray, "plans workers"]
    largest_expert: Float[np.ndarray, "plans workers"]
    transient_bytes: Float[np.ndarray, "plans workers"]
    recompute_flop: Float[np.ndarray, "plans workers"]
    """Per step and device."""
    transfer_s: Float[np.ndarray, "plans"]
    """Latency of one boundary tensor between neighbouring workers."""
    tied_s: Float[np.ndarray, "plans"]
    """Sum of a shared embedding's gradients between first and last worker."""
    devices_apart: Int[np.ndarray, "plans"]
    """Devices between the first and the last worker."""
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
    optimizer waits for all workers because gradients are clipped by their global norm. A pipeline without a flush ends
    as much later than the step before as another step takes it.

    Args:
        columns: the plans.
        hardware: the device and its links.
        workload: formats and optimizer.
        transfers_apart: run once more without transfers, so that `pp` and `bubble` are told apart (needed only for
            plans that are shown).

    Returns:
        Times and bytes per plan.
    """
    end_s = _run(columns, columns.transfer_s)
    sync = exposed_sync(columns, hardware, workload)
    ready_s = end_s + sync.gradients_s + sync.copies_s
    last_s = ready_s.max(axis=1)
    busy_s = _busy_s(columns)
    # Shown are the parts of the busiest worker: what it waits for, at either end of the step too, is the bubble.
    busiest = busy_s.argmax(axis=1)
    rows = np.arange(len(busiest))
    tail_s = (sync.optimizer_s + sync.gather_s + sync.offload_s).max(axis=1)
    slowest = (sync.optimizer_s + sync.gather_s + sync.offload_s).argmax(axis=1)
    step_time_s = last_s + tail_s + columns.tied_s

    breakdown = {name: seconds[rows, busiest] for name, seconds in columns.parts_s.items()}
    exposed_s = sync.gradients_s[rows, busiest] + sync.copies_s[rows, busiest]
    idle_s = np.maximum(last_s - busy_s[rows, busiest] - exposed_s, 0.0)
    if transfers_apart:
        free_s = _run(columns, np.zeros_like(columns.transfer_s)) + sync.gradients_s + sync.copies_s
        transfers_s = np.clip(last_s - free_s.max(axis=1), 0.0, idle_s)
    else:
        transfers_s = np.zeros_like(idle_s)
    breakdown["pp"] = transfers_s + breakdown.pop("parking", 0.0)
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
        weight_versions=weight_versions(columns.schedule, columns.p, columns.m, columns.v),
    )
    return StepColumns(
        step_time_s=step_time_s,
        breakdown_s={name: breakdown[name] for name in BREAKDOWN},
        busy_s=busy_s,
        memory=memory,
        peak_bytes=memory.peak,
        in_flight=in_flight,
        recompute_flop=columns.recompute_flop.mean(axis=1),
    )


def _run(columns: PipelineColumns, transfer_s: Float[np.ndarray, "plans"]) -> Float[np.ndarray, "plans workers"]:
    """End of each worker's last task, counted from the end of the step before where no flush lies between them."""
    schedule, p, m, v = columns.schedule, columns.p, columns.m, columns.v
    times = task_times(columns, transfer_s)
    if schedule.flushes:
        return schedule.end_s(p, m, v, times)
    # Two steps of at least p micro-batches, so that the second one finds the pipeline full.
    full = max(m, p)
    first_s, both_s = (schedule.end_s(p, steps * full, v, times).max(axis=-1) for steps in (1, 2))
    step_s = np.maximum((both_s - first_s) * (m / full), _busy_s(columns).max(axis=1))
    return np.broadcast_to(step_s[:, None], (len(step_s), p))


def _busy_s(columns: PipelineColumns) -> Float[np.ndarray, "plans workers"]:
    """Seconds of a step that each worker spends in tasks."""
    once_s = columns.forward_s + columns.backward_s
    if columns.recompute_s is not None:
        once_s = once_s + columns.recompute_s
    return np.asarray((columns.runs * once_s).sum(axis=2))


def task_times(columns: PipelineColumns, transfer_s: Float[np.ndarray, "plans"]) -> Times:
    """Durations of the tasks of every plan's pipeline, as the simulator takes them."""
    return Times(
        forward_s=columns.forward_s,
        backward_s=columns.backward_s,
        transfer_s=np.broadcast_to(transfer_s[:, None, None], columns.forward_s.shape),
        weight_s=columns.weight_s,
        recompute_s=columns.recompute_s,
    )


def sync_rounds(schedule: Schedule, m: int) -> tuple[int, int]:
    """Micro-batches that each chunk runs per update of the weights, and updates per step.

    Args:
        schedule: of the pipeline.
        m: micro-batches per step.
    """
    if schedule.updates_each:
        return schedule.sections(), m
    return -(-m // schedule.placement(2, 1).chains) * schedule.sections(), 1


def weight_versions(schedule: Schedule, p: int, m: int, v: int) -> Float[np.ndarray, " workers"]:
    """Versions of each weight that a worker keeps; copies of other stages are counted as their parameters.

    Args:
        schedule: of the pipeline.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker.
    """
    copies = np.array(schedule.worker_weight_copies(p, m if schedule.flushes else max(m, p), v), dtype=float)
    return copies - (schedule.placement(p, v).chains - 1) - schedule.shadows


def exposed_sync(columns: PipelineColumns, hardware: Hardware, workload: Workload) -> StepSync:
    """What every worker waits for around its pipeline: gradients, optimizer, gathered weights."""
    network = DataNetwork(columns.sharding, columns.groups, hardware)
    micro_batches, updates = sync_rounds(columns.schedule, columns.m)
    # Where the backward is split, gradients of weights are there when the last weight gradients end.
    last_s = columns.backward_s if columns.weight_s is None else columns.weight_s
    once = step_sync(
        columns.dense_parameters,
        columns.expert_parameters,
        columns.forward_s.sum(axis=2),
        last_s.sum(axis=2),
        np.full((1, 1), float(micro_batches)),
        columns.sharding,
        network,
        workload,
    )
    copies_s = _copies_sum_s(columns, hardware, workload)
    passes_s = _weight_passes_s(columns, hardware, workload)
    if updates == 1 and copies_s is None and passes_s is None:
        return once
    return StepSync(
        gradients_s=once.gradients_s * updates + (0.0 if copies_s is None else copies_s),
        copies_s=once.copies_s * updates,
        gather_s=once.gather_s * updates,
        optimizer_s=once.optimizer_s * updates + (0.0 if passes_s is None else passes_s),
        offload_s=once.offload_s * updates,
    )


def pair_span(distance: Int[np.ndarray, "plans"], hardware: Hardware) -> tuple[Float[np.ndarray, "..."] | float, ...]:
    """Groups of two devices that stand so far apart, as `group_span` describes them."""
    return group_span(distance, np.full_like(distance, 2), hardware.domain_sizes)


def _copies_sum_s(
    columns: PipelineColumns, hardware: Hardware, workload: Workload
) -> Float[np.ndarray, "plans workers"] | None:
    """Sum of the gradients of both copies of a worker's stages: of their shards, where gradients are sharded.

    Nothing hides it here; Chimera starts it early where a worker waits anyway.
    """
    if columns.schedule.placement(columns.p, columns.v).chains == 1 or not workload.training:
        return None
    sharding, reduce = columns.sharding, workload.precision.bytes_of("reduce")
    shards = np.where(sharding.zero > 0, sharding.shard, 1)
    expert_shards = np.where(sharding.zero > 0, sharding.expert_shard, 1)
    size = (columns.dense_parameters / shards + columns.expert_parameters / expert_shards) * reduce
    inside = tuple(np.asarray(level)[..., None] for level in pair_span(columns.devices_apart, hardware))
    return np.asarray(all_reduce_s(size, inside=inside, rates=hardware.rates))


def _weight_passes_s(
    columns: PipelineColumns, hardware: Hardware, workload: Workload
) -> Float[np.ndarray, "plans workers"] | None:
    """Reading and writing whole weights between steps."""
    if not columns.schedule.weight_passes:
        return None
    size = (columns.dense_parameters + columns.expert_parameters) * workload.precision.bytes_of("weights")
    return columns.schedule.weight_passes * size / hardware.achieved_memory_bytes_per_s


def _activations(
    columns: PipelineColumns,
) -> tuple[Float[np.ndarray, "plans workers"], Float[np.ndarray, "plans workers"]]:
    """Kept bytes at the worst moment of the schedule, and how many chunk activations are alive then."""
    alive = live(columns.schedule, columns.p, columns.m, columns.v)
    plans = len(columns.kept_bytes)
    total, number = np.zeros((plans, columns.p)), np.zeros((plans, columns.p))
    for worker, (kept, made, guests) in enumerate(zip(alive.kept, alive.made, alive.guests.tolist(), strict=True)):
        totals = columns.kept_bytes[:, worker, :] @ kept.T.astype(float)
        if columns.made_bytes is not None:
            totals = totals + columns.made_bytes[:, worker, :] @ made.T.astype(float)
        if guests:
            totals = totals + guests * columns.kept_bytes[:, columns.p - 1 - worker, :].sum(axis=1)[:, None]
        worst = totals.argmax(axis=1)
        total[:, worker] = totals[np.arange(plans), worst]
        number[:, worker] = (kept + made).sum(axis=1)[worst] + guests
    return total, number


def fits(peak_bytes: float, capacity_bytes: float) -> str:
    """`yes`, `tight` (less than 8% of the capacity left) or `no`."""
    if peak_bytes > capacity_bytes:
        return "no"
    return "tight" if peak_bytes > (1.0 - TIGHT_SHARE) * capacity_bytes else "yes"
