"""A step around its pipelines: gradients summed, weights updated, memory at its peak; workers of any kinds of device.

    step = max over workers of all pipelines of (end of its last backward + exposed gradient sum)
           + the slowest optimizer + gather

The optimizer waits for all workers because gradients are clipped by their global norm. A pipeline without a flush ends
as much later than the step before as another step takes it. The search prices many plans of one pipeline at a time, an
estimate one plan of many pipelines: both are rows and columns of the same sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.estimate.data.network import DataNetwork, Partners, joined_workers
from meshwright.estimate.data.sync import StepCompute, StepSync, step_sync
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.holdings import Holding, WorkerUpdates, all_updates, beside, picked, whole_holding
from meshwright.estimate.layers.states import EXTRA_BYTES, shared_update_s, tensor_updates_s
from meshwright.estimate.memory import ALL_KINDS, WorkerBytes, WorkerLoad, always_bytes, worker_bytes
from meshwright.estimate.run import PipelineColumns, activations, activations_away, busy_s, run_s, weight_versions
from meshwright.kernels.collectives import all_reduce_s
from meshwright.shapes import Float, Int
from meshwright.specs.workload import Workload

BREAKDOWN = ("compute", "recompute", "bubble", "tp", "cp", "ep", "pp", "dp", "optimizer", "offload", "host")
"""Parts of a step, in the order they are shown; they sum to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepColumns:
    """Times and bytes of plans of one shape."""

    step_time_s: Float[np.ndarray, "plans"]
    breakdown_s: dict[str, Float[np.ndarray, "plans"]]
    """Seconds of the busiest worker by part; they sum to the step."""
    busy_s: Float[np.ndarray, "plans workers"]
    """Seconds of the step that each worker computes or waits for its own layers' traffic."""
    sync: StepSync
    """What each worker waits for around its pipeline."""
    memory: WorkerBytes
    peak_bytes: Float[np.ndarray, "plans workers"]
    in_flight: Float[np.ndarray, "plans workers"]
    """Micro-batch chunks alive at the peak."""
    recompute_flop: Float[np.ndarray, "plans"]
    """Computed a second time per step and device, mean over workers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPipeline:
    """Plans of one pipeline shape, run to their ends."""

    columns: PipelineColumns
    end_s: Float[np.ndarray, "plans workers"]
    without_s: Float[np.ndarray, "plans workers"] | None
    """The end if transfers took no time; None unless `pp` and `bubble` are told apart."""
    busy: Float[np.ndarray, "plans workers"]
    kept_bytes: Float[np.ndarray, "plans workers"]
    away_bytes: Float[np.ndarray, "plans workers"]
    """Activations in host memory."""
    in_flight: Float[np.ndarray, "plans workers"]
    versions: Float[np.ndarray, "1 workers"]
    holdings: tuple[Holding, ...]
    """The first of all workers; more where the layers of a worker differ in layout."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workers:
    """Where the workers of all pipelines of a step stand."""

    views: Sequence[Hardware]
    """The devices as some workers see them."""
    view: Int[np.ndarray, " workers"]
    """Number of each worker's view."""
    devices: Float[np.ndarray, " workers"]
    partners: Sequence[Partners] | None = None
    """Partners of each worker in the other pipelines; None for one pipeline."""

    @classmethod
    def alike(cls, hardware: Hardware, workers: int) -> Workers:
        """The workers of one pipeline, all on one kind of device, with as many devices each."""
        return cls(views=(hardware,), view=np.zeros(workers, dtype=np.int64), devices=np.ones(workers))

    def groups(self, held: Sequence[Holding]) -> Iterator[tuple[bool, Holding, Hardware]]:
        """Each holding by the view of its workers, and whether it is their first."""
        for number, one in enumerate(held):
            own = self.view[one.places]
            if (own == own[0]).all():
                yield number == 0, one, self.views[own[0]]
                continue
            for view in np.unique(own):
                index = np.flatnonzero(own == view)
                part = Holding(
                    places=one.places[index],
                    updates=picked(one.updates, index),
                    communicators=one.communicators[:, index],
                    offload_weights=one.offload_weights[:, index],
                )
                yield number == 0, part, self.views[view]


def run_pipeline(
    columns: PipelineColumns, holdings: tuple[Holding, ...] | None = None, *, transfers_apart: bool = True
) -> RunPipeline:
    """Run plans of one pipeline shape.

    Args:
        columns: the plans.
        holdings: what the workers hold; all of one layout by default.
        transfers_apart: run once more without transfers, so that `pp` and `bubble` are told apart (needed only for
            plans that are shown).
    """
    kept_bytes, in_flight = activations(columns)
    later_s = columns.waits_s[:, None] + columns.alone_s.max(axis=1, keepdims=True)
    if columns.paged_s is not None:
        later_s = later_s + columns.paged_s
    end_s, without_s = run_s(columns, transfers_apart=transfers_apart)
    return RunPipeline(
        columns=columns,
        end_s=end_s + later_s,
        without_s=None if without_s is None else without_s + later_s,
        busy=busy_s(columns),
        kept_bytes=kept_bytes,
        away_bytes=activations_away(columns),
        in_flight=in_flight,
        versions=weight_versions(columns.schedule, columns.p, columns.m, columns.v)[None, :],
        holdings=holdings or (whole_holding(columns),),
    )


def step_of(pipelines: Sequence[RunPipeline], workers: Workers, workload: Workload) -> StepColumns:
    """The step of pipelines that run side by side.

    Args:
        pipelines: one row per plan each.
        workers: the workers of all of them, in order.
        workload: formats and optimizer.

    Returns:
        Times and bytes per plan; workers of all pipelines side by side.
    """
    held = _side_by_side(pipelines)
    every = [pipeline.columns for pipeline in pipelines]
    names = dict.fromkeys(name for columns in every for name in columns.parts_s)
    busy = beside([pipeline.busy for pipeline in pipelines])
    apart = [pipeline.without_s for pipeline in pipelines if pipeline.without_s is not None]
    end_s = beside([pipeline.end_s for pipeline in pipelines])
    sync = _filled(sync_of_all(held, workers, workload), end_s, busy)
    step_time_s, breakdown = around(
        end_s,
        beside(apart) if apart else None,
        busy,
        {n: beside([c.parts_s.get(n, np.zeros_like(c.dense_parameters)) for c in every]) for n in names},
        sync,
        np.max([columns.tied_s for columns in every], axis=0),
    )
    memory = _memory(pipelines, held, workers, workload)
    return StepColumns(
        step_time_s=step_time_s,
        breakdown_s=breakdown,
        busy_s=busy,
        sync=sync,
        memory=memory,
        peak_bytes=memory.peak,
        in_flight=beside([pipeline.in_flight for pipeline in pipelines]),
        recompute_flop=beside([c.recompute_flop for c in every]) @ workers.devices / workers.devices.sum(),
    )


def _filled(
    sync: StepSync, end_s: Float[np.ndarray, "plans workers"], busy: Float[np.ndarray, "plans workers"]
) -> StepSync:
    """What the optimizer does aside, where workers wait; the rest of it behind the step."""
    if not np.any(sync.aside_s):
        return sync
    exposed_s = sync.gradients_s + sync.copies_s
    idle_s = np.maximum((end_s + exposed_s).max(axis=1)[:, None] - busy - exposed_s, 0.0)
    return replace(sync, optimizer_s=sync.optimizer_s + np.maximum(sync.aside_s - idle_s, 0.0), aside_s=0.0)


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
        end_s: the end in seconds of each worker's last task.
        without_s: the same if transfers took no time; None leaves `pp` in `bubble`.
        busy: seconds that each worker spends in tasks.
        parts_s: the seconds of them, by part.
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


def sync_of_all(held: Sequence[Holding], workers: Workers, workload: Workload) -> StepSync:
    """What every worker waits for around its pipeline: gradients, optimizer, gathered weights.

    Args:
        held: holdings of all workers.
        workers: the workers where they stand.
        workload: formats and optimizer.
    """
    parts = []
    for first, one, hardware in workers.groups(held):
        partners = None
        if workers.partners is not None:
            partners = joined_workers([workers.partners[place] for place in one.places.tolist()])
        once = sync_of(one.updates, hardware, workload, partners)
        # What a step takes whatever is updated is counted once for each worker.
        again_s = 0.0 if first else hardware.software.step_s * workload.training
        parts.append((one.places, once, {"optimizer_s": again_s}))
    return StepSync(**_joined(parts, [f.name for f in fields(StepSync)], len(workers.view)))


def sync_of(work: WorkerUpdates, hardware: Hardware, workload: Workload, partners: Partners | None = None) -> StepSync:
    """What workers on one kind of device wait for at the end of a step.

    Args:
        work: their parameters and the compute beside which they are updated.
        hardware: the device and its links.
        workload: formats and optimizer.
        partners: workers of other pipelines with the same layers.
    """
    network = DataNetwork(work.sharding, work.groups, hardware, partners)
    met = network.meets_exchanges
    once = step_sync(
        work.dense_parameters,
        work.expert_parameters,
        StepCompute(
            forward_s=work.forward_s,
            backward_s=work.last_s,
            micro_batches=work.micro_batches,
            passes=work.last_passes,
            meeting_s=work.meeting_s * met,
            hops_s=work.hops_s * network.meets_hops,
            ahead_s=work.ahead_s * met,
        ),
        work.sharding,
        network,
        workload,
        (work.dense_payload, work.expert_payload),
    )
    if work.dense_update_s.any() or work.expert_update_s.any():
        more_s = shared_update_s(work.dense_update_s, work.expert_update_s, work.sharding)
        once = replace(once, optimizer_s=once.optimizer_s + more_s)
    if work.statistics_s.any():
        refresh_s = shared_update_s(work.dense_refresh_s, work.expert_refresh_s, work.sharding)
        summed_s = network.rank_sum_s(work.dense_statistics, expert=False)
        summed_s = summed_s + network.rank_sum_s(work.expert_statistics, expert=True)
        aside_s = work.statistics_s * work.micro_batches + refresh_s + summed_s
        fills = workload.update.fills
        once = replace(once, **({"aside_s": aside_s} if fills else {"optimizer_s": once.optimizer_s + aside_s}))
    tensors_s = tensor_updates_s(work.dense_tensors, work.expert_tensors, work.sharding, hardware, workload)
    once = replace(once, optimizer_s=once.optimizer_s + tensors_s)
    if work.replicated_parameters.any():
        summed_s = network.tensor_sum_s(work.replicated_parameters, work.sharding, workload)
        once = replace(once, gradients_s=once.gradients_s + summed_s)
    if not (work.apart.any() or work.passes.any() or (work.updates > 1).any()):
        return once
    copies_s = _copies_sum_s(work, hardware, workload)
    return StepSync(
        gradients_s=once.gradients_s * work.updates + copies_s,
        copies_s=once.copies_s * work.updates,
        gather_s=once.gather_s * work.updates,
        optimizer_s=once.optimizer_s * work.updates + _weight_passes_s(work, hardware, workload),
        offload_s=once.offload_s * work.updates,
        aside_s=once.aside_s * work.updates,
    )


def _copies_sum_s(work: WorkerUpdates, hardware: Hardware, workload: Workload) -> Float[np.ndarray, "plans workers"]:
    """Sum of the gradients of both copies of a worker's stages: of their shards, where gradients are sharded.

    Nothing hides it here; Chimera starts it early where a worker waits anyway.
    """
    sharding = work.sharding
    reduce = sharding.reduced_bytes(workload.precision) * workload.training
    shards = np.where(sharding.zero > 0, sharding.shard, 1)
    expert_shards = np.where(sharding.zero > 0, sharding.expert_shard, 1)
    size = (work.dense_parameters / shards + work.expert_parameters / expert_shards) * reduce * (work.apart > 0)
    return np.asarray(all_reduce_s(size, inside=hardware.pair_span(np.maximum(work.apart, 1)), rates=hardware.rates))


def _weight_passes_s(work: WorkerUpdates, hardware: Hardware, workload: Workload) -> Float[np.ndarray, "plans workers"]:
    """Reading and writing whole weights between steps."""
    size = (work.dense_parameters + work.expert_parameters) * workload.precision.bytes_of("weights")
    return np.asarray(work.passes * size / hardware.achieved_memory_bytes_per_s)


def _memory(
    pipelines: Sequence[RunPipeline], held: Sequence[Holding], workers: Workers, workload: Workload
) -> WorkerBytes:
    """Bytes at the peak: what a worker has once, whatever it holds, and its holdings."""
    every = [pipeline.columns for pipeline in pipelines]
    once = {
        "largest_dense": beside([columns.largest_dense for columns in every]),
        "largest_expert": beside([columns.largest_expert for columns in every]),
        "largest_frozen_bytes": beside([columns.largest_frozen_bytes for columns in every]),
        "activations": beside([pipeline.kept_bytes for pipeline in pipelines]),
        "transient": beside([columns.transient_bytes for columns in every]),
        "away": beside([pipeline.away_bytes for pipeline in pipelines]),
    }
    versions = beside([pipeline.versions for pipeline in pipelines])
    parts = []
    for first, one, hardware in workers.groups(held):
        load = WorkerLoad(
            **{name: values[:, one.places] if first else np.zeros((1, 1)) for name, values in once.items()},
            dense_parameters=one.updates.dense_parameters,
            expert_parameters=one.updates.expert_parameters,
            frozen_dense_bytes=one.updates.frozen_dense_bytes,
            frozen_expert_bytes=one.updates.frozen_expert_bytes,
            **{name: getattr(one.updates, name) for name in EXTRA_BYTES},
            communicators=one.communicators,
            offload_weights=one.offload_weights,
            weight_versions=versions[:, one.places],
        )
        found = worker_bytes(load, one.updates.sharding, hardware, workload)
        parts.append((one.places, found, {"overhead": 0.0 if first else always_bytes(hardware)}))
    return WorkerBytes(**_joined(parts, ALL_KINDS, len(workers.view)))


def _joined(
    parts: Sequence[tuple[Int[np.ndarray, " _"], object, dict[str, float]]], names: Sequence[str], workers: int
) -> dict[str, Float[np.ndarray, "plans workers"]]:
    """Fields of records of some workers each, added up by worker, less what is counted once for each."""
    (places, first, _), *others = parts
    if not others and len(places) == workers:
        return {name: getattr(first, name) for name in names}
    plans = len(getattr(first, names[0]))
    found = {name: np.zeros((plans, workers)) for name in names}
    for places, part, again in parts:
        for name, values in found.items():
            values[:, places] += getattr(part, name) - again.get(name, 0.0)
    return found


def _side_by_side(pipelines: Sequence[RunPipeline]) -> Sequence[Holding]:
    """Holdings of all pipelines, workers numbered through."""
    if len(pipelines) == 1:
        return pipelines[0].holdings
    first = np.cumsum([0, *(pipeline.columns.p for pipeline in pipelines)]).tolist()
    found = []
    for number in range(max(len(pipeline.holdings) for pipeline in pipelines)):
        having = [
            (pipeline.holdings[number], low)
            for pipeline, low in zip(pipelines, first, strict=False)
            if number < len(pipeline.holdings)
        ]
        found.append(
            Holding(
                places=np.concatenate([one.places + low for one, low in having]),
                updates=all_updates([one.updates for one, _ in having]),
                # The group in which gradients are summed between pipelines is one more.
                communicators=beside([one.communicators for one, _ in having]) + 1.0,
                offload_weights=beside([one.offload_weights for one, _ in having]),
            )
        )
    return found
