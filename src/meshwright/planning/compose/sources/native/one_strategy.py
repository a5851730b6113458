"""Pipelines through unlike islands whose stages all have one strategy on equally many devices.

A launcher that takes one set of degrees for all ranks can start them: stages differ only in how many layers they hold.
The tables are those of other pipelines with one row per strategy in place of a global micro-batch, so that all islands
of a stage sequence read the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import gcd

import numpy as np

from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.islands import NativeIslands
from meshwright.planning.compose.sources.native.pipelines import NativePipelines, Use
from meshwright.planning.compose.sources.native.stage_fronts import LayerCosts, StageFront
from meshwright.planning.compose.sources.native.stage_sequences import (
    MOST_STAGES,
    MOST_TUPLES,
    SequencePicks,
    least_bounds,
)
from meshwright.planning.compose.sources.native.stages import RECOMPUTES, StageOptions, stage_options
from meshwright.search.table import divisors
from meshwright.shapes import Bool, Int

SHARED_BLOCKS = tuple(number for number, (name, _) in enumerate(RECOMPUTES) if name != "block")
"""Kinds of recompute that say the same of every stage: a share of its layers is another number on each."""


@dataclass(slots=True, kw_only=True)
class OneStrategyIslands(NativeIslands):
    """Islands of one pipeline, every one with the same strategies in the same rows."""

    parts: tuple[IslandPart, ...]
    """Parts of islands that the pipeline goes through."""
    _alike: list[StageOptions] | None = field(default=None)

    @property
    def sizes(self) -> Int[np.ndarray, "sizes"]:
        """Devices of a stage that divide every part into whole stages, descending."""
        most = min(MOST_STAGES, self.model.most_stages)
        common = divisors(reduce(gcd, (part.devices for part in self.parts)))
        fewest = sum(part.devices for part in self.parts) / most
        return np.array([size for size in reversed(common) if size >= fewest], dtype=np.int64)

    def options(self, part: IslandPart) -> StageOptions | None:
        """The strategies, row by row those of the other parts."""
        if self._alike is None:
            groups = [self.cluster.groups[one.group] for one in self.parts]
            found = stage_options(
                self.model,
                self.workload,
                [self.hardware(one.group) for one in self.parts],
                sizes=self.sizes.tolist(),
                global_micro_batches=self.global_micro_batches,
                most_tensor=min(max(group.devices_per_node, group.domains[0].size) for group in groups),
                space=self.space,
                layers_per_device=self.model.num_layers / self.cluster.devices,
            )
            self._alike = [one.take(np.isin(one.recompute, SHARED_BLOCKS)) for one in found]
        return self._alike[self.parts.index(part)] if self._alike else None

    def front(self, part: IslandPart) -> StageFront | None:
        """One strategy per row, in the place of a global micro-batch."""
        if part not in self._fronts:
            options = self.options(part)
            self._fronts[part] = None if options is None or not len(options) else self._table_of(options, part)
        return self._fronts[part]

    def _table_of(self, options: StageOptions, part: IslandPart) -> StageFront:
        micro_batches = self.workload.global_batch / options.global_micro_batch
        costs = LayerCosts.of(options, micro_batches, self.mix, self.limit_bytes(part.group))
        fits = (costs.room_bytes > 0) & (costs.state + costs.kept <= 1.0)
        of_size = options.devices == self.sizes[:, None]

        def table(values: np.ndarray, fill: float) -> np.ndarray:
            here = (of_size & fits).reshape(*of_size.shape, *(1,) * (values.ndim - 1))
            return np.where(here, values[None], fill)[:, :, None]

        seconds = table(costs.layer_s, np.inf)
        least = table(costs.state + costs.kept, np.inf)
        return StageFront(
            sizes=self.sizes,
            global_micro_batches=options.global_micro_batch,
            layer_s=seconds,
            edge_s=table(costs.edge_s, 0.0),
            state=table(costs.state, 1.0),
            kept=table(costs.kept, 1.0),
            edge_state=table(costs.edge_state, 1.0),
            edge_kept=table(costs.edge_kept, 1.0),
            alone=table(costs.alone, 0.0),
            row=np.broadcast_to(np.arange(len(options)), of_size.shape)[:, :, None],
            quickest_s=seconds[:, :, 0],
            most_layers=np.floor(1.0 / least)[:, :, 0],
            looked_at=len(options),
        )


@dataclass(slots=True)
class OneStrategyPipelines(NativePipelines):
    """The quickest pipelines of one strategy through all parts of some islands."""

    def promising(
        self, use: Use, share: float = 1.0, *, bisected: int, most_tuples: int = MOST_TUPLES
    ) -> SequencePicks | None:
        """The strategies with the least bounds; arguments as of other pipelines."""
        base = self._by_memory(use)
        fronts = [front for part in base if (front := self.islands.front(part)) is not None]
        if len(fronts) < len(base) or not self.chunk_counts:
            return None
        sizes, layers = fronts[0].sizes, self.islands.usual_layers
        stages = np.stack([part.devices // sizes for part in base], axis=1)
        total = stages.sum(axis=1)
        with np.errstate(divide="ignore"):
            rate = sum(stages[:, g, None] / front.quickest_s for g, front in enumerate(fronts))
            pace_s = np.where(self._able(fronts, stages), layers / rate, np.inf)
        chunks = np.array(self.chunk_counts, dtype=np.int64)
        micro_batches = self.islands.workload.global_batch * share / fronts[0].global_micro_batches
        picked, bounded = least_bounds(pace_s, micro_batches, total, chunks, layers=layers, most=bisected)
        if not picked.shape[1]:
            return None
        size, row, chunk = picked
        return SequencePicks(
            block=np.zeros(len(size), dtype=np.int64),
            size=np.repeat(size[:, None], len(base), axis=1),
            stages=stages[size],
            global_micro_batch=row,
            chunks=chunks[chunk],
            micro_batches=micro_batches[row],
            least_s=pace_s[size, row],
            bounded=bounded,
        )

    def _able(
        self, fronts: Sequence[StageFront], stages: Int[np.ndarray, "sizes islands"]
    ) -> Bool[np.ndarray, "sizes rows"]:
        """Sizes and rows that fit every island and hold the model together, of an allowed number of stages."""
        total, allowed = stages.sum(axis=1), self.islands.space.pinned("pp")
        most = sum(stages[:, g, None] * front.most_layers for g, front in enumerate(fronts))
        able = np.all([np.isfinite(front.quickest_s) for front in fronts], axis=0) & (most >= self.islands.usual_layers)
        able &= (total <= self.islands.model.most_stages)[:, None]
        return able if allowed is None else able & np.isin(total, np.array(allowed))[:, None]
