"""The time of a pipeline set: pipelines of unequal shape, each at its own pace, that meet once a step.

    T = max over pipelines of (m - 1) max_i(comp_i + c_i) + sum_i(comp_i + c_i)  +  max update  +  sync

The terms are those of Sailor's simulator; where all pipelines are equal the two agree. What is added for unequal ones
stands in `pipeline_pace` (replicas inside a stage), `rests` (smaller micro-batches at the end: sequences are shared so
that the last pipeline ends as early as possible) and `gradient_rings` (unlike cuts).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.gradient_rings import Held, slowest_sync_s
from meshwright.planning.compose.sources.profiles.pipeline_pace import PipelinePace, PipelinePacer
from meshwright.planning.compose.sources.profiles.pipeline_set import EqualPipelines, PipelineShape, ShapeSet
from meshwright.planning.compose.sources.profiles.rests import Rests

_LEAST_STEP = 1e-12
"""Smallest relative gain in time that counts: rounding may hide less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTime:
    """Seconds of one step and its parts; the parts sum to it."""

    pipeline_s: float
    update_s: float
    sync_s: float
    sequences: tuple[int, ...]
    """Most that one pipeline of each part has time for."""

    @property
    def step_time_s(self) -> float:
        """The step."""
        return self.pipeline_s + self.update_s + self.sync_s


class SetPricer:
    """Prices pipeline sets of one job; every shape once."""

    def __init__(self, costs: ProfileCosts, global_batch: int) -> None:
        self.costs = costs
        self.global_batch = global_batch
        self.counts = tuple(kind.count for kind in costs.kinds.values())
        self._pacer = PipelinePacer(costs)

    def limited(self, counts: Sequence[int]) -> SetPricer:
        """A pricer of the same job on fewer devices of each kind."""
        other = SetPricer(self.costs, self.global_batch)
        other.counts, other._pacer = tuple(counts), self._pacer
        return other

    def pace(self, shape: PipelineShape) -> PipelinePace | None:
        """What a pipeline takes; None where a point was not profiled or a stage does not fit."""
        return self._pacer.pace(shape)

    def rests(self, shape: PipelineShape) -> Rests:
        """What a pipeline that can run trains by a time."""
        return self._pacer.rests(shape)

    def price(self, one_set: ShapeSet, below_s: float = math.inf) -> SetTime | None:
        """The step; None where a pipeline cannot run, devices do not suffice or it takes too long.

        Args:
            one_set: the pipeline set, of at least one part.
            below_s: time from which on nobody wants to know; most pipeline sets reach it without their gradients.
        """
        parts = one_set.parts
        paces = [pace for part in parts if (pace := self._pacer.pace(part.shape)) is not None]
        if len(paces) < len(parts) or any(count < 0 for count in self.free(parts, paces)):
            return None
        # What the batch takes if filling costs nothing.
        rests = [self._pacer.rests(part.shape) for part in parts]
        most = sum(part.pipelines * table.most_per_s for part, table in zip(parts, rests, strict=True))
        if self.global_batch / most >= below_s:
            return None
        pipeline_s, sequences = self._last_end(parts, rests)
        if pipeline_s >= below_s:
            return None
        held = [Held(part.pipelines, pace.cuts, part.shape.stages) for part, pace in zip(parts, paces, strict=True)]
        return SetTime(
            pipeline_s=pipeline_s,
            update_s=max(pace.update_s for pace in paces),
            sync_s=slowest_sync_s(self.costs, held),
            sequences=tuple(sequences),
        )

    def free(self, parts: tuple[EqualPipelines, ...], paces: list[PipelinePace]) -> list[int]:
        """Devices of each kind that some pipelines leave; below zero where they want more than there are.

        Args:
            parts: the parts of a pipeline set.
            paces: the paces of their shapes.
        """
        left = list(self.counts)
        for part, pace in zip(parts, paces, strict=True):
            for kind, used in enumerate(pace.used):
                left[kind] -= part.pipelines * used
        return left

    def _last_end(self, parts: tuple[EqualPipelines, ...], tables: list[Rests]) -> tuple[float, list[int]]:
        """The earliest time by which all pipelines together have done the batch, and what each has done."""
        numbers = [part.pipelines for part in parts]
        # If micro-batches could be cut anywhere, and only those that fill in time took part: below the end, from
        # where the steps are exact.
        end_s, rate, wanted = math.inf, 0.0, float(self.global_batch)
        for table, number in sorted(zip(tables, numbers, strict=True), key=lambda one: one[0].fill_s):
            own_rate = number * table.micro_batch / table.slowest_s
            rate += own_rate
            wanted += own_rate * table.fill_s - number * table.ahead
            end_s = min(end_s, max(0.0, wanted / rate))
        while True:
            done, waits_s = zip(*(table.by(end_s) for table in tables), strict=True)
            if sum(n * sequences for n, sequences in zip(numbers, done, strict=True)) >= self.global_batch:
                return max(table.time_s(count) for table, count in zip(tables, done, strict=True)), list(done)
            end_s += max(min(waits_s), _LEAST_STEP * end_s)
