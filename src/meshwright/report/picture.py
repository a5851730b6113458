"""A simulated step as columns that every drawing of it shares: tasks, transfers, phases, memory.

The trace, the SVG and the text for terminals differ only in how they write these down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from meshwright.schedules import Kind, Timeline
from meshwright.schedules.kinds import LANE, Lane
from meshwright.schedules.timeline import Transfers
from meshwright.shapes import Bool, Float, Int
from meshwright.units import significant

WORDS = {
    Kind.F: "forward",
    Kind.B: "backward",
    Kind.I: "input gradient",
    Kind.W: "weight gradient",
    Kind.R: "recompute",
    Kind.X: "redundant forward",
    Kind.OPT: "optimizer",
}
"""Kinds of tasks as a legend says them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What a worker does behind its pipeline: sums of gradients, the optimizer."""

    worker: int
    name: str
    start_s: float
    end_s: float
    lane: str


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MemoryLine:
    """Bytes on one worker: from each moment to the next."""

    at_s: Float[np.ndarray, " changes"]
    activations_bytes: Float[np.ndarray, " changes"]
    held_bytes: float
    """Bytes that stay the same all the time: states, buffers, overhead."""
    transient_bytes: float
    """Working memory, counted all the time as the estimate does."""
    capacity_bytes: float

    @property
    def peak_bytes(self) -> float:
        """The most of all kinds together."""
        return self.held_bytes + self.transient_bytes + float(self.activations_bytes.max(initial=0.0))


@dataclass(frozen=True, eq=False, kw_only=True)
class Picture:
    """One step, ready to be drawn."""

    title: str
    timeline: Timeline
    workers: tuple[str, ...]
    """What each worker is: `stage 0: layers 0-19, 16 x H100`."""
    chunks: tuple[tuple[str, ...], ...] = ()
    """What each chunk of each worker holds; empty for a schedule of its own."""
    spans: tuple[Span, ...] = ()
    memory: tuple[MemoryLine, ...] = ()
    """Memory of each worker; empty where bytes are not known."""

    noun: str = "worker"
    """What a row is called."""
    islands: tuple[str, ...] = ()
    """The group of nodes that holds each worker; empty for a schedule of its own."""
    parts_s: Mapping[str, Float[np.ndarray, " workers"]] = field(default_factory=dict)
    """What each worker's tasks are made of, as `StepTimeline` has it."""

    @property
    def end_s(self) -> float:
        """End of the step."""
        return max([self.timeline.makespan_s, *(span.end_s for span in self.spans)])

    @cached_property
    def transfers(self) -> Transfers:
        """What crosses between workers."""
        return self.timeline.transfers()

    @cached_property
    def computed(self) -> Int[np.ndarray, " compute_tasks"]:
        """Tasks that compute: all but messages, collectives and copies to and from the host."""
        return np.flatnonzero(LANE[self.timeline.table.kind] == Lane.COMPUTE)

    @cached_property
    def joined(self) -> Bool[np.ndarray, " tasks"]:
        """True for tasks that run together with the one before them."""
        fused = self.timeline.table.fused
        return np.zeros(self.timeline.table.tasks, bool) if fused is None else fused


def paler(picture: Picture) -> str:
    """What a paler colour means: later chunks, another pipeline through the same workers, or nothing: "".

    Args:
        picture: the step.
    """
    table = picture.timeline.table
    if table.v == 1:
        return ""
    chains = table.placement.chains
    if chains == 1:
        return "paler: later chunks"
    several = "the pipeline in the other direction" if chains == 2 else f"the other {chains - 1} pipelines"
    return f"paler: {several}" + ("" if table.v == chains else ", and later chunks")


def schedule_picture(run: Mapping[str, Any], timeline: Timeline) -> Picture:
    """A schedule of its own as a picture.

    Args:
        run: a `meshwright.schedule/1`.
        timeline: the same, simulated.
    """
    bubble = f"{run['bubble_makespan']:.1%} idle"
    return Picture(
        title=f"{run['name']}, p {run['p']}, m {run['m']}, v {run['v']}: {significant(run['makespan_s'])} s, {bubble}",
        timeline=timeline,
        workers=tuple(f"worker {number}" for number in range(timeline.table.p)),
    )


def lanes_of(start: Int[np.ndarray, " spans"], end: Int[np.ndarray, " spans"]) -> Int[np.ndarray, " spans"]:
    """The lane of each span, so that no two of one lane overlap: the lowest that is free.

    Args:
        start: the start in ascending order.
        end: the ends, numbered like the starts.
    """
    lane = np.zeros(len(start), np.int64)
    if not np.any(start[1:] < np.maximum.accumulate(end)[:-1]):
        return lane
    free: list[int] = []
    for at, (begin, stop) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        found = next((number for number, until in enumerate(free) if until <= begin), len(free))
        if found == len(free):
            free.append(stop)
        free[found] = stop
        lane[at] = found
    return lane


def time_unit(end_s: float) -> tuple[float, str]:
    """The unit in which an axis of this length is labelled, in seconds, and its name."""
    return next(((size, name) for size, name in ((1.0, "s"), (1e-3, "ms")) if end_s >= size), (1e-6, "µs"))


def ticks(end: float, most: int = 12) -> list[float]:
    """Round numbers from 0 to the end of an axis, at most so many after 0: multiples of 1, 2 or 5 and a power of 10."""
    if end <= 0:
        return [0.0]
    power = 10.0 ** np.floor(np.log10(end / most))
    step = float(next(power * round_ for round_ in (1, 2, 5, 10) if power * round_ * most >= end * (1 - 1e-9)))
    return [step * number for number in range(int(end / step * (1 + 1e-9)) + 1)]


def ticks_between(start: float, end: float, most: int = 12) -> list[float]:
    """Round numbers from one end of an axis to the other, spaced as `ticks` spaces them."""
    step = (*ticks(end - start, most), end)[1]
    first, last = np.ceil(start / step * (1 - 1e-9)), np.floor(end / step * (1 + 1e-9))
    return [step * number for number in range(int(first), int(last) + 1)]
