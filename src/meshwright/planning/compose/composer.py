"""Pipelines through islands, put together: which islands form a pipeline, how the batch is shared, what it adds up to.

    islands         the groups of the cluster, and shares of them
    pipelines       for every subset of islands and order of them, the quickest stage sequences, layers split exactly
    pipeline sets   every way to spread islands over pipelines, micro-batches in proportion to speed; islands divided
                    between pipelines where a bound allows that to be quicker
    plans           the most promising pipeline sets, for `estimate` to decide between

Source: own design, after the idea of Tangram (Tao et al. 2026, arXiv 2606.16907) to plan slices of the model on
homogeneous islands and to compose the partial plans.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from meshwright.ops.counts import trained_parameters
from meshwright.planning.compose.divided import AROUND, Divided
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.pipeline_sets import PipelineSet, blended, gradient_sum_s, partitions
from meshwright.planning.compose.ranked import Ranked
from meshwright.planning.compose.sources.native.effort import THOROUGH, SequenceEffort
from meshwright.planning.compose.sources.native.islands import NativeIslands
from meshwright.planning.compose.sources.native.pipelines import USUAL_CHUNKS, NativePipelines, Use
from meshwright.planning.compose.sources.native.split import SplitPipeline
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

KEPT_OF = {1: 20, 2: 4, 3: 3, 4: 2}
"""Pipelines through the same islands that are put in sets, by the number of pipelines in the set; one of more."""
TRIED = 8
"""Pipeline sets of whole islands whose best sets what divided ones must promise."""
NEARER = 3
"""Times that divisions are looked for again where those found are much quicker than what they had to beat."""
CLEARLY_NEARER = 0.95
"""Times what they had to beat that the best of them takes then."""
COMPOSED = 24
"""Pipeline sets that are priced in full for an answer."""
SUBSET_COMPOSED = 2
"""Pipeline sets priced in full for each part of the cluster that the answer is compared with."""
FARTHEST = 1.12
"""Times the best step that what is looked at may promise: closed forms are within that of `estimate`."""
SLOW = 2.0
"""Times the bound of the step that divided islands may take where no pipeline set of whole ones fits."""
SETS = 400
"""Pipeline sets whose gradients between pipelines are priced."""


@dataclass(slots=True)
class Composer:
    """Composes pipelines for one model, cluster and step; everything priced is kept."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    space: Space = field(default_factory=Space)
    effort: SequenceEffort = THOROUGH
    uneven: bool = False
    """Whether micro-batches that do not divide the batch are tried."""
    chunks: tuple[int, ...] = USUAL_CHUNKS
    """Chunks per stage that are tried where no number is pinned."""
    islands: NativeIslands = field(init=False)
    through: NativePipelines = field(init=False)
    _ranked: dict[Use, tuple[Ranked[SplitPipeline], Ranked[SplitPipeline]]] = field(default_factory=dict)
    """All sets, as if no gradients between pipelines were hidden; and those of several, as far as they are."""
    _sums_s: dict[object, float] = field(default_factory=dict)
    """Gradients between pipelines, by where these hold which layers; sets differ in micro-batches more often."""

    def __post_init__(self) -> None:
        self.islands = NativeIslands(self.model, self.cluster, self.workload, self.space, self.uneven)
        self.through = NativePipelines(self.islands, self.effort, self.chunks)

    def of_chunks(self, chunks: tuple[int, ...]) -> Composer:
        """The same over the same priced islands, with stages of other numbers of chunks.

        Args:
            chunks: the chunks of a stage, those that are tried.
        """
        return self._through(NativePipelines(self.islands, self.effort, chunks, plain=self.through))

    def of_chunks_alone(self) -> Composer:
        """The same over the same pipelines, of which only those with chunks are put in sets."""
        chunks = tuple(v for v in self.chunks if v > 1)
        return self._through(NativePipelines(self.islands, self.effort, chunks, chunked=self.through))

    def _through(self, pipelines: NativePipelines) -> Composer:
        """The same over the same priced islands, of other pipelines."""
        other = replace(self, chunks=pipelines.chunks)
        other.islands, other.through = self.islands, pipelines
        other._ranked, other._sums_s = {}, self._sums_s
        return other

    @property
    def counts(self) -> Counter[str]:
        """What was looked at and what was dropped, by rule."""
        return self.islands.counts

    def pipelines(self, parts: Sequence[IslandPart]) -> list[SplitPipeline]:
        """The quickest pipelines through all of these parts, in any order, quickest first."""
        return self.through.through(parts)

    def sets(self, parts: Sequence[IslandPart], most: int) -> list[PipelineSet[SplitPipeline]]:
        """The most promising ways to spread these parts, or some of them, over pipelines.

        Args:
            parts: the parts of the cluster.
            most: how many.
        """
        return self._of(parts)[0].first(most)

    def made(self, parts: Sequence[IslandPart], most: int) -> list[PipelineSet[SplitPipeline]]:
        """The most promising pipeline sets with whole micro-batches, the quickest first; arguments as `sets`."""
        return sorted(itertools.chain(*self.orders(parts, most)), key=lambda one: one.step_s)[:most]

    def orders(self, parts: Sequence[IslandPart], most: int) -> tuple[list[PipelineSet[SplitPipeline]], ...]:
        """The first sets with whole micro-batches in each of two orders, the quickest of each first.

        Gradients between pipelines hide beside the last backwards, how well is known once a plan is priced: all sets as
        if nothing hid, and those of several pipelines that would be quicker, as if as much did as there is room for.

        Args:
            parts: the parts of the cluster.
            most: how many of each.
        """
        found = [ranked.whole(most, self.workload.global_batch) for ranked in self._of(parts)]
        return found[0], found[1]

    def _of(self, parts: Sequence[IslandPart]) -> tuple[Ranked[SplitPipeline], Ranked[SplitPipeline]]:
        """All pipeline sets over these parts, or some of them, in both orders."""
        key = tuple(parts)
        if key not in self._ranked:
            found = [one_set for blocks in partitions(key) for one_set in self._of_blocks(blocks, key)]
            whole = Ranked.of(found, self._unhidden, SETS).whole(TRIED, self.workload.global_batch)
            divided = self._divided(key, min([self._quickest_s(key), *(one.step_s for one in whole)]))
            self.counts["pipeline sets"] += len(found) + len(divided)
            every = [*found, *divided]
            several = [one_set for one_set in every if len(one_set.pipelines) > 1]
            self._ranked[key] = (
                Ranked.of(every, self._unhidden, SETS),
                Ranked.of(several, self._synchronised, SETS),
            )
        return self._ranked[key]

    def _of_blocks(
        self, blocks: Sequence[tuple[IslandPart, ...]], parts: tuple[IslandPart, ...]
    ) -> Iterator[PipelineSet[SplitPipeline]]:
        own = (self.pipelines(block) if block == parts else self.through.beside_others(block) for block in blocks)
        return self._products(list(own))

    def _divided(self, parts: tuple[IslandPart, ...], best_s: float) -> list[PipelineSet[SplitPipeline]]:
        """Islands divided between pipelines, where that may be about as quick as the best set of whole ones."""
        cut = [part for part in parts if part.devices != self.cluster.groups[part.group].devices]
        if len(cut) > 1 or any(part.devices not in self.islands.fewer.get(part.group, ()) for part in cut):
            return []  # a share of them already
        if not math.isfinite(best_s):
            least_s = self.islands.least_s(parts)
            best_s = SLOW * least_s if math.isfinite(least_s) else 0.0
        search = Divided(self.through, parts, AROUND * best_s)
        found: dict[tuple[int, ...], PipelineSet[SplitPipeline]] = {}
        for _ in range(1 + NEARER):
            sets = [one_set for own in search.divisions() for one_set in self._products(own)]
            found |= {tuple(map(id, one_set.pipelines)): one_set for one_set in sets}
            # Which pipelines are worth the most depends on the horizon: those of one far off miss what is quicker.
            whole = Ranked.of(sets, self._unhidden, SETS).whole(TRIED, self.workload.global_batch)
            quicker_s = min((one.step_s for one in whole), default=math.inf)
            if quicker_s > CLEARLY_NEARER * best_s:
                break
            best_s = quicker_s
            search.nearer(AROUND * best_s)
        return [*found.values()]

    def _quickest_s(self, parts: tuple[IslandPart, ...]) -> float:
        """Step of the best pipeline set that was found over some of these parts by themselves."""
        firsts = (one for own in self._ranked if set(own) < set(parts) for one in self.made(own, 1))
        return min((one.step_s for one in firsts), default=math.inf)

    def _products(self, choices: Sequence[Sequence[SplitPipeline]]) -> Iterator[PipelineSet[SplitPipeline]]:
        """Every choice of one of the first few pipelines through each block."""
        kept = KEPT_OF.get(len(choices), 1)
        for chosen in itertools.product(*(self._kept(own, kept) for own in choices)):
            yield blended(chosen, self.workload.global_batch, 0.0)

    def _kept(self, own: Sequence[SplitPipeline], most: int) -> Sequence[SplitPipeline]:
        """The first few, and of a small batch the first of each global micro-batch."""
        if not self.islands.small_batch or most == 1:
            return own[:most]
        first = {one.global_micro_batch: one for one in reversed(own) if one.chunks == 1}
        return [*own[:most], *(one for one in first.values() if one not in own[:most])]

    def _unhidden(self, one_set: PipelineSet[SplitPipeline]) -> PipelineSet[SplitPipeline]:
        """The set with all gradients between pipelines after the last backward, over the slowest link between them."""
        return replace(one_set, step_s=one_set.step_s + self._sum_s(one_set, anywhere=True))

    def _synchronised(self, one_set: PipelineSet[SplitPipeline]) -> PipelineSet[SplitPipeline]:
        """The set with those gradients between pipelines that find no room beside the last backwards."""
        spare_s = min(one.spare_s for one in one_set.pipelines)
        late_s = self.islands.late_s(one_set.islands, self._sum_s(one_set, anywhere=False), spare_s)
        return replace(one_set, step_s=one_set.step_s + late_s)

    def _sum_s(self, one_set: PipelineSet[SplitPipeline], *, anywhere: bool) -> float:
        """Gradients between pipelines by themselves; arguments as `gradient_sum_s`."""
        pipelines = one_set.pipelines
        key = anywhere, *((one.stage_islands, one.stage_devices, one.layers) for one in pipelines)
        if key not in self._sums_s:
            gradient_bytes = trained_parameters(self.model) * self.workload.precision.bytes_of("reduce")
            self._sums_s[key] = gradient_sum_s(
                pipelines, gradient_bytes, lambda a, b: self.islands.link(a, b)[0], anywhere=anywhere
            )
        return self._sums_s[key]
