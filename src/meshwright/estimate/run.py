"""One pipeline run to its end: when its workers finish, how long they are busy, what they keep at the worst moment.

Plans of one pipeline shape (schedule, p, m, v) are run together, one row each.

A forward keeps what the plan's recompute leaves. A task R makes all activations again until the backward ends. A split
backward needs inputs of its products and gradients of their outputs until the weight gradient has run: about what a
forward without recompute keeps (32 of 34 s b h in a GPT layer; Qi et al. 2024, Zero Bubble, table 1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from meshwright.estimate.data.network import DataGroups
from meshwright.estimate.layers.states import HeldParameters
from meshwright.schedules import Kind, Schedule, Times
from meshwright.schedules.in_flight import largest_vectors
from meshwright.shapes import Float, Int, spread
from meshwright.strategies.data import ShardingColumns


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineColumns(HeldParameters):
    """Plans of one pipeline shape, ready to run."""

    schedule: Schedule
    p: int
    m: int
    v: int
    runs: Int[np.ndarray, "workers chunks"]
    """How often a step runs each chunk."""
    forward_s: Float[np.ndarray, "plans workers chunks"]
    """Seconds per run, everything exposed included."""
    backward_s: Float[np.ndarray, "plans workers chunks"]
    weight_s: Float[np.ndarray, "plans workers chunks"] | None = None
    """Part of the backward that is the weight gradient, for schedules that split it."""
    recompute_s: Float[np.ndarray, "plans workers chunks"] | None = None
    """Task R, for schedules that have it."""
    kept_bytes: Float[np.ndarray, "plans workers chunks"]
    """Bytes kept per run in flight."""
    made_bytes: Float[np.ndarray, "plans workers chunks"] | None = None
    """Bytes per run that is recomputed, or that waits for its weight gradient."""
    away_bytes: Float[np.ndarray, "plans workers chunks"] | None = None
    """Bytes per run in flight in host memory; None where nothing is."""
    parts_s: dict[str, Float[np.ndarray, "plans workers"]]
    """Seconds of the step by part: compute, recompute, tp, cp, ep, dp, offload, host, and pp where it occupies
    workers."""
    largest_frozen_bytes: Float[np.ndarray, "plans workers"]
    largest_dense: Float[np.ndarray, "plans workers"]
    largest_expert: Float[np.ndarray, "plans workers"]
    transient_bytes: Float[np.ndarray, "plans workers"]
    recompute_flop: Float[np.ndarray, "plans workers"]
    """Recomputed FLOP per step and device."""
    transfer_s: Float[np.ndarray, "plans *hops"]
    """Latency of one boundary tensor between neighbouring workers, or behind each worker and chunk."""
    alone_s: Float[np.ndarray, "plans workers"]
    """Exchanges exposed in forwards and backwards that run without a partner, of those that hide beside one else."""
    meeting_s: Float[np.ndarray, "plans workers"]
    """Exchanges of tokens in the last backward of a micro-batch's, which gradients on their way meet."""
    ahead_s: Float[np.ndarray, "plans workers"]
    """Exchanges of tokens in the last backward that go before gradients."""
    paged_s: Float[np.ndarray, "plans workers"] | None = None
    """Waiting for stages that are uploaded, all workers together; None where none are."""
    waits_s: Float[np.ndarray, "plans"]
    """What workers wait for each other because micro-batches differ in attended pairs."""
    tied_s: Float[np.ndarray, "plans"]
    """Sum of a shared embedding's gradients between first and last worker."""
    devices_apart: Int[np.ndarray, "plans"]
    """Devices between the first and the last worker."""
    communicators: Float[np.ndarray, "plans #workers"]
    offload_weights: Float[np.ndarray, "plans #workers"]
    sharding: ShardingColumns
    """Columns of shape plans x 1 or plans x workers."""
    groups: DataGroups


def run_s(
    columns: PipelineColumns, *, transfers_apart: bool = False
) -> tuple[Float[np.ndarray, "plans workers"], Float[np.ndarray, "plans workers"] | None]:
    """End of each worker's last task, counted from the end of the step before where nothing drains between them.

    Args:
        columns: the plans.
        transfers_apart: run them beside themselves without transfers.

    Returns:
        The ends, and those if transfers took no time; None unless they are told apart.
    """
    schedule, p, m, v = columns.schedule, columns.p, columns.m, columns.v
    plans, times = len(columns.forward_s), task_times(columns)
    if transfers_apart:
        times = _with_and_without(times)
    if schedule.drains(p, m):
        end_s = schedule.end_s(p, m, v, times)
    else:
        # Two steps of at least p micro-batches, so that the second one finds the pipeline full.
        full = max(m, p)
        first_s, both_s = (schedule.end_s(p, steps * full, v, times).max(axis=-1) for steps in (1, 2))
        busiest_s = np.resize(busy_s(columns).max(axis=1), len(first_s))
        step_s = np.maximum((both_s - first_s) * (m / full), busiest_s)
        end_s = np.broadcast_to(step_s[:, None], (len(step_s), p))
    return end_s[:plans], end_s[plans:] if transfers_apart else None


def busy_s(columns: PipelineColumns) -> Float[np.ndarray, "plans workers"]:
    """Seconds of a step that each worker spends in tasks."""
    once_s = columns.forward_s + columns.backward_s
    if columns.recompute_s is not None:
        once_s = once_s + columns.recompute_s
    paged_s = 0.0 if columns.paged_s is None else columns.paged_s
    return np.asarray((columns.runs * once_s).sum(axis=2) + columns.alone_s + paged_s)


def task_times(columns: PipelineColumns) -> Times:
    """Durations of the tasks of every plan's pipeline, as the simulator takes them."""
    latency = columns.transfer_s if columns.transfer_s.ndim == 3 else columns.transfer_s[:, None, None]
    return Times(
        forward_s=columns.forward_s,
        backward_s=columns.backward_s,
        transfer_s=spread(latency, columns.forward_s.shape),
        weight_s=columns.weight_s,
        recompute_s=columns.recompute_s,
    )


def _with_and_without(times: Times) -> Times:
    """Every set of durations twice, the second time with transfers that take no time."""

    def twice(seconds: np.ndarray) -> np.ndarray:
        return np.concatenate((seconds, seconds))

    transfer_s = np.asarray(times.transfer_s)
    return replace(
        times,
        forward_s=twice(times.forward_s),
        backward_s=twice(times.backward_s),
        transfer_s=np.concatenate((transfer_s, np.zeros_like(transfer_s))),
        weight_s=None if times.weight_s is None else twice(times.weight_s),
        recompute_s=None if times.recompute_s is None else twice(times.recompute_s),
    )


@lru_cache(maxsize=1024)
def sync_rounds(schedule: Schedule, m: int) -> tuple[int, int]:
    """Micro-batches that each chunk runs per update of the weights, and updates per step.

    Args:
        schedule: the schedule of the pipeline.
        m: micro-batches per step.
    """
    if schedule.updates_each:
        return schedule.sections(), m
    return -(-m // schedule.chains) * schedule.sections(), 1


@lru_cache(maxsize=1024)
def weight_versions(schedule: Schedule, p: int, m: int, v: int) -> Float[np.ndarray, " workers"]:
    """Versions of each weight that a worker keeps; copies of a stage are counted as parameters.

    Replicas that are averaged have a reference model between them: (N + 1) / N versions of each.

    Args:
        schedule: the schedule of the pipeline.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker.
    """
    copies = np.array(schedule.worker_weight_copies(p, m if schedule.flushes else max(m, p), v), dtype=float)
    return (copies - schedule.shadows) / schedule.chains


Vectors = tuple[Int[np.ndarray, "_ chunks"], ...]


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Live:
    """The largest counts by chunk that live at the same time, per worker; entry n of both is one moment."""

    kept: Vectors
    """Micro-batches kept from the forward to the backward or the input gradient."""
    made: Vectors
    """Micro-batches kept from a recomputation to its backward, and from an input gradient to its weight gradient."""
    guests: Int[np.ndarray, " workers"]
    """Activations of worker p - 1 - r that lie on worker r at its peak."""


@lru_cache(maxsize=1024)
def live(schedule: Schedule, p: int, m: int, v: int) -> Live:
    """What is alive at the moments that may be the fullest.

    Args:
        schedule: the schedule of the pipeline.
        p: workers.
        m: micro-batches per step.
        v: chunks per worker.

    Returns:
        Counts; peak bytes of a worker = max over its moments of kept @ bytes kept + made @ bytes made, and its guests.
    """
    m = m if schedule.flushes else max(m, p)
    if type(schedule).parked is Schedule.parked and (not _makes(schedule) or schedule.period(p, v) is not None):
        # Nothing moves, and what is made again repeats: as many live at once as in a step of fewer micro-batches.
        m = schedule._in_flight_for(p, m, v)
    return _live(schedule, p, m, v)


def _makes(schedule: Schedule) -> bool:
    """Whether tasks of their own make activations again, or leave some for their weight gradient."""
    return bool(schedule.kinds & {Kind.W, Kind.R}) and not schedule.shadows


@lru_cache(maxsize=1024)
def _live(schedule: Schedule, p: int, m: int, v: int) -> Live:
    limits = schedule.parked(p, m)
    if _makes(schedule):
        both = _moments(schedule, p, m, v)
        kept, made = tuple(b[:, 0] for b in both), tuple(b[:, 1] for b in both)
    else:
        kept = tuple(
            np.minimum(vectors, own * schedule.sections())
            for vectors, own in zip(schedule.in_flight(p, m, v), limits[:, 0].tolist(), strict=True)
        )
        made = tuple(np.zeros_like(vectors) for vectors in kept)
    return Live(kept=kept, made=made, guests=limits[:, 1])


def _moments(schedule: Schedule, p: int, m: int, v: int) -> list[Int[np.ndarray, "_ 2 chunks"]]:
    """Counts along the table behind every task that adds something, without those that others cover."""
    table = schedule.table(p, m, v)
    kind, chunks = table.kind, table.v
    change = np.zeros((table.tasks, 2, chunks), np.int32)
    at = np.arange(table.tasks)
    split = np.isin(kind, [Kind.I, Kind.W])
    change[at, 0, table.chunk] = np.select([kind == Kind.F, np.isin(kind, [Kind.B, Kind.I])], [1, -1], 0)
    again = _recomputed(table.kind, table.stage, table.micro_batch) if Kind.R in schedule.kinds else split
    change[at, 1, table.chunk] = np.select(
        [kind == Kind.R, kind == Kind.I, kind == Kind.W, (kind == Kind.B) & again], [1, 1, -1, -1], 0
    )
    adds = np.isin(kind, [Kind.F, Kind.R, Kind.I])
    found = []
    for low, high in zip(table.first[:-1], table.first[1:], strict=True):
        counts = np.cumsum(change[low:high].reshape(high - low, -1), axis=0)
        found.append(largest_vectors(counts[adds[low:high]]).reshape(-1, 2, chunks))
    return found


def _recomputed(
    kind: Int[np.ndarray, " tasks"], stage: Int[np.ndarray, " tasks"], unit: Int[np.ndarray, " tasks"]
) -> np.ndarray:
    """Tasks whose virtual stage and micro-batch have a recomputation."""
    code = stage.astype(np.int64) * (int(unit.max()) + 1) + unit
    return np.isin(code, code[kind == Kind.R])


def activations_away(columns: PipelineColumns) -> Float[np.ndarray, "plans workers"]:
    """Bytes of activations in host memory at the moment of the schedule that has the most."""
    if columns.away_bytes is None:
        return np.zeros((len(columns.kept_bytes), columns.p))
    alive = live(columns.schedule, columns.p, columns.m, columns.v)
    return np.stack(
        [
            (columns.away_bytes[:, worker, :] @ kept.T.astype(float)).max(axis=1)
            for worker, kept in enumerate(alive.kept)
        ],
        axis=1,
    )


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
        if columns.p > 1 and not columns.schedule.pairs_passes and columns.alone_s.any():
            # A forward more than in the plain order is under way where forwards and backwards run together.
            totals = totals + (columns.kept_bytes[:, worker, :].max(axis=1) * (columns.alone_s[:, worker] > 0))[:, None]
        if guests:
            totals = totals + guests * columns.kept_bytes[:, columns.p - 1 - worker, :].sum(axis=1)[:, None]
        worst = totals.argmax(axis=1)
        total[:, worker] = totals[np.arange(plans), worst]
        number[:, worker] = (kept + made).sum(axis=1)[worst] + guests
    return total, number
