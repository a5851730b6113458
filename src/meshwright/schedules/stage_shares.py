"""What workers are given, divided among the chunks of any placement: times, transfers and memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.list_scheduling import Work
from meshwright.schedules.table import Placement
from meshwright.schedules.times import Times, edge_latency_s
from meshwright.shapes import Bool, Float

PerWorker = float | Sequence[float] | Float[np.ndarray, " workers"]
"""One number for all workers, or one each."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Caps:
    """Memory of the workers: weights that stay, and activations from F to B or W."""

    capacity_bytes: PerWorker
    activation_bytes: PerWorker
    """Kept for one micro-batch by a worker's whole share; a chunk keeps its part."""
    weight_bytes: PerWorker = 0.0
    """Weights, gradients and optimizer states of one copy of a worker's share."""
    released_by_input: PerWorker = 0.0
    """Share of an activation that the input gradient of a split backward already frees."""

    def problems(self, p: int) -> list[Problem]:
        """What is wrong with the numbers, all together.

        Args:
            p: workers.
        """
        found = []
        for name in ("capacity_bytes", "activation_bytes", "weight_bytes"):
            given = np.asarray(getattr(self, name), float)
            if given.shape not in ((), (1,), (p,)):
                why = f"one number for all workers, or one each, p = {p}"
                found.append(Problem(what=f"{given.size} values of {name}", why=why, fix=f"{p} values", field=name))
            elif not (np.isfinite(given).all() and (given >= 0).all()):
                what = f"{name} = {given.tolist()}"
                found.append(Problem(what=what, why="bytes are finite and at least 0", field=name))
        share = np.asarray(self.released_by_input, float)
        if share.shape not in ((), (1,), (p,)) or not ((share >= 0) & (share <= 1)).all():
            what, why = f"released_by_input = {share.tolist()}", f"one share for all workers, or one each, p = {p}"
            found.append(Problem(what=what, why=why, fix="shares from 0 to 1", field="released_by_input"))
        return found

    def of(self, name: str, p: int) -> Float[np.ndarray, " workers"]:
        """One of the numbers, for every worker."""
        return np.broadcast_to(np.asarray(getattr(self, name), float), (p,)).astype(float)

    def released(self, placement: Placement) -> Float[np.ndarray, "workers chunks"]:
        """Share of an activation that the input gradient frees, by worker and chunk.

        Args:
            placement: the placement of the chunks.
        """
        return np.repeat(self.of("released_by_input", placement.p)[:, None], placement.v, axis=1)

    def lack(self, peak_bytes: Float[np.ndarray, " workers"]) -> str:
        """What the worker that is furthest beyond its capacity lacks, in words; empty if all fit.

        Args:
            peak_bytes: the peak bytes of each worker at its fullest.
        """
        capacity = self.of("capacity_bytes", len(peak_bytes))
        # Sums of the same bytes in another order may round differently.
        over = peak_bytes - capacity * (1 + 1e-9)
        if (over <= 0).all():
            return ""
        worker = int(np.argmax(over))
        return f"worker {worker} would need {peak_bytes[worker]:.4g} bytes of {capacity[worker]:.4g}"


def share_times(given: Times, placement: Placement, parts: int) -> Times:
    """The times of the chunks of a placement, from those of the workers.

    Given by as many chunks as the placement has, they are taken as they are; else each worker's sum is divided evenly.
    A boundary between two workers takes the latency given for their link: behind worker r for r and r + 1.

    Args:
        given: the times by worker and chunk, without leading axes.
        placement: the placement to be timed.
        parts: tasks of one kind that make up a worker's share of one micro-batch.
    """
    p = placement.p
    as_given = placement.chains == 1 and np.shape(given.forward_s)[-1] == placement.v == parts

    def share(seconds: np.ndarray | None) -> np.ndarray | None:
        if seconds is None:
            return None
        whole = np.asarray(seconds, float)
        return whole if as_given else np.repeat(whole.sum(axis=1, keepdims=True) / parts, placement.v, axis=1)

    forward_s, backward_s = share(given.forward_s), share(given.backward_s)
    assert forward_s is not None
    assert backward_s is not None
    return Times(
        forward_s=forward_s,
        backward_s=backward_s,
        weight_s=share(given.weight_s),
        recompute_s=share(given.recompute_s),
        transfer_s=given.transfer_s if as_given else _link_latency_s(given, placement, p),
    )


def share_bytes(caps: Caps | None, placement: Placement, parts: int) -> Float[np.ndarray, "workers chunks"]:
    """Activation bytes of one micro-batch by worker and chunk; 0 without memory to keep to.

    Args:
        caps: the caps of the workers.
        placement: the placement of the chunks.
        parts: the number of parts that share a worker's activation.
    """
    whole = np.zeros(placement.p) if caps is None else caps.of("activation_bytes", placement.p)
    return np.repeat(whole[:, None] / parts, placement.v, axis=1)


def virtual_stage_work(
    placement: Placement,
    micro_batches: tuple[int, ...],
    times: Times,
    stage_bytes: Float[np.ndarray, "workers chunks"],
    caps: Caps | None,
    split: bool = True,
) -> Work:
    """The work of a step, by virtual stage.

    Args:
        placement: the placement of the virtual stages.
        micro_batches: the micro-batches that enter each chain.
        times: the times by worker and chunk of the placement; weight gradients part of the backward.
        stage_bytes: activation of one micro-batch by worker and chunk.
        caps: memory; None for any amount.
        split: whether weight gradients run apart, if their times are given.
    """
    where = placement.worker, placement.chunk
    forward, backward = np.asarray(times.forward_s, float)[where], np.asarray(times.backward_s, float)[where]
    weight = None if times.weight_s is None or not split else np.asarray(times.weight_s, float)[where]
    room = None
    if caps is not None:
        room = caps.of("capacity_bytes", placement.p) - caps.of("weight_bytes", placement.p)
    return Work(
        placement=placement,
        micro_batches=micro_batches,
        forward_s=forward.tolist(),
        gradient_s=(backward if weight is None else backward - weight).tolist(),
        weight_s=None if weight is None else weight.tolist(),
        latency_s=edge_latency_s(placement, times.transfer_s, ())[where].tolist(),
        stage_bytes=None if caps is None else stage_bytes[where].tolist(),
        room_bytes=None if room is None else room.tolist(),
        released_by_input=None if caps is None or weight is None else caps.released(placement)[where].tolist(),
    )


def _link_latency_s(given: Times, placement: Placement, p: int) -> Float[np.ndarray, "workers chunks"] | float:
    """Latency behind each chunk of the placement: of the link between its worker and the next one's."""
    latency = np.asarray(given.transfer_s, float)
    if latency.ndim == 0:
        return float(latency)
    if latency.ndim == 1:
        latency = latency[: p - 1]
        link = np.append(latency, latency.max(initial=0.0))
    else:
        link = latency.max(axis=1)
    behind = np.zeros((p, placement.v))
    crossing = placement.following >= 0
    source, target = placement.worker[crossing], placement.worker[placement.following[crossing]]
    backwards: Bool[np.ndarray, " stages"] = target == source - 1
    behind[source, placement.chunk[crossing]] = np.where(backwards, link[target], link[source])
    return behind
