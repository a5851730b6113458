"""What no plan of a number of devices can beat: the least bound of all legal rows that may fit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from meshwright.budget import spent
from meshwright.estimate.hardware import hardware_of
from meshwright.search.axes import ways_of
from meshwright.search.bound import RowBounds
from meshwright.search.grid import Grid
from meshwright.search.legal_rows import grid_parts, most_offload, of_any_count
from meshwright.search.space import Space
from meshwright.shapes import Float
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.model import ModelSpec
from meshwright.specs.software import DEFAULT_SOFTWARE
from meshwright.specs.workload import Workload

MOST_BOUNDS = 4096
"""Bounds that are kept: those of every count, of trainers that are asked one after the other."""
KEPT_ROWS = 1 << 18
"""Rows kept for one count, of some 104 bytes each: 256 devices have 165,000 of a model with 128 experts."""
KEPT_COUNTS = 24
"""Counts whose rows are kept."""


Pairs: TypeAlias = Float[np.ndarray, "pairs two"]


class OutOfLimitsError(Exception):
    """A count could not be bounded within the limits."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


@lru_cache(maxsize=MOST_BOUNDS)
def least_of_count_s(model: ModelSpec, group: NodeGroup, workload: Workload, space: Space) -> float | None:
    """Step time that no plan of a count can beat; None where nothing can fit. Trainers of equal kernels share it.

    Raises:
        OutOfLimitsError: a limit is reached before all rows are bounded.
    """
    hardware = hardware_of(group, workload)
    least_s, ways = np.inf, ways_of(space, workload.expert_load)
    for number, grid in enumerate(_grids(model, workload, group.devices, space)):
        if number and (limit := spent()):
            raise OutOfLimitsError(limit)
        bounds = RowBounds(grid, model, hardware, workload, ways=ways if len(ways) > 1 else None)
        possible = bounds.peak_bytes <= hardware.memory_bytes
        least_s = min(least_s, float(bounds.time_s[possible].min(initial=np.inf)))
    return least_s if np.isfinite(least_s) else None


@lru_cache(maxsize=KEPT_COUNTS)
def least_of_any_count(
    model: ModelSpec, group: NodeGroup, workload: Workload, space: Space
) -> tuple[tuple[float, float], ...]:
    """What no plan can beat on up to so many nodes: pairs of device-seconds of a step and seconds of a micro-batch.

    A plan of n devices whose layers are cut as those of a pair takes at least its device-seconds over n, and at least
    its micro-batch, which goes through every layer. Pairs that another one is below in both are left out.

    Args:
        model: the model of the plans.
        group: the most nodes.
        workload: the workload of the plans.
        space: the space of the plans; empty is the answer where it has more than the usual tensor strategy or moves to
            the host, of which part of the work is not of layers.

    Raises:
        OutOfLimitsError: a limit is reached before all rows are bounded.
    """
    if (space.pinned("tensor") or ("1d",)) != ("1d",) or most_offload(space):
        return ()
    hardware = hardware_of(group, workload)
    pairs, ways = np.zeros((0, 2)), ways_of(space, workload.expert_load)
    for number, grid in enumerate(of_any_count(model, workload, group.devices, space, ways[:1])):
        if number and (limit := spent()):
            raise OutOfLimitsError(limit)
        own = RowBounds(grid, model, hardware, workload, ways=ways if len(ways) > 1 else None).time_s
        devices = grid.tp * grid.cp * grid.dp
        pairs = _least(np.concatenate([pairs, np.stack([own * devices, own], axis=1)]))
    return tuple((device_s, once_s) for device_s, once_s in pairs.tolist())


def _least(pairs: Pairs) -> Pairs:
    """Pairs that no other one is below in both, in the order of the first of each."""
    pairs = pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]
    below = np.minimum.accumulate(np.concatenate([[np.inf], pairs[:-1, 1]]))
    return pairs[pairs[:, 1] < below]


def _grids(model: ModelSpec, workload: Workload, devices: int, space: Space) -> Iterable[Grid]:
    """The rows of a count part after part, each with the first way to reach experts for all ways; they are kept for
    the other trainers of adapters, for which they are as legal."""
    if model.tuning is None:
        return _parts(model, workload, devices, space)
    any_framework = replace(workload, software=DEFAULT_SOFTWARE)
    few = _few_rows(replace(model, tuning=None), any_framework, devices, space)
    return _parts(model, workload, devices, space) if few is None else few


def _parts(model: ModelSpec, workload: Workload, devices: int, space: Space) -> Iterable[Grid]:
    return grid_parts(model, workload, devices, space, ways_of(space, workload.expert_load)[:1])


@lru_cache(maxsize=KEPT_COUNTS)
def _few_rows(model: ModelSpec, workload: Workload, devices: int, space: Space) -> tuple[Grid, ...] | None:
    """All rows of a count; None where they are too many to be kept."""
    found: list[Grid] = []
    for part in _parts(model, workload, devices, space):
        found.append(part)
        if sum(one.rows for one in found) > KEPT_ROWS:
            return None
    return tuple(found)
