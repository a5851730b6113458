"""The timeline: every task of one step as columns, what its stages spend their time on, the critical path, memory."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.report.page.packed import TICKS, deflated, gaps_and_durations
from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.picture import Picture, paler
from meshwright.schedules import Kind, Timeline
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
        plan: whose step is drawn.
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
    columns = {"at_s": np.concatenate(at).astype(np.float32), "live_bytes": np.concatenate(live).astype(np.float32)}
    return {"workers": rows, "first": first, "lines": deflated(columns), "exact": exact}


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


def _tasks(picture: Picture) -> dict[str, Any]:
    """Kind, chunk and micro-batch of every task that computes, with what lies before it; times of kinds apart."""
    timeline, own = picture.timeline, picture.computed
    table = timeline.table
    worker, kind, chunk = table.worker[own], table.kind[own], table.chunk[own]
    joined = picture.joined[own]
    lasting_s = np.where(joined, 0.0, (timeline.end_s - timeline.start_s)[own])
    # One number says all three: sorting columns of three takes several times as long.
    shape = table.p, int(chunk.max(initial=0)) + 1, len(Kind)
    keys, of_class = np.unique(np.ravel_multi_index((worker, chunk, kind), shape), return_inverse=True)
    classes = np.stack(np.unravel_index(keys, shape))
    usual_s = _middles(lasting_s[~joined], of_class[~joined], classes.shape[1])
    tick_s = (picture.end_s or 1.0) / TICKS
    first = np.searchsorted(worker, np.arange(table.p + 1))
    gap, beyond = np.zeros(len(own), np.int64), np.zeros(len(own), np.int64)
    for low, behind in pairwise(first):
        # A task that runs together with the one before it has its times.
        alone = low + np.flatnonzero(~joined[low:behind])
        gap[alone], beyond[alone] = gaps_and_durations(
            timeline.start_s[own][alone], timeline.end_s[own][alone], usual_s[of_class[alone]], tick_s
        )
    columns = {
        "kind": kind.astype(np.uint8),
        "chunk": chunk.astype(np.uint8),
        "micro_batch": np.diff(table.micro_batch[own], prepend=0).astype(np.int32),
        "gap": gap.astype(np.int32),
        "beyond": beyond.astype(np.int32),
    }
    if joined.any():
        columns["joined"] = joined.astype(np.uint8)
    return {
        "count": len(own),
        "first": first.tolist(),
        "tick_s": tick_s,
        "usual": [[*map(int, key), float(length)] for key, length in zip(classes.T, usual_s, strict=True)],
        "packed": deflated(columns),
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
    table, found = picture.timeline.table, picture.transfers
    seconds = {name: np.zeros(table.placement.stages) for name in ("forward", "backward")}
    stage = table.stage[found.producer]
    for name, which in (("forward", ~found.gradient), ("backward", found.gradient)):
        np.maximum.at(seconds[name], stage[which], (found.end_s - found.start_s)[which])
    return {name: values.tolist() for name, values in seconds.items()}


def _critical(timeline: Timeline) -> list[int]:
    """Tasks of the critical path, counted among those that compute, each as its distance from the one before."""
    own = np.flatnonzero(np.isin(timeline.table.kind, _COMPUTING))
    path = np.searchsorted(own, timeline.critical_path().tasks)
    return np.diff(path, prepend=0).tolist()


_COMPUTING = [Kind.F, Kind.B, Kind.I, Kind.W, Kind.R, Kind.X, Kind.OPT]
