"""Stages by dynamic programming: the least sum of stage times under a bound of the slowest, for every useful bound.

Stages take consecutive devices in the order of the pipeline, each in one host or on whole hosts, and all devices are
used. Stage s from the end holds min(s, micro-batches) micro-batches (1F1B).

Source: Zheng et al. (OSDI 2022), section 5.2: T = min over t_max of sum_i t_i + (B - 1) t_max. Here t_i has the time
of sending in it: there and back in the sum, one way in the maximum, as two neighbours that take turns under 1F1B wait
for each other's messages once for every micro-batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.compiler.stages.islands import Row, Submesh
from meshwright.compiler.stages.ranges import LayerRanges
from meshwright.shapes import Float, Int

MOST_STAGES = 16
CLOSE = 0.005
"""Bounds of the slowest stage that are nearer than this share are not tried one by one."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class PartitionTimes:
    """Seconds of layers a to b on a submesh as the s-th stage from the end, by the best variant that fits."""

    total_s: Float[np.ndarray, "stages submeshes layers layers"]
    variant: Int[np.ndarray, "stages submeshes layers layers"]


@dataclass(frozen=True, slots=True)
class StageChoice:
    """One stage."""

    first: int
    last: int
    """Layers, both included."""
    device: int
    """Place of the first one along the row."""
    submesh: int
    variant: int


def stage_times(ranges: LayerRanges, memory_bytes: Sequence[float], micro_batches: int, stages: int) -> PartitionTimes:
    """The quickest variant of each range that fits into memory, by its place in the pipeline.

    Args:
        ranges: columns of all variants.
        memory_bytes: the bytes of memory of one device of each submesh.
        micro_batches: the number of micro-batches of a step.
        stages: the most stages.
    """
    owner = np.array([variant.submesh for variant in ranges.variants])
    shape = (stages, len(memory_bytes), *ranges.total_s.shape[1:])
    total, chosen = np.full(shape, np.inf), np.zeros(shape, np.int64)
    for s in range(stages):
        held = ranges.state_bytes + min(s + 1, micro_batches) * ranges.kept_bytes + ranges.transient_bytes
        for k, limit in enumerate(memory_bytes):
            own = np.flatnonzero(owner == k)
            fitting = np.where(held[own] <= limit, ranges.total_s[own], np.inf)
            best = fitting.argmin(axis=0)
            chosen[s, k] = own[best]
            total[s, k] = np.take_along_axis(fitting, best[None], axis=0)[0]
    return PartitionTimes(total_s=total, variant=chosen)


def stage_partitions(
    costs: PartitionTimes,
    crossing_bytes: Float[np.ndarray, " layers_less_1"],
    row: Row,
    submeshes: Sequence[Submesh],
    micro_batches: int,
) -> list[tuple[float, tuple[StageChoice, ...]]]:
    """Stages for each bound of the slowest that is worth trying, best first.

    Args:
        costs: the costs of ranges.
        crossing_bytes: passed on behind each layer.
        row: the row of devices, of the stages.
        submeshes: the submeshes that a stage may have.
        micro_batches: the number of micro-batches of a step.
    """
    table = _StageTable(costs, crossing_bytes, row, submeshes)
    free = table.solve(np.inf)
    if free is None:
        return []
    bounds = table.paces()
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if table.solve(bounds[middle]) is not None else (middle + 1, high)
    found: list[tuple[float, tuple[StageChoice, ...]]] = []
    best, place = np.inf, low
    while place < len(bounds) and free[0] + (micro_batches - 1) * bounds[place] < best:
        # Of bounds that are close the loosest is solved: no plan within the others is slower by more than their spread.
        behind = int(np.searchsorted(bounds, bounds[place] * (1.0 + CLOSE), side="right"))
        solved = table.solve(bounds[behind - 1])
        assert solved is not None
        summed, choices, slowest = solved
        step_s = summed + (micro_batches - 1) * slowest
        if not found or choices != found[-1][1]:
            found.append((step_s, choices))
        best = min(best, step_s)
        place = behind
    return sorted(found, key=lambda one: one[0])


def any_partition(
    costs: PartitionTimes, crossing_bytes: Float[np.ndarray, " layers_less_1"], row: Row, submeshes: Sequence[Submesh]
) -> tuple[StageChoice, ...] | None:
    """The stages of the least sum of times; None where there are none at all.

    Args:
        costs: the costs of ranges.
        crossing_bytes: passed on behind each layer.
        row: the row of devices, of the stages.
        submeshes: the submeshes that a stage may have.
    """
    found = _StageTable(costs, crossing_bytes, row, submeshes).solve(np.inf)
    return None if found is None else found[1]


class _StageTable:
    """Least seconds of the last layers on the last devices."""

    def __init__(
        self,
        costs: PartitionTimes,
        crossing_bytes: Float[np.ndarray, " layers_less_1"],
        row: Row,
        submeshes: Sequence[Submesh],
    ) -> None:
        self.costs, self.submeshes = costs, submeshes
        self.stages, _, self.layers, _ = costs.total_s.shape
        self.devices = row.devices
        # Whether a stage may end before the last d devices, and what handing on to them takes there and back.
        left = range(self.devices + 1)
        self.allowed = np.array(
            [
                [d + own.devices <= self.devices and row.fits(self.devices - d - own.devices, own) for d in left]
                for own in submeshes
            ]
        )
        self.hop_s = np.zeros((len(submeshes), self.layers - 1, self.devices + 1))
        for k, own in enumerate(submeshes):
            for d in np.flatnonzero(self.allowed[k, 1:]) + 1:
                first = self.devices - int(d)
                after = row.behind(first, own)
                self.hop_s[k, :, d] = [2.0 * row.hop_s(size, first, own, after) for size in crossing_bytes]

    def paces(self) -> Float[np.ndarray, " bounds"]:
        """Every time of a stage and the message behind it, in order."""
        time = self.costs.total_s
        found = [time[:, :, :, -1].ravel()]
        for k in range(len(self.submeshes)):
            for sending_s in np.unique(self.hop_s[k], axis=1).T / 2:
                found.append((time[1:, k, :, :-1] + sending_s).ravel())
        paces = np.concatenate(found)
        return np.unique(paces[np.isfinite(paces)])

    def solve(self, slowest_s: float) -> tuple[float, tuple[StageChoice, ...], float] | None:
        """Least sum of stage and sending times with no stage above a bound: sum, stages, and the slowest of them.

        Args:
            slowest_s: the bound.
        """
        layers, devices = self.layers, self.devices
        time = self.costs.total_s
        least = np.full((self.stages, layers, devices + 1), np.inf)
        origin = np.zeros((self.stages, layers, devices + 1, 2), np.int64)
        for k, n in enumerate(own.devices for own in self.submeshes):
            if self.allowed[k, 0]:
                own = np.where(time[0, k, :, -1] <= slowest_s, time[0, k, :, -1], np.inf)
                better = own < least[0, :, n]
                least[0, better, n] = own[better]
                origin[0, better, n] = (k, layers - 1)
        for s in range(1, self.stages):
            for k, n in enumerate(own.devices for own in self.submeshes):
                # rest[b, d]: the stages behind layer b on the last d devices.
                rest = np.where(self.allowed[k], least[s - 1, 1:] + self.hop_s[k], np.inf)[:, : devices + 1 - n]
                useful = np.flatnonzero(np.isfinite(rest).any(axis=0))
                if not len(useful):
                    continue
                stage = time[s, k, :, :-1, None]
                slow = stage + self.hop_s[k][None, :, useful] / 2 > slowest_s
                sums = np.where(slow, np.inf, stage + rest[None, :, useful])
                best = sums.argmin(axis=1)
                value = np.take_along_axis(sums, best[:, None], axis=1)[:, 0]
                here = least[s][:, useful + n]
                better = value < here
                least[s][:, useful + n] = np.where(better, value, here)
                origin[s][:, useful + n, 0] = np.where(better, k, origin[s][:, useful + n, 0])
                origin[s][:, useful + n, 1] = np.where(better, best, origin[s][:, useful + n, 1])
        s = int(least[:, 0, devices].argmin())
        summed = float(least[s, 0, devices])
        if not np.isfinite(summed):
            return None
        choices: list[StageChoice] = []
        layer, left, most = 0, devices, 0.0
        for s_left in range(s, -1, -1):
            k, last = (int(number) for number in origin[s_left, layer, left])
            choices.append(StageChoice(layer, last, devices - left, k, int(self.costs.variant[s_left, k, layer, last])))
            behind = left - self.submeshes[k].devices
            sending_s = float(self.hop_s[k, last, behind]) / 2 if s_left else 0.0
            most = max(most, float(time[s_left, k, layer, last]) + sending_s)
            layer, left = last + 1, behind
        return summed, tuple(choices), most
