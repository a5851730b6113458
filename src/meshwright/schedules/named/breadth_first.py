"""Breadth-first pipelines: every chunk runs all micro-batches before the next chunk starts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.parameters import flag
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Int


@dataclass(frozen=True, kw_only=True)
class BreadthFirst(Schedule):
    """Forwards chunk after chunk, each with all micro-batches; then backwards likewise, last chunk first.

    Time ((v - 1)*max(m, p) + m + p - 1)*(f + b)/v with equal stages, f and b per full worker share: the bubble of
    interleaving from m = p on. Every worker keeps all m*v activations of its chunks, but uses the parameters of a chunk
    in one stretch per direction, so that sharded data parallelism gathers them twice per step.
    Source: Lamy-Poirier, "Breadth-First Pipeline Parallelism", MLSys 2023.
    """

    reverse: bool = flag("Backwards take the last micro-batch first, as PyTorch's ScheduleLoopedBFS does.")

    name = "breadth-first"
    aliases: ClassVar[tuple[str, ...]] = ("bfs", "looped-bfs")
    title = "breadth-first: chunk after chunk, all micro-batches each"
    source = "Lamy-Poirier, Breadth-First Pipeline Parallelism, MLSys 2023"
    traffic = "v times the boundaries of one chunk per worker, with a wrap from the last worker to the first"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """((v - 1)*max(m, p) + m + p - 1) * (forward_s + backward_s) / v."""
        return ((v - 1) * max(m, p) + m + p - 1) * (forward_s + backward_s) / v

    def last_passes(self, p: int, m: int, v: int) -> float:
        """(1 + (v - 1) m) / v: behind the last backward of one chunk, all micro-batches pass each of the others."""
        return (1 + (v - 1) * m) / v

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        if v > 1 or p == 1:
            return []
        why = "breadth-first runs two chunks per worker or more, one after the other"
        return [Problem(what=f"{self.name}: v = {v}", why=why, fix="v = 2, or schedule gpipe", field="v")]

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        worker = np.repeat(np.arange(p, dtype=np.int32), 2 * m * v)
        chunks = np.repeat(np.arange(v, dtype=np.int32), m)
        units = np.tile(np.arange(m, dtype=np.int32), v)
        return ScheduleTable(
            placement=self.placement(p, v),
            micro_batches=(m,),
            worker=worker,
            kind=np.tile(np.repeat(np.array([Kind.F, Kind.B], np.int32), m * v), p),
            stage=np.tile(np.concatenate([chunks, v - 1 - chunks]), p) * p + worker,
            micro_batch=np.tile(np.concatenate([units, m - 1 - units if self.reverse else units]), p),
        )

    def _in_flight(self, p: int, m: int, v: int) -> tuple[Int[np.ndarray, "vectors chunks"], ...]:
        return (np.full((1, v), m),) * p

    def _in_flight_for(self, p: int, m: int, v: int) -> int:
        return m
