"""What follows the pipelines of a step, and what lies in memory: of all workers, each on its own kind of device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.holdings import Holding, picked
from meshwright.estimate.memory import MEMORY_KINDS, WorkerBytes, worker_bytes
from meshwright.estimate.partners import joined
from meshwright.estimate.site import Site
from meshwright.estimate.step import sync_of
from meshwright.estimate.sync import Partners, StepSync
from meshwright.estimate.unpack import sharding_columns
from meshwright.shapes import Float, Int
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload


def sync_of_all(
    held: Sequence[Holding],
    stages: Sequence[Site],
    views: Sequence[Hardware],
    workload: Workload,
    partners: Sequence[Partners] | None,
) -> StepSync:
    """The end of the step, workers of one view of one kind of device together.

    Args:
        held: holdings of all workers.
        stages: where each worker stands.
        views: hardware by view.
        workload: formats and optimizer.
        partners: of each worker in the other pipelines; None for one pipeline.

    Returns:
        Exposed seconds, one column per worker.
    """
    found = {f.name: np.zeros((1, len(stages))) for f in fields(StepSync)}
    for number, one in enumerate(held):
        for view, index in _by_view(stages, one):
            hardware, places = views[view], one.places[index]
            own = None if partners is None else joined([partners[place] for place in places.tolist()])
            part = sync_of(picked(one.updates, index), hardware, workload, own)
            for name, seconds in found.items():
                seconds[:, places] += getattr(part, name)
            if number:
                # What a step takes whatever is updated is counted once for each worker.
                found["optimizer_s"][:, places] -= hardware.software.step_s * workload.training
    return StepSync(**found)


def memory_of_all(
    held: Sequence[Holding],
    whole: Mapping[str, Float[np.ndarray, "1 workers"]],
    versions: Float[np.ndarray, "1 workers"],
    stages: Sequence[Site],
    views: Sequence[Hardware],
    workload: Workload,
) -> WorkerBytes:
    """Bytes at the peak, workers of one view of one kind of device together.

    Args:
        held: holdings of all workers.
        whole: what a worker has once, whatever it holds: its largest layer, activations, working memory.
        versions: of the weights that each worker keeps.
        stages: where each worker stands.
        views: hardware by view.
        workload: formats and optimizer.

    Returns:
        Bytes by kind, one column per worker.
    """
    found = {kind: np.zeros((1, len(stages))) for kind in MEMORY_KINDS}
    for number, one in enumerate(held):
        for view, index in _by_view(stages, one):
            places = one.places[index]
            nothing = np.zeros((1, len(places)))
            part = worker_bytes(
                **{name: nothing if number else values[:, places] for name, values in whole.items()},
                dense_parameters=one.updates.dense_parameters[:, index],
                expert_parameters=one.updates.expert_parameters[:, index],
                communicators=one.communicators[:, index],
                offload_weights=one.offload_weights[:, index],
                weight_versions=versions[:, places],
                sharding=picked(one.updates, index).sharding,
                hardware=views[view],
                workload=workload,
            )
            for kind, size in found.items():
                size[:, places] += getattr(part, kind)
            if number:
                found["overhead"][:, places] -= _always_bytes(views[view], workload)
    return WorkerBytes(**found)


def _always_bytes(hardware: Hardware, workload: Workload) -> float:
    """Overhead of a device that holds nothing."""
    none = np.zeros((1, 1))
    found = worker_bytes(
        dense_parameters=none,
        expert_parameters=none,
        largest_dense=none,
        largest_expert=none,
        activations=none,
        transient=none,
        communicators=none,
        offload_weights=none,
        sharding=sharding_columns([LayerStrategy()]),
        hardware=hardware,
        workload=workload,
    )
    return float(found.overhead[0, 0])


def _by_view(stages: Sequence[Site], one: Holding) -> list[tuple[int, Int[np.ndarray, "picked"]]]:
    """Columns of a holding by the view of their workers."""
    views = np.array([stages[place].view for place in one.places.tolist()])
    return [(int(view), np.flatnonzero(views == view)) for view in np.unique(views)]
