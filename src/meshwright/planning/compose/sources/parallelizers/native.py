"""Ours behind the seam: every strategy of `native.stages` for a slice, priced as `estimate` prices a stage."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from meshwright.estimate.hardware import hardware_of
from meshwright.planning.compose.sources.native.stages import StageOptions, stage_options
from meshwright.search.space import Space
from meshwright.shapes import Float, Int
from meshwright.specs.cluster import Island, NodeGroup
from meshwright.specs.plan import StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload

MOST_IN_FLIGHT = 64
"""Micro-batches up to which the memory of a strategy is compared."""


@dataclass(slots=True, kw_only=True)
class Native:
    """Plans slices with all degrees, shardings and recompute modes that `plan` has; what it priced it keeps."""

    space: Space = field(default_factory=Space)
    """Pinned axes."""
    name: str = "native"
    _known: dict[object, StageOptions | None] = field(default_factory=dict)
    _asked: object = None
    """Model and workload of what is known."""

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """Undominated strategies on all devices of the island; none where no degrees are legal.

        Args:
            part: the slice.
            island: the devices.
            workload: the step.
            micro_batch: sequences of a micro-batch over all data ranks.
        """
        options = self._options(part, island, workload, micro_batch)
        if options is None:
            return []
        counts = _counts(part)
        present = counts > 0
        time_s = options.once_s @ counts
        state = options.fixed_bytes + options.transient_bytes[:, present].max(axis=1) + options.state_bytes @ counts
        kept = options.kept_bytes @ counts
        rows = _undominated(time_s, state + kept, state + MOST_IN_FLIGHT * kept, options.sync_s @ counts)
        found: dict[tuple[tuple[LayerStrategy, ...], tuple[StrategyRun, ...]], PartialPlan] = {}
        for row in rows.tolist():
            own = replace(options.plan_row(row, part.num_layers), mbs=1, gbs=1)
            strategies, runs = _strategies(own, part.num_layers)
            found.setdefault(
                (strategies, runs),
                PartialPlan(
                    devices=island.devices,
                    micro_batch=micro_batch,
                    forward_s=float(options.forward_s[row] @ counts),
                    backward_s=float(options.backward_s[row] @ counts),
                    sync_s=float(options.sync_s[row] @ counts) + options.always_s,
                    state_bytes=float(state[row]),
                    activation_bytes=float(kept[row]),
                    strategies=strategies,
                    runs=runs,
                ),
            )
        return list(found.values())

    def _options(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> StageOptions | None:
        group = island.group
        # What a step waits for around its pipeline changes little with a few layers more: powers of two are priced.
        usual = 1 << (part.num_layers - 1).bit_length()
        key = (_kind(group), island.devices, micro_batch, usual)
        if self._asked != (part.model, workload):
            self._asked = part.model, workload
            self._known.clear()
        if key not in self._known:
            found = stage_options(
                part.model,
                workload,
                [hardware_of(group, workload)],
                sizes=[island.devices],
                global_micro_batches=[micro_batch],
                most_tensor=max(group.devices_per_node, group.domains[0].size),
                space=self.space,
                layers_per_device=usual / island.devices,
            )
            self._known[key] = found[0] if found else None
        return self._known[key]


def _kind(group: NodeGroup) -> object:
    """What equal islands share, whatever they are called."""
    return (group.device, group.devices_per_node, group.domains)


def _counts(part: ModelSlice) -> Float[np.ndarray, "parts"]:
    """How often each part of the options stands in a slice."""
    kinds = part.model.kinds()
    counts = np.zeros(len(kinds) + 2)
    for kind, number in part.layers:
        counts[kinds.index(kind)] += number
    counts[-2:] = float(part.embedding), float(part.head)
    return counts


@lru_cache(maxsize=1 << 16)
def _strategies(row: PlanRow, layers: int) -> tuple[tuple[LayerStrategy, ...], tuple[StrategyRun, ...]]:
    """The strategies of a slice's layers, and how many layers each has.

    Args:
        row: the row of one stage; its batch does not matter.
        layers: the number of layers of the slice.
    """
    if row.recompute != "block":
        return (row.strategy(),), (StrategyRun(layers=layers, strategy=0),)
    again = row.recompute_layers
    runs = (StrategyRun(layers=again, strategy=0), StrategyRun(layers=layers - again, strategy=1))
    return (row.strategy(recomputed=True), row.strategy(recomputed=False)), runs


def _undominated(*criteria: Float[np.ndarray, "rows"]) -> Int[np.ndarray, "front"]:
    """Rows that no other beats in all criteria, the first of them the least of the first criterion."""
    table = np.stack(criteria, axis=1)
    left, front = np.lexsort(table.T[::-1]), []
    while len(left):
        best = left[0]
        front.append(best)
        left = left[(table[left] < table[best]).any(axis=1)]
    return np.array(front, dtype=np.int64)
