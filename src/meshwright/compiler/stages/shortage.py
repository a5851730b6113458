"""What the memory of devices lacks where no plan fits: which stage, and how much."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.compiler.stages.islands import Islands, Row, Submesh
from meshwright.compiler.stages.partition import StageChoice, any_partition, stage_times
from meshwright.compiler.stages.ranges import LayerRanges
from meshwright.errors import Problem
from meshwright.shapes import Float

CLOSE = 1.01
"""Ratio up to which the memory that would do is found."""
BEYOND = 1e6
"""Times the memory of devices, beyond which it is not looked for."""
LOOKED_INTO = 4
"""Attempts whose shortage is reported: the last ones have the smallest micro-batches."""


@dataclass(frozen=True, slots=True)
class Shortage:
    """A stage that does not fit."""

    number: int
    layers: tuple[int, int]
    devices: int
    in_flight: int
    """Micro-batches."""
    bytes: float
    """Least bytes that it needs on a device."""
    limit_bytes: float
    """Memory of a device."""

    @property
    def share(self) -> float:
        """Times the memory of a device."""
        return self.bytes / self.limit_bytes

    def __str__(self) -> str:
        first, last = self.layers
        on = "1 device" if self.devices == 1 else f"{self.devices} devices"
        return (
            f"stage {self.number} (layers {first}-{last} on {on}, {self.in_flight} in flight) needs at least"
            f" {self.bytes:.4g}, {self.bytes - self.limit_bytes:.4g} more than there is"
        )


def shortage_of(
    ranges: LayerRanges,
    number: int,
    layers: tuple[int, int],
    submesh: Submesh,
    place: int,
    in_flight: int,
    islands: Islands,
) -> Shortage:
    """What a stage needs at least.

    Args:
        ranges: columns of all variants.
        number: the number of the stage.
        layers: first and last.
        submesh: its devices.
        place: the place of the submesh in the list of submeshes.
        in_flight: micro-batches whose activations it holds.
        islands: the islands of the submesh.
    """
    own = [at for at, variant in enumerate(ranges.variants) if variant.submesh == place]
    held = ranges.state_bytes + in_flight * ranges.kept_bytes + ranges.transient_bytes
    needed = float(held[own, layers[0], layers[1]].min())
    return Shortage(number, layers, submesh.devices, in_flight, needed, islands.groups[submesh.group].limit_bytes)


def least_shortage(
    ranges: LayerRanges, crossing_bytes: Float[np.ndarray, " layers_less_1"], row: Row, micro_batches: int, stages: int
) -> Shortage | None:
    """The stage that needs most in the partition that needs least; None where no memory would do.

    Args:
        ranges: columns of all variants, of all submeshes.
        crossing_bytes: passed on behind each layer.
        row: the row of devices, of the stages.
        micro_batches: the number of micro-batches of a step.
        stages: the most stages.
    """
    submeshes = row.islands.submeshes()

    def partition(times: float) -> tuple[StageChoice, ...] | None:
        limits = [times * limit for limit in row.islands.limits_bytes(submeshes)]
        return any_partition(stage_times(ranges, limits, micro_batches, stages), crossing_bytes, row, submeshes)

    low = high = 1.0
    while (found := partition(high)) is None:
        low, high = high, 2.0 * high
        if high > BEYOND:
            return None
    while high > low * CLOSE:
        middle = math.sqrt(low * high)
        fitting = partition(middle)
        low, high, found = (middle, high, found) if fitting is None else (low, middle, fitting)
    every = [
        shortage_of(
            ranges,
            number,
            (choice.first, choice.last),
            submeshes[choice.submesh],
            choice.submesh,
            min(len(found) - number, micro_batches),
            row.islands,
        )
        for number, choice in enumerate(found)
    ]
    return max(every, key=lambda one: one.share)


def memory_shortage(lacking: Sequence[Callable[[], Shortage | None]], islands: Islands, mean_bytes: float) -> Problem:
    """What the least demanding plan lacks, and which of its stages.

    Args:
        lacking: what each attempt lacks.
        islands: the islands on which nothing fits.
        mean_bytes: least that all devices need on average.
    """
    found = [one for lacks in lacking[-LOOKED_INTO:] if (one := lacks()) is not None]
    if found:
        least = min(found, key=lambda one: one.share)
        limit, lacks = least.limit_bytes, str(least)
    else:
        limit = islands.memory_bytes / islands.devices
        lacks = (
            f"state and kept activations alone need at least {mean_bytes:.4g} on every device,"
            f" {mean_bytes - limit:.4g} more than there is"
        )
    return Problem(
        what=f"nothing fits into {limit:.4g} bytes a device: {lacks}",
        why="parameters, their gradients and state, and the activations in flight must fit on every device",
        fix="more devices, a smaller batch, or more micro-batches",
        field="memory_bytes",
    )
