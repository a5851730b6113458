"""Stages in, a step out: the pipeline run to its end, data parallelism around it, memory at its peak.

Plans of one pipeline shape (schedule, p, m, v) are composed together, one row each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.live import live
from meshwright.estimate.memory import TIGHT_SHARE, WorkerBytes, worker_bytes
from meshwright.estimate.sync import DataGroups, DataNetwork, Partners, StepSync, step_sync
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
    """Of the step, by part: compute, recompute, tp, cp, ep, dp, offload, host, and pp where it occupies workers."""
    dense_parameters: Float[np.ndarray, "plans workers"]
    expert_parameters: Float[np.ndarray, "plans workers"]
    largest_dense: Float[np.ndarray, "plans workers"]
    largest_expert: Float[np.ndarray, "plans workers"]
    transient_bytes: Float[np.ndarray, "plans workers"]
    recompute_flop: Float[np.ndarray, "plans workers"]
    """Per step and device."""
    transfer_s: Float[np.ndarray, "plans *hops"]
    """Latency of one boundary tensor between neighbouring workers, or behind each worker and chunk."""
    tied_s: Float[np.ndarray, "plans"]
    """Sum of a shared embedding's gradients between first and last worker."""
    devices_apart: Int[np.ndarray, "plans"]
    """Devices between the first and the last worker."""
    communicators: Float[np.ndarray, "plans #workers"]
    offload_weights: Float[np.ndarray, "plans #workers"]
    sharding: ShardingColumns
    """Columns of shape plans x 1 or plans x workers."""
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
    end_s = run_s(columns)
    sync = exposed_sync(columns, hardware, workload)
    without_s = run_s(columns, transfers=False) if transfers_apart else None
    busy = busy_s(columns)
    step_time_s, breakdown = around(end_s, without_s, busy, columns.parts_s, sync, columns.tied_s)

    kept_bytes, in_flight = activations(columns)
    memory = worker_bytes(
        dense_parameters=columns.dense_parameters,
        expert_parameters=columns.expert_parameters,
        largest_dense=columns.largest_dense,
        largest_expert=columns.largest_expert,
        activations=kept_bytes,
        transient=columns.transient_bytes,
        communicators=columns.communicators,
        offload_weights=columns.offload_weights,
        sharding=columns.sharding,
        hardware=hardware,
        workload=workload,
        weight_versions=weight_versions(columns.schedule, columns.p, columns.m, columns.v),
    )
    return StepColumns(
        step_time_s=step_time_s,
        breakdown_s=breakdown,
        busy_s=busy,
        memory=memory,
        peak_bytes=memory.peak,
        in_flight=in_flight,
        recompute_flop=columns.recompute_flop.mean(axis=1),
    )


def around(
    end_s: Float[np.ndarray, "plans workers"],
    without_s: Float[np.ndarray, "plans workers"] | None,
    busy: Float[np.ndarray, "plans workers"],
    parts_s: dict[str, Float[np.ndarray, "plans workers"]],
    sync: StepSync,
    tied_s: Float[np.ndarray, "plans"],
) -> tuple[Float[np.ndarray, "plans"], dict[str, Float[np.ndarray, "plans"]]]:
    """A step around its pipelines, and its parts as the busiest worker sees them.

    Args:
        end_s: of each worker's last task.
        without_s: the same if transfers took no time; None leaves `pp` in `bubble`.
        busy: seconds that each worker spends in tasks.
        parts_s: of them, by part.
        sync: what each worker waits for around its pipeline.
        tied_s: sum of a shared embedding's gradients.

    Returns:
        Seconds of the step, and its breakdown.
    """
    exposed_s = sync.gradients_s + sync.copies_s
    tail_s = sync.optimizer_s + sync.gather_s + sync.offload_s
    last_s = (end_s + exposed_s).max(axis=1)
    step_time_s = last_s + tail_s.max(axis=1) + tied_s
    # Shown are the parts of the busiest worker: what it waits for, at either end of the step too, is the bubble.
    busiest, slowest, rows = busy.argmax(axis=1), tail_s.argmax(axis=1), np.arange(len(busy))
    breakdown = {name: seconds[rows, busiest] for name, seconds in parts_s.items()}
    idle_s = np.maximum(last_s - busy[rows, busiest] - exposed_s[rows, busiest], 0.0)
    transfers_s = np.zeros_like(idle_s)
    if without_s is not None:
        transfers_s = np.clip(last_s - (without_s + exposed_s).max(axis=1), 0.0, idle_s)
    breakdown["pp"] = transfers_s + breakdown.get("pp", 0.0)
    breakdown["bubble"] = idle_s - transfers_s
    breakdown["dp"] = breakdown["dp"] + sync.gradients_s[rows, busiest] + sync.gather_s[rows, slowest] + tied_s
    breakdown["optimizer"] = sync.optimizer_s[rows, slowest]
    breakdown["offload"] = breakdown["offload"] + sync.copies_s[rows, busiest] + sync.offload_s[rows, slowest]
    return step_time_s, {name: breakdown[name] for name in BREAKDOWN}


def run_s(columns: PipelineColumns, *, transfers: bool = True) -> Float[np.ndarray, "plans workers"]:
    """End of each worker's last task, counted from the end of the step before where no flush lies between them.

    Args:
        columns: the plans.
        transfers: False if they were to take no time.
    """
    schedule, p, m, v = columns.schedule, columns.p, columns.m, columns.v
    times = task_times(columns, transfers=transfers)
    if schedule.flushes:
        return schedule.end_s(p, m, v, times)
    # Two steps of at least p micro-batches, so that the second one finds the pipeline full.
    full = max(m, p)
    first_s, both_s = (schedule.end_s(p, steps * full, v, times).max(axis=-1) for steps in (1, 2))
    step_s = np.maximum((both_s - first_s) * (m / full), busy_s(columns).max(axis=1))
    return np.broadcast_to(step_s[:, None], (len(step_s), p))


def busy_s(columns: PipelineColumns) -> Float[np.ndarray, "plans workers"]:
    """Seconds of a step that each worker spends in tasks."""
    once_s = columns.forward_s + columns.backward_s
    if columns.recompute_s is not None:
        once_s = once_s + columns.recompute_s
    return np.asarray((columns.runs * once_s).sum(axis=2))


def task_times(columns: PipelineColumns, *, transfers: bool = True) -> Times:
    """Durations of the tasks of every plan's pipeline, as the simulator takes them."""
    latency = columns.transfer_s if columns.transfer_s.ndim == 3 else columns.transfer_s[:, None, None]
    return Times(
        forward_s=columns.forward_s,
        backward_s=columns.backward_s,
        transfer_s=np.broadcast_to(latency if transfers else 0.0, columns.forward_s.shape),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """What the end of a step works on, one column per worker, whatever pipelines they belong to."""

    dense_parameters: Float[np.ndarray, "plans workers"]
    expert_parameters: Float[np.ndarray, "plans workers"]
    forward_s: Float[np.ndarray, "plans workers"]
    """Of one micro-batch."""
    last_s: Float[np.ndarray, "plans workers"]
    """Of the backward that gradients may hide behind."""
    micro_batches: Float[np.ndarray, "#plans #workers"]
    """That each chunk runs per update."""
    updates: Float[np.ndarray, "#plans #workers"]
    """Per step."""
    apart: Int[np.ndarray, "plans #workers"]
    """Devices between the two copies of a worker's stages; 0 where there is one."""
    passes: Float[np.ndarray, "#plans #workers"]
    """Times that a step reads or writes the weights besides."""
    sharding: ShardingColumns
    groups: DataGroups


def updates_of(columns: PipelineColumns) -> Updates:
    """What pipelines of one shape leave to the end of the step.

    Args:
        columns: the plans.
    """
    schedule = columns.schedule
    micro_batches, updates = sync_rounds(schedule, columns.m)
    two_copies = schedule.placement(columns.p, columns.v).chains > 1
    # Where the backward is split, gradients of weights are there when the last weight gradients end.
    last_s = columns.backward_s if columns.weight_s is None else columns.weight_s
    return Updates(
        dense_parameters=columns.dense_parameters,
        expert_parameters=columns.expert_parameters,
        forward_s=columns.forward_s.sum(axis=2),
        last_s=last_s.sum(axis=2),
        micro_batches=np.full((1, 1), float(micro_batches)),
        updates=np.full((1, 1), float(updates)),
        apart=columns.devices_apart[:, None] * two_copies,
        passes=np.full((1, 1), float(schedule.weight_passes)),
        sharding=columns.sharding,
        groups=columns.groups,
    )


def exposed_sync(columns: PipelineColumns, hardware: Hardware, workload: Workload) -> StepSync:
    """What every worker waits for around its pipeline: gradients, optimizer, gathered weights."""
    return sync_of(updates_of(columns), hardware, workload)


def sync_of(work: Updates, hardware: Hardware, workload: Workload, partners: Partners | None = None) -> StepSync:
    """What workers on one kind of device wait for at the end of a step.

    Args:
        work: their parameters and the compute beside which they are updated.
        hardware: the device and its links.
        workload: formats and optimizer.
        partners: workers of other pipelines with the same layers.
    """
    network = DataNetwork(work.sharding, work.groups, hardware, partners)
    once = step_sync(
        work.dense_parameters,
        work.expert_parameters,
        work.forward_s,
        work.last_s,
        work.micro_batches,
        work.sharding,
        network,
        workload,
    )
    if not (work.apart.any() or work.passes.any() or (work.updates > 1).any()):
        return once
    copies_s = _copies_sum_s(work, hardware, workload)
    return StepSync(
        gradients_s=once.gradients_s * work.updates + copies_s,
        copies_s=once.copies_s * work.updates,
        gather_s=once.gather_s * work.updates,
        optimizer_s=once.optimizer_s * work.updates + _weight_passes_s(work, hardware, workload),
        offload_s=once.offload_s * work.updates,
    )


def pair_span(distance: Int[np.ndarray, "..."], hardware: Hardware) -> tuple[Float[np.ndarray, "..."] | float, ...]:
    """Groups of two devices that stand so far apart, as `group_span` describes them."""
    return group_span(distance, np.full_like(distance, 2), hardware.domain_sizes)


def _copies_sum_s(work: Updates, hardware: Hardware, workload: Workload) -> Float[np.ndarray, "plans workers"]:
    """Sum of the gradients of both copies of a worker's stages: of their shards, where gradients are sharded.

    Nothing hides it here; Chimera starts it early where a worker waits anyway.
    """
    sharding, reduce = work.sharding, workload.precision.bytes_of("reduce") * workload.training
    shards = np.where(sharding.zero > 0, sharding.shard, 1)
    expert_shards = np.where(sharding.zero > 0, sharding.expert_shard, 1)
    size = (work.dense_parameters / shards + work.expert_parameters / expert_shards) * reduce * (work.apart > 0)
    return np.asarray(all_reduce_s(size, inside=pair_span(np.maximum(work.apart, 1), hardware), rates=hardware.rates))


def _weight_passes_s(work: Updates, hardware: Hardware, workload: Workload) -> Float[np.ndarray, "plans workers"]:
    """Reading and writing whole weights between steps."""
    size = (work.dense_parameters + work.expert_parameters) * workload.precision.bytes_of("weights")
    return np.asarray(work.passes * size / hardware.achieved_memory_bytes_per_s)


def activations(
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
