"""The timeline: every task of one step as columns, what its stages spend their time on, the critical path, memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.report.page.packed import TICKS, deflated, gaps_and_durations
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.picture import Picture, paler
from meshwright.schedules import Kind, ScheduleTable, Timeline
from meshwright.schedules.kinds import LANE, Lane
from meshwright.shapes import Float, Int

COMMUNICATION = ("tp", "cp", "ep", "pp", "dp")
"""Parts of tasks that are exposed communication."""
MOST_CHANGES = 16_384
"""Most changes of memory, all stages together, that are written one by one; of more, the most of each of `BINS` equal
times."""
BINS = 512


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """One step of a plan, task by task.

    Args:
        plan: the plan whose step is drawn.
        source: the answer.
    """
    try:
        return picture_data(plan.picture())
    except UnsupportedError as error:
        return {"absent": str(error)}


def picture_data(picture: Picture) -> dict[str, Any]:
    """A step as the canvas of the page takes it.

    Args:
        picture: the step.
    """
    table = picture.timeline.table
    return {
        "title": picture.title,
        "noun": picture.noun,
        "end_s": picture.end_s,
        "bubble": picture.timeline.bubble_makespan,
        "segments": table.segments,
        "paler": paler(picture),
        "kinds": [kind.name for kind in Kind],
        "workers": _workers(picture),
        "tasks": _tasks(picture),
        "stages": {
            "worker": table.placement.worker.tolist(),
            "chunk": table.placement.chunk.tolist(),
            "chain": table.placement.chain.tolist(),
        },
        "hops_s": _hops(picture),
        "spans": [[span.worker, span.name, span.start_s, span.end_s, span.lane] for span in picture.spans],
        "critical": _critical(picture.timeline),
        "memory": memory_lines(picture),
    }


def time_shares(picture: Picture) -> list[dict[str, float]]:
    """Where each worker's time of the step goes, as shares that sum to 1.

    Communication is what is exposed: inside tasks, while a worker waits for what is under way, and behind the pipeline.

    Args:
        picture: the step.
    """
    timeline, end_s = picture.timeline, picture.end_s or 1.0
    inside = {name: seconds for name, seconds in picture.parts_s.items() if name in COMMUNICATION}
    whole_s = np.zeros(timeline.table.p)
    for seconds in picture.parts_s.values():
        whole_s = whole_s + seconds
    found = []
    for worker in range(timeline.table.p):
        busy_s = float(timeline.busy_s[worker])
        # Of what tasks are made of, at their length on this worker.
        scale = busy_s / float(whole_s[worker]) if whole_s[worker] else 0.0
        parts = {name: float(seconds[worker]) * scale for name, seconds in inside.items()}
        own = [span for span in picture.spans if span.worker == worker]
        parts["dp"] = parts.get("dp", 0.0) + sum(s.end_s - s.start_s for s in own if s.lane == "data-parallel")
        parts["pp"] = parts.get("pp", 0.0) + float(timeline.exposed_s[worker])
        update_s = sum(span.end_s - span.start_s for span in own if span.lane == "optimizer")
        compute_s = busy_s - sum(float(seconds[worker]) * scale for seconds in inside.values())
        rest_s = end_s - compute_s - update_s - sum(parts.values())
        # What a worker waits for overlaps what it does where messages hold it up; the wait gives way.
        parts["pp"] += min(rest_s, 0.0)
        row = {"compute": compute_s, **parts, "optimizer": update_s, "bubble": max(rest_s, 0.0)}
        found.append({name: seconds / end_s for name, seconds in row.items() if seconds > 0.0 or name in _ALWAYS})
    return found


_ALWAYS = ("compute", "bubble")


def memory_lines(picture: Picture) -> dict[str, Any] | None:
    """Activations of every worker over time with what else lies in its memory; None where bytes are not known.

    Args:
        picture: the step.
    """
    if not picture.memory:
        return None
    exact = sum(len(line.at_s) for line in picture.memory) <= MOST_CHANGES
    at, live, first, rows = [], [], [0], []
    for worker, line in enumerate(picture.memory):
        moments, size = (line.at_s, line.activations_bytes) if exact else _binned(picture, worker)
        at.append(moments)
        live.append(size)
        first.append(first[-1] + len(moments))
        peak = int(line.activations_bytes.argmax()) if len(line.activations_bytes) else 0
        rows.append(
            {
                "held_bytes": line.held_bytes,
                "transient_bytes": line.transient_bytes,
                "peak_bytes": line.peak_bytes,
                "capacity_bytes": line.capacity_bytes,
                "peak_s": float(line.at_s[peak]) if len(line.at_s) else 0.0,
            }
        )
    # What repeats in a step repeats in what lies between its moments, not in the moments.
    tick_s = (picture.end_s or 1.0) / TICKS
    after = [np.rint(np.diff(moments, prepend=0.0) / tick_s) for moments in at]
    columns = {"after": np.concatenate(after).astype(np.int32), "live_bytes": np.concatenate(live).astype(np.float32)}
    return {"workers": rows, "first": first, "tick_s": tick_s, "lines": deflated(columns), "exact": exact}


def _binned(picture: Picture, worker: int) -> tuple[Float[np.ndarray, " bins"], Float[np.ndarray, " bins"]]:
    """The most of each of equal times."""
    line, edges = picture.memory[worker], np.arange(BINS) * (picture.end_s / BINS)
    most = np.zeros(BINS)
    place = np.minimum((line.at_s / picture.end_s * BINS).astype(int), BINS - 1)
    np.maximum.at(most, place, line.activations_bytes)
    before = np.searchsorted(line.at_s, edges, side="right") - 1
    left = np.where(before >= 0, line.activations_bytes[np.maximum(before, 0)], 0.0)
    return edges, np.maximum(most, left)


def _workers(picture: Picture) -> list[dict[str, Any]]:
    rows = []
    for worker, (name, parts) in enumerate(zip(picture.workers, time_shares(picture), strict=True)):
        chunks = picture.chunks[worker] if picture.chunks else ()
        rows.append(
            {
                "name": name,
                "island": picture.islands[worker] if picture.islands else "",
                "layers": list(chunks),
                "shares": parts,
            }
        )
    return rows


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Order:
    """What the tasks of a table are that compute, however long they take."""

    own: Int[np.ndarray, " tasks"]
    """Among all tasks of the table."""
    first: list[int]
    """The first task of each worker, and the number of tasks."""
    alone: Int[np.ndarray, " tasks_alone"]
    """Tasks that do not run together with the one before them, whose times they would have."""
    worker: Int[np.ndarray, " tasks_alone"]
    classes: list[list[int]]
    """Worker, chunk and kind of tasks that usually take equally long."""
    of_class: Int[np.ndarray, " tasks_alone"]
    one_of: Int[np.ndarray, " classes"]
    """The first task of each class, among those alone; -1 where a class has none."""
    packed: dict[str, Any]


@lru_cache(maxsize=8)
def _order(table: ScheduleTable) -> _Order:
    """The tasks that compute: what stays the same while a slider moves."""
    own = np.flatnonzero(LANE[table.kind] == Lane.COMPUTE)
    worker, kind, chunk = table.worker[own], table.kind[own], table.chunk[own]
    # One number says all three: sorting columns of three takes several times as long.
    shape = table.p, int(chunk.max(initial=0)) + 1, len(Kind)
    keys, of_class = np.unique(np.ravel_multi_index((worker, chunk, kind), shape), return_inverse=True)
    alone = np.arange(len(own)) if table.fused is None else np.flatnonzero(~table.fused[own])
    one_of = np.full(len(keys), -1)
    one_of[of_class[alone][::-1]] = np.arange(len(alone))[::-1]
    columns: dict[str, np.ndarray] = {
        "kind": kind.astype(np.uint8),
        "chunk": chunk.astype(np.uint8),
        "micro_batch": np.diff(table.micro_batch[own], prepend=0).astype(np.int32),
    }
    if table.fused is not None:
        columns["joined"] = table.fused[own].astype(np.uint8)
    return _Order(
        own=own,
        first=np.searchsorted(worker, np.arange(table.p + 1)).tolist(),
        alone=alone,
        worker=worker[alone],
        classes=np.stack(np.unravel_index(keys, shape), axis=1).tolist(),
        of_class=of_class[alone],
        one_of=one_of,
        packed=deflated(columns),
    )


def _tasks(picture: Picture) -> dict[str, Any]:
    """Kind, chunk and micro-batch of every task that computes, with what lies before it; times of kinds apart."""
    timeline, order = picture.timeline, _order(picture.timeline.table)
    alone = order.own[order.alone]
    start_s, end_s = timeline.start_s[alone], timeline.end_s[alone]
    tick_s = (picture.end_s or 1.0) / TICKS
    lasting_s = end_s - start_s
    usual_s = np.where(order.one_of >= 0, np.append(lasting_s, 0.0)[order.one_of], 0.0)
    if len(alone) and np.abs(lasting_s - usual_s[order.of_class]).max() > 0.5 * tick_s:
        usual_s = _middles(lasting_s, order.of_class, len(usual_s))
    gap, beyond = np.zeros((2, len(order.own)), np.int32)
    gap[order.alone], beyond[order.alone] = gaps_and_durations(
        start_s, end_s, usual_s[order.of_class], order.worker, tick_s
    )
    return {
        "count": len(order.own),
        "first": order.first,
        "tick_s": tick_s,
        "usual": [[*key, length] for key, length in zip(order.classes, usual_s.tolist(), strict=True)],
        "order": order.packed,
        "times": deflated({"gap": gap, "beyond": beyond}),
    }


def _middles(
    lasting_s: Float[np.ndarray, " tasks"], of_class: Int[np.ndarray, " tasks"], classes: int
) -> Float[np.ndarray, " classes"]:
    """The middle length of the tasks of each class, the lower one of two; 0 where a class has none."""
    ordered_s = lasting_s[np.lexsort((lasting_s, of_class))]
    count = np.bincount(of_class, minlength=classes)
    middle = np.cumsum(count) - count + np.maximum(count - 1, 0) // 2
    return np.where(count > 0, np.append(ordered_s, 0.0)[middle], 0.0)


def _hops(picture: Picture) -> Mapping[str, list[float]]:
    """Seconds that what each virtual stage sends is under way, forward and backward; 0 where it stays on its worker."""
    forward_s, backward_s = picture.timeline.hops_s().tolist()
    return {"forward": forward_s, "backward": backward_s}


def _critical(timeline: Timeline) -> list[int]:
    """Tasks of the critical path, counted among those that compute, each as its distance from the one before."""
    own = np.flatnonzero(np.isin(timeline.table.kind, _COMPUTING))
    path = np.searchsorted(own, timeline.critical_path().tasks)
    return np.diff(path, prepend=0).tolist()


_COMPUTING = [Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.X, Kind.OPT]
