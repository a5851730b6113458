"""The quickest pipelines through shares of islands, over all orders, stage counts, strategies and chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meshwright.estimate.layout import ModelLayout
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.sources.native.effort import THOROUGH, SequenceEffort
from meshwright.planning.compose.sources.native.islands import NativeIslands
from meshwright.planning.compose.sources.native.split import SplitPipeline, split_pipeline
from meshwright.planning.compose.sources.native.split_stage import SplitStage, StageSums
from meshwright.planning.compose.sources.native.stage_fronts import StageFront
from meshwright.planning.compose.sources.native.stage_sequences import (
    MOST_CHUNKS,
    MOST_TUPLES,
    SequencePicks,
    StageSequences,
    joined_picks,
    paced,
    promising,
)
from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.schedules import schedule_named
from meshwright.shapes import Int

SPLIT_WITHIN = {True: 0.04, False: 0.1}
"""Range above the best split so far, without chunks and with, in which sequences are split; beyond it only the first
few are. A pace at which every stage holds whole chunks is up to so much longer than the best split, whose chunks
differ."""
DIVIDED_HALVINGS = 3
DIVIDED_REFINED = 4
"""Pipelines refined for one division of the islands, of which there are many."""
PARTED_WITHIN = 1.15
"""Times the best that pipelines take whose first or last island is also tried at both ends."""

USUAL_CHUNKS = tuple(range(1, MOST_CHUNKS + 1))
MORE_CHUNKS = (1, *range(MOST_CHUNKS + 1, 2 * MOST_CHUNKS + 1))
"""Chunks that stages are tried with by themselves, where the usual numbers reach their limit."""


Use = tuple[IslandPart, ...]
"""What a pipeline takes of the islands, by ascending group."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacedSequence:
    """One stage sequence, with the islands in its order."""

    order: tuple[IslandPart, ...]
    stage_sequences: StageSequences
    number: int

    @property
    def step_s(self) -> float:
        """Seconds of the share of the batch that it was priced with."""
        return float(self.stage_sequences.step_s[self.number])

    @property
    def plain(self) -> bool:
        """Whether each stage is one chunk."""
        return bool(self.stage_sequences.chunks[self.number] == 1)

    def sequences(self, horizon_s: float) -> float:
        """Sequences trained within a horizon, transfers and gradients apart: w (T / pace - (S - 1) / v)."""
        stage_sequences, number = self.stage_sequences, self.number
        fill = (stage_sequences.stages[number].sum() - 1) / stage_sequences.chunks[number]
        return float(stage_sequences.global_micro_batch[number] * (horizon_s / stage_sequences.pace_s[number] - fill))


@dataclass(slots=True)
class NativePipelines:
    """Pipelines through the islands; those found are kept."""

    islands: NativeIslands
    effort: SequenceEffort = THOROUGH
    chunks: tuple[int, ...] = USUAL_CHUNKS
    """Chunks per stage that are tried where no number is pinned."""
    plain: NativePipelines | None = None
    """Where the pipelines without chunks through the same islands are found already."""
    chunked: NativePipelines | None = None
    """Where those with chunks are, which are all that count."""
    _found: dict[Use, list[SplitPipeline]] = field(default_factory=dict)
    _beside: NativePipelines | None = field(default=None, init=False)
    _sums: dict[tuple[StageOptions, int], StageSums] = field(default_factory=dict)
    """What layers of each strategy cost, for all splits."""

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Chunks of a stage that are tried: one for every schedule but interleaved 1F1B, whose stages others take."""
        names, counts = self.islands.space.pinned("schedule"), self.islands.space.pinned("vpp")
        tried = self.chunks if counts is None else tuple(int(str(v)) for v in counts)
        interleaved = [schedule_named(str(name)).name == "interleaved" for name in names or ()]
        return tuple(v for v in tried if names is None or (not all(interleaved) if v == 1 else any(interleaved)))

    def through(self, parts: Sequence[IslandPart]) -> list[SplitPipeline]:
        """The quickest pipelines through all of these parts, in any order, quickest first."""
        use = use_of(parts)
        if self.chunked is not None:
            return [one for one in self.chunked.through(use) if one.chunks > 1]
        if use not in self._found:
            picks = self.promising(use, bisected=self.effort.bisected)
            if picks is not None and self.plain is not None:
                picks = picks.take(np.flatnonzero(picks.chunks > 1))
            stage_sequences = [] if picks is None or not len(picks) else self._in_every_order(use, picks)
            found = self._split_while_good(stage_sequences, self.effort.split)
            found.sort(key=self._step_s)
            found += self._at_both_ends(found[: self.effort.parted])
            if self.plain is not None:
                found += [one for one in self.plain.through(use) if one.chunks == 1]
            self._found[use] = sorted(found, key=self._step_s)
        return self._found[use]

    def beside_others(self, parts: Sequence[IslandPart]) -> list[SplitPipeline]:
        """The quickest few through all of these parts, for sets in which others stand beside them."""
        use = use_of(parts)
        if self.chunked is not None:
            return [one for one in self.chunked.beside_others(use) if one.chunks > 1]
        return self._found[use] if use in self._found else self.beside.through(use)

    @property
    def beside(self) -> NativePipelines:
        """The same with the effort for islands beside others."""
        if self.effort.beside is None:
            return self
        if self._beside is None:
            plain = None if self.plain is None else self.plain.beside
            self._beside = replace(self, effort=self.effort.beside, plain=plain, _found={})
        return self._beside

    def _step_s(self, one: SplitPipeline) -> float:
        """Seconds of the whole batch on one pipeline."""
        return one.step_s(self.islands.workload.global_batch / one.global_micro_batch)

    def _at_both_ends(self, found: Sequence[SplitPipeline]) -> list[SplitPipeline]:
        """Pipelines with some stages of the first island behind the last, or the other way round, where quicker.

        Embedding and head take memory, time and gradients that layers between them do not: of two kinds of device one
        may be the better place for both.
        """
        made = []
        for one in found:
            own_s = self._step_s(one)
            if own_s > PARTED_WITHIN * self._step_s(found[0]):
                break
            near_s = max(one.stage_s) / one.chunks
            parted = (
                self._split_exactly(stages, one.global_micro_batch, one.chunks, near_s)
                for stages in _parted(one.stages)
            )
            made += [other for other in parted if other is not None and self._step_s(other) < own_s]
        return _distinct(made)

    def paced_all(self, uses: Sequence[Use], picks: Sequence[SequencePicks]) -> list[list[PlacedSequence]]:
        """Stage sequences of many uses of the same groups, whose pace is searched together; the quickest of each first.

        Args:
            uses: the uses of the same groups.
            picks: `promising` of each.
        """
        base = self._by_memory(uses[0])
        whole = joined_picks(picks)
        fronts = [self._front(part) for part in base]
        found: list[list[PlacedSequence]] = [[] for _ in uses]
        every = np.arange(len(whole))
        for order in _few_orders(len(base)):
            along = [base[i].group for i in order]
            parts = [tuple(part for group in along for part in use if part.group == group) for use in uses]
            stage_sequences, _ = paced(
                [fronts[i] for i in order],
                whole.take(every, order),
                refined=DIVIDED_REFINED,
                halvings=DIVIDED_HALVINGS,
                **self._layers(),
            )
            for number, block in enumerate(stage_sequences.block.tolist()):
                found[block].append(PlacedSequence(parts[block], stage_sequences, number))
        self.islands.counts["stage sequences"] += whole.bounded
        self.islands.counts["stage sequences: bound above the best"] += whole.bounded - len(whole)
        return [sorted(own, key=lambda one: one.step_s) for own in found]

    def split_some(self, stage_sequences: Sequence[PlacedSequence]) -> list[SplitPipeline]:
        """The layers of a few of the quickest stage sequences split exactly."""
        return self._split_while_good(stage_sequences, self.effort.divided_split)

    def promising(
        self, use: Use, share: float = 1.0, *, bisected: int, most_tuples: int = MOST_TUPLES
    ) -> SequencePicks | None:
        """The stage sequences through all of these parts with the least bounds.

        Args:
            use: the use of the islands.
            share: the share of the batch that the pipeline does.
            bisected: how many, with chunks and without.
            most_tuples: combinations of stage counts that are bounded.
        """
        base = self._by_memory(use)
        fronts = [front for part in base if (front := self.islands.front(part)) is not None]
        if len(fronts) < len(base) or not self.chunk_counts:
            return None
        return promising(
            fronts,
            [part.devices for part in base],
            micro_batches=self.islands.micro_batches * share,
            stage_counts=self.islands.space.pinned("pp"),  # type: ignore[arg-type]
            chunk_counts=self.chunk_counts,
            bisected=bisected,
            at_once=self.islands.uneven,
            most_tuples=most_tuples,
            **self._layers(),
        )

    def _layers(self) -> dict[str, Any]:
        return {"layers": self.islands.usual_layers}

    def _by_memory(self, use: Use) -> list[IslandPart]:
        """The order in which stage sequences are bounded: who keeps the most activations stands first."""
        return sorted(use, key=lambda part: -self.islands.hardware(part.group).memory_bytes)

    def _front(self, part: IslandPart) -> StageFront:
        front = self.islands.front(part)
        assert front is not None
        return front

    def _in_every_order(self, use: Use, picks: SequencePicks) -> list[PlacedSequence]:
        """Stage sequences over all orders of the islands, quickest first: of 1F1B, then of its interleaved form."""
        base = self._by_memory(use)
        fronts = [self._front(part) for part in base]
        stage_sequences, which = paced(fronts, picks, refined=self.effort.refined, **self._layers())
        self.islands.counts["stage sequences"] += picks.bounded
        self.islands.counts["stage sequences: bound above the best"] += picks.bounded - len(stage_sequences)
        best = np.concatenate(
            [which[(stage_sequences.chunks == 1) == plain][: self.effort.reordered] for plain in (True, False)]
        )
        found = [(tuple(base), stage_sequences)]
        for order in self._orders(len(base))[1:] if len(best) else []:
            again, _ = paced(
                [fronts[i] for i in order], picks.take(best, order), refined=self.effort.refined, **self._layers()
            )
            found.append((tuple(base[i] for i in order), again))
        pooled = [PlacedSequence(order, one, number) for order, one in found for number in range(len(one))]
        return sorted(pooled, key=lambda one: one.step_s)

    def _orders(self, count: int) -> list[tuple[int, ...]]:
        """Every order of a few islands; of many, those that start elsewhere and run either way."""
        straight = tuple(range(count))
        if count <= self.effort.all_orders:
            return list(itertools.permutations(straight))
        if not self.effort.turned:
            return list(_few_orders(count))
        turned = [straight[i:] + straight[:i] for i in straight]
        return [*turned, *(order[::-1] for order in turned)]

    def _split_while_good(self, stage_sequences: Sequence[PlacedSequence], most: int) -> list[SplitPipeline]:
        """The layers of the quickest sequences split exactly, with chunks and without, while they promise enough."""
        made = []
        for plain in (True, False):
            best_s, tried = np.inf, 0
            for one in stage_sequences:
                if one.plain != plain:
                    continue
                if tried >= most or (
                    tried >= self.effort.split_always and one.step_s > (1 + SPLIT_WITHIN[plain]) * best_s
                ):
                    break
                tried += 1
                split = self._split(one.order, one.stage_sequences, one.number)
                if split is not None:
                    made.append(split)
                    best_s = min(best_s, split.step_s(self.islands.workload.global_batch / split.global_micro_batch))
        if self.islands.small_batch:
            made += self._of_other_micro_batches(
                stage_sequences, {one.global_micro_batch for one in made if one.chunks == 1}
            )
        return _distinct(made)

    def _of_other_micro_batches(
        self, stage_sequences: Sequence[PlacedSequence], seen: set[int]
    ) -> Iterator[SplitPipeline]:
        """The quickest plain sequence of each other global micro-batch, which it may get beside others."""
        for one in stage_sequences:
            global_micro_batch = int(one.stage_sequences.global_micro_batch[one.number])
            if one.plain and global_micro_batch not in seen:
                seen.add(global_micro_batch)
                split = self._split(one.order, one.stage_sequences, one.number)
                if split is not None:
                    yield split

    def of_other_strategies(self, one: SplitPipeline) -> Iterator[SplitPipeline]:
        """A pipeline of one stage under every other strategy of the same devices, micro-batch and recompute."""
        (stage,) = one.stages
        options = stage.options
        alike = (options.devices == stage.devices) & (options.global_micro_batch == one.global_micro_batch)
        for row in np.flatnonzero(alike & (options.recompute == options.recompute[stage.row])).tolist():
            other = split_pipeline(
                [replace(stage, row=row)],
                self._cuts(),
                global_micro_batch=one.global_micro_batch,
                micro_batches=max(1, self.islands.workload.global_batch // one.global_micro_batch),
                hops_s=[],
            )
            if other is not None:
                yield replace(other, layers=one.layers)

    def _split(self, order: Sequence[IslandPart], stage_sequences: StageSequences, number: int) -> SplitPipeline | None:
        stages: list[SplitStage] = []
        for place, part in enumerate(order):
            options = self.islands.options(part)
            assert options is not None
            one = SplitStage(
                island=part.group,
                devices=int(stage_sequences.devices[number, place]),
                options=options,
                row=int(stage_sequences.row[number, place]),
                limit_bytes=self.islands.limit_bytes(part.group),
            )
            stages += [one] * int(stage_sequences.stages[number, place])
        chunks = int(stage_sequences.chunks[number])
        near_s = float(stage_sequences.pace_s[number]) / chunks
        return self._split_exactly(stages, int(stage_sequences.global_micro_batch[number]), chunks, near_s)

    def _split_exactly(
        self, stages: Sequence[SplitStage], global_micro_batch: int, chunks: int, near_s: float
    ) -> SplitPipeline | None:
        """The layers over these stages; arguments as `split_pipeline`."""
        self.islands.counts["pipelines split"] += 1
        found = split_pipeline(
            stages,
            self._cuts(),
            global_micro_batch=global_micro_batch,
            micro_batches=max(1, self.islands.workload.global_batch // global_micro_batch),
            hops_s=self._hops_s(stages, global_micro_batch),
            chunks=chunks,
            near_s=near_s,
            known=self._sums,
        )
        ahead = self.islands.model.tower_layers
        if found is None or not ahead:
            return found
        return replace(found, layers=(found.layers[0] + ahead, *found.layers[1:]))

    def _hops_s(self, stages: Sequence[SplitStage], global_micro_batch: int) -> list[float]:
        """Seconds of a transfer from each stage to the next."""
        pairs = [(id(here), id(there)) for here, there in itertools.pairwise(stages)]
        known = {
            pair: self.islands.hop_s(here, there, global_micro_batch)
            for pair, (here, there) in dict(zip(pairs, itertools.pairwise(stages), strict=True)).items()
        }
        return [known[pair] for pair in pairs]

    def _cuts(self) -> Int[np.ndarray, "cuts kinds"]:
        """Layers of each kind before each cut; none is inside a tower, which stands with the layer behind it."""
        model = self.islands.model
        before = ModelLayout.of(model, self.islands.workload.seq_len).kinds_before
        ahead = model.tower_layers
        return before if not ahead else np.concatenate([before[:1], before[ahead + 1 :]])


def use_of(parts: Iterable[IslandPart]) -> Use:
    """The parts in their one order."""
    return tuple(sorted(parts, key=lambda part: part.group))


def _parted(stages: tuple[SplitStage, ...]) -> Iterator[tuple[SplitStage, ...]]:
    """Orders in which the first or the last island has one, half or all but one of its stages at the other end."""
    runs = [len(tuple(same)) for _, same in itertools.groupby(stage.island for stage in stages)]
    if stages[0].island == stages[-1].island:
        return
    for moved in sorted({1, runs[0] // 2, runs[0] - 1} & {*range(1, runs[0])}):
        yield (*stages[moved:], *stages[:moved])
    for moved in sorted({1, runs[-1] // 2, runs[-1] - 1} & {*range(1, runs[-1])}):
        yield (*stages[-moved:], *stages[:-moved])


def _few_orders(count: int) -> Iterator[tuple[int, ...]]:
    """Straight and reversed."""
    straight = tuple(range(count))
    yield straight
    if count > 1:
        yield straight[::-1]


def _distinct(pipelines: list[SplitPipeline]) -> list[SplitPipeline]:
    """One pipeline of each outline: stages per island in order, and global micro-batch."""
    seen: dict[object, SplitPipeline] = {}
    for pipeline in pipelines:
        outline = (
            pipeline.global_micro_batch,
            pipeline.chunks,
            tuple((stage.island, stage.devices, stage.row) for stage in pipeline.stages),
        )
        seen.setdefault(outline, pipeline)
    return list(seen.values())
