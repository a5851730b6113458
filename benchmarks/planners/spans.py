"""Costs of stages that are data parallel with whole states: any span of layers on any power of two of devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.planners.profile import PlannedStage, Profile, Proposal
from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.shapes import Float

Costs = tuple[Float[np.ndarray, " ends"], Float[np.ndarray, " ends"], Float[np.ndarray, " ends"]]
"""Seconds of a micro-batch forward and backward, and of the sum of gradients after the last one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Spans:
    """Sums from the first layer on, by devices of a stage."""

    profile: Profile
    global_micro_batch: int
    sizes: tuple[int, ...]
    rows: dict[int, tuple[StageOptions, int]]
    """The table of each size and its one row."""
    until: dict[int, Float[np.ndarray, "costs layers_plus_1"]]
    """Forward, backward, sums, state bytes and kept bytes of the layers before each."""

    @classmethod
    def of(cls, profile: Profile, global_micro_batch: int, recompute: int) -> Spans | None:
        """The sizes that divide a global micro-batch; None where there is none.

        Args:
            profile: of a space with one strategy of each size and recompute.
            global_micro_batch: sequences of a micro-batch.
            recompute: number of it.
        """
        kinds = profile.inputs.model.kinds()
        own = [kinds.index(kind) for kind in profile.inputs.model.layers()]
        rows, until = {}, {}
        for size in profile.sizes:
            table = profile.table(size, global_micro_batch)
            if table is None or recompute not in table.recompute:
                continue
            row = int(np.flatnonzero(table.recompute == recompute)[0])
            rows[size] = table, row
            each = [
                part[row, own]
                for part in (table.forward_s, table.backward_s, table.sync_s, table.state_bytes, table.kept_bytes)
            ]
            until[size] = np.concatenate([np.zeros((5, 1)), np.cumsum(each, axis=1)], axis=1)
        if not rows:
            return None
        return cls(profile=profile, global_micro_batch=global_micro_batch, sizes=tuple(rows), rows=rows, until=until)

    def costs(self, first: int | np.ndarray, end: int | np.ndarray, size: int) -> Costs:
        """Of the layers first .. end - 1, with embedding or head where they are at an end of the model.

        Args:
            first: layer, or several.
            end: behind the last layer, or several.
            size: devices of the stage.
        """
        (table, row), until = self.rows[size], self.until[size]
        at_first, at_end = np.asarray(first) == 0, np.asarray(end) == self.profile.layers
        found = []
        for number, part in enumerate((table.forward_s, table.backward_s, table.sync_s)):
            edges = at_first * part[row, -2] + at_end * part[row, -1]
            found.append(np.asarray(until[number][end] - until[number][first] + edges))
        return found[0], found[1], found[2]

    def hop(self, devices: int) -> Costs:
        """A transfer as a stage of its own.

        Args:
            devices: of the smaller neighbour.
        """
        half = np.array([self.profile.hop_s(devices, self.global_micro_batch) / 2])
        return half, half, np.zeros(1)

    def rest(self, firsts: np.ndarray, end: int, devices: int) -> Costs:
        """Layers on any number of devices: those of the next smaller size, spread further.

        Args:
            firsts: layers that it may start at.
            end: behind the last.
            devices: of it.
        """
        size = max((size for size in self.sizes if size <= devices), default=self.sizes[0])
        forward, backward, sums = self.costs(firsts, end, size)
        return forward * size / devices, backward * size / devices, sums

    def room(self, first: np.ndarray, end: np.ndarray, size: int, in_flight: int) -> np.ndarray:
        """Which spans fit; arguments as `costs`.

        Args:
            first: layers.
            end: behind the last layers.
            size: devices of the stage.
            in_flight: micro-batches that it keeps.
        """
        (table, row), (*_, state, kept) = self.rows[size], self.until[size]
        held = state + in_flight * kept
        edge = table.state_bytes[row, -2:] + in_flight * table.kept_bytes[row, -2:]
        edges = (first == 0) * edge[0] + (end == self.profile.layers) * edge[1]
        fixed = table.fixed_bytes[row] + table.transient_bytes[row, :-2].max()
        return np.asarray(held[end] - held[first] + edges + fixed <= self.profile.room_bytes)

    def fits(self, first: int, end: int, size: int, in_flight: int) -> bool:
        """Whether a stage fits with so many micro-batches in flight.

        Args:
            first: layer.
            end: behind the last.
            size: devices.
            in_flight: micro-batches.
        """
        if size not in self.rows:
            return False
        table, row = self.rows[size]
        counts = self.profile.counts(first, end)
        own = table.take(np.array([row]))
        return float(self.profile.bytes_of(own, counts, in_flight)[0]) <= self.profile.room_bytes

    def proposal(self, ends: tuple[tuple[int, int], ...], step_s: float) -> Proposal:
        """Stages that end behind these layers and devices.

        Args:
            ends: (layers, devices) up to the end of each stage.
            step_s: as the planner sees it.
        """
        starts = [(0, 0), *ends]
        return Proposal(
            stages=tuple(
                PlannedStage(
                    first=start[0],
                    devices=end[1] - start[1],
                    rows=(self.rows[end[1] - start[1]][1],) * (end[0] - start[0]),
                )
                for start, end in zip(starts, ends, strict=False)
            ),
            global_micro_batch=self.global_micro_batch,
            step_s=step_s,
        )
