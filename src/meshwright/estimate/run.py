"""One pipeline run to its end: when its workers finish, how long they are busy, what they keep at the worst moment.

Plans of one pipeline shape (schedule, p, m, v) are run together, one row each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.estimate.live import live
from meshwright.estimate.sync import DataGroups
from meshwright.schedules import Schedule, Times
from meshwright.shapes import Float, Int
from meshwright.strategies.data import ShardingColumns


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
    return -(-m // schedule.chains) * schedule.sections(), 1


def weight_versions(schedule: Schedule, p: int, m: int, v: int) -> Float[np.ndarray, " workers"]:
    """Versions of each weight that a worker keeps; copies of other stages are counted as their parameters.

    Args:
        schedule: of the pipeline.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker.
    """
    copies = np.array(schedule.worker_weight_copies(p, m if schedule.flushes else max(m, p), v), dtype=float)
    return copies - (schedule.chains - 1) - schedule.shadows


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
