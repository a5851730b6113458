"""Galvatron: a strategy for every layer of a stage by a knapsack over memory, stages balanced in both.

    C(l, E) = min over strategies S of  C(l - 1, E - O(l, S)) + c(l, S) + R(l, S_{l-1}, S)
    step    = sum of stages + (micro-batches - 1) x slowest stage

Pipeline degrees and micro-batches are powers of two; layers start even and move from the slowest stage to a neighbour
while the step shrinks.

Source: Miao et al., "Galvatron", VLDB 2022, section 4; Wang et al., "Improving Automatic Parallel Training via Balanced
Memory Workload Optimization" (Galvatron-BMW), TKDE 2024, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.planners.profile import PlannedStage, Profile, Proposal
from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.search.layer_programs import LayerOptions, StagePrograms
from meshwright.search.space import Space

Solved = tuple[float, tuple[int, ...]]
"""Seconds of a micro-batch and the row of each layer."""


@dataclass(slots=True)
class Galvatron:
    """Per-layer strategies over tensor and data degrees, ZeRO and recompute."""

    name: str = "Galvatron"
    source: str = "VLDB 2022, TKDE 2024"
    searches: str = "a knapsack over the layers of each stage, stages balanced by moving border layers"
    leaves_out: str = "its fixed slowdown of 1.3 where compute and communication overlap: our prices have their own"
    space: Space = field(
        default_factory=lambda: Space(
            pins=(
                ("recompute", ("none", "sel", "full")),
                ("sharding", ("z0", "z1", "z2", "z3")),
                ("tp_overlap", ("bulk",)),
                ("cp", (1,)),
            )
        )
    )

    def proposals(self, profile: Profile) -> Iterator[Proposal]:
        """The best of every number of stages and every micro-batch."""
        if len(profile.inputs.model.kinds()) > 1:
            return  # its programs are of layers of one kind
        for stages, global_micro_batch, table in profile.equal_stages():
            found = _Stages(profile, table, stages, global_micro_batch).balanced()
            if found is not None:
                yield found


class _Stages:
    """Stages of equal devices, each with the strategies that a knapsack finds for its layers."""

    def __init__(self, profile: Profile, table: StageOptions, stages: int, global_micro_batch: int) -> None:
        self.profile, self.stages, self.global_micro_batch = profile, stages, global_micro_batch
        self.devices = profile.devices // stages
        self.micro_batches = profile.micro_batches(global_micro_batch)
        self.programs = StagePrograms(
            layer_options(table, self.micro_batches, profile.hop_s(self.devices, global_micro_batch)),
            profile.room_bytes,
        )
        self._solved: dict[tuple[int, int], Solved | None] = {}

    def balanced(self) -> Proposal | None:
        """Even layers first, then a layer from the slowest stage to a neighbour while that helps."""
        layers, stages = self.profile.layers, self.stages
        counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
        best = self._proposal(counts)
        while best is not None:
            times = [self._stage(place, count) for place, count in enumerate(counts)]
            slowest = max(range(stages), key=lambda place: times[place][0] if times[place] else 0.0)  # type: ignore[index]
            tried = []
            for other in (slowest - 1, slowest + 1):
                if 0 <= other < stages and counts[slowest] > 1:
                    moved = list(counts)
                    moved[slowest] -= 1
                    moved[other] += 1
                    if (found := self._proposal(moved)) is not None:
                        tried.append((found.step_s, moved, found))
            if not tried or min(tried)[0] >= best.step_s:
                break
            _, counts, best = min(tried, key=lambda one: one[0])
        return best

    def _stage(self, place: int, layers: int) -> Solved | None:
        # All stages between the ends differ in what they keep in flight only.
        in_flight = min(self.stages - place, self.micro_batches)
        ends = place == 0, place == self.stages - 1
        key = (place, layers)
        if key not in self._solved:
            found = self.programs.best(layers, in_flight, *ends)
            self._solved[key] = None if found is None else (found[0], tuple(found[1]))
        return self._solved[key]

    def _proposal(self, counts: list[int]) -> Proposal | None:
        solved = [self._stage(place, count) for place, count in enumerate(counts)]
        known = [one for one in solved if one is not None]
        if len(known) < len(solved):
            return None
        times = [seconds for seconds, _ in known]
        hops = self.profile.hop_s(self.devices, self.global_micro_batch) * (self.stages - 1)
        firsts = np.concatenate([[0], np.cumsum(counts)])
        return Proposal(
            stages=tuple(
                PlannedStage(first=int(first), devices=self.devices, rows=rows)
                for first, (_, rows) in zip(firsts, known, strict=False)
            ),
            global_micro_batch=self.global_micro_batch,
            step_s=sum(times) + hops + (self.micro_batches - 1) * max(times),
        )


def layer_options(table: StageOptions, micro_batches: int, move_s: float) -> LayerOptions:
    """A table of one kind of layer as the knapsack reads it.

    Args:
        table: of the devices of a stage.
        micro_batches: of a step, which share what happens once.
        move_s: between layers whose activations are spread differently.
    """
    each = table.once_s + table.sync_s / micro_batches
    split = table.grid.tp
    more = np.maximum(table.transient_bytes[:, 1:] - table.transient_bytes[:, :1], 0.0)
    return LayerOptions(
        strategies=tuple(table.plan_row(row, 1).strategy() for row in range(len(table))),
        time_s=each[:, 0],
        forward_s=table.forward_s[:, 0],
        sync_s=table.sync_s[:, 0],
        edge_s=each[:, 1:],
        edge_forward_s=table.forward_s[:, 1:],
        state_bytes=table.state_bytes[:, 0],
        kept_bytes=table.kept_bytes[:, 0],
        transient_bytes=table.fixed_bytes + table.transient_bytes[:, 0],
        edge_bytes=more + table.state_bytes[:, 1:] + table.kept_bytes[:, 1:],
        micro_batches=micro_batches,
        group=np.searchsorted(np.unique(split), split),
        move_s=move_s,
    )
