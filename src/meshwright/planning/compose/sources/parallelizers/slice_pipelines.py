"""Pipelines through islands, made of partial plans: a dynamic program over layers and the devices left of each island.

Stages are put in front of each other, from the last to the first, so that each knows how many micro-batches it keeps
in flight under 1F1B. What a beginning of a pipeline is made of matters to the rest of it in three numbers only,

    fill_s     one micro-batch forward and backward through all stages, transfers there and back
    period_s   max over stages i of  max(t_i, fill_i / (stages behind i, itself included))
    sync_s     the longest that any stage takes after its last backward

each of which only grows with more stages, so those that another beats in all three are dropped.

Own design, after the idea of Tao et al., "Tangram", arXiv 2606.16907, to compose partial plans of slices on islands.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.links import hop_s, link_between
from meshwright.planning.compose.sources.parallelizers.questions import PartialAnswer, Questions
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import (
    Cost,
    PlannedStage,
    SlicePipeline,
    cost_with_stage,
)
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.seam import PartialPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What stages may be."""

    cuts: tuple[int, ...]
    """Layers that a stage may start at; the first and the one behind the last belong to them."""
    sizes: Mapping[int, tuple[int, ...]]
    """Devices of a stage on each group."""
    uneven: frozenset[int]
    """Groups whose stages may differ in size."""
    near: float
    """How many times more or fewer layers than its devices' share of the peak a slice may have."""
    most_stages: int


class _Place(NamedTuple):
    """Where the stages so far leave off."""

    island: int
    """Number of the island in the order of the pipeline."""
    used: int
    """Devices of it, of those behind all others."""
    size: int
    """Devices of the first stage so far."""
    devices: int
    """Devices that the pipeline uses."""
    first: int
    """Layer of it."""


class _Chain(NamedTuple):
    stage: PlannedStage
    hop_s: float
    behind: _Chain | None


Front = list[tuple[Cost, _Chain]]


@dataclass(slots=True, kw_only=True)
class SlicePipelines:
    """Finds the pipelines through islands in one order that no other beats."""

    questions: Questions
    allowed: Allowed
    prune: bool = True
    """Drop beginnings that cannot become the best; False keeps them all, for proofs on small cases."""
    _known: dict[tuple[int, ...], list[PartialAnswer]] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """Shared with the questions."""
        return self.questions.counts

    def through(self, islands: Sequence[IslandPart], global_micro_batch: int) -> list[SlicePipeline]:
        """All undominated pipelines that use every one of these islands, in this order.

        Args:
            islands: the islands, at most one of each group.
            global_micro_batch: sequences of a micro-batch.
        """
        whole: Front = []
        level: dict[_Place, Front] = {}
        for at in self._starts(islands):
            self._grow(islands, global_micro_batch, at, None, 1, level)
        stages = 1
        while level:
            if self._counted(stages):
                whole = self._ended(level, whole)
            if stages == self.allowed.most_stages:
                break
            stages += 1
            ahead: dict[_Place, Front] = {}
            for place, front in level.items():
                if place.first == 0:
                    continue
                kept = self._hopeful(front, whole)
                for at in self._before(islands, place) if kept else ():
                    self._grow(islands, global_micro_batch, at, (place, kept), stages, ahead)
            level = ahead
        return [
            SlicePipeline(
                stages=tuple(link.stage for link in _links(chain)),
                hops_s=tuple(link.hop_s for link in _links(chain))[:-1],
                global_micro_batch=global_micro_batch,
                fill_s=cost[0],
                period_s=cost[1],
                sync_s=cost[2],
            )
            for cost, chain in whole
        ]

    def _counted(self, stages: int) -> bool:
        """Whether a pipeline may have so many stages."""
        wanted, chunks = self.questions.space.pinned("pp"), self.questions.space.pinned("vpp")
        return (wanted is None or stages in wanted) and (chunks is None or 1 in chunks)

    def _starts(self, islands: Sequence[IslandPart]) -> Iterator[tuple[int, int, int]]:
        """(island, devices used with it, size) of the last stage."""
        last = len(islands) - 1
        yield from ((last, size, size) for size in self._sizes(islands[last]))

    def _before(self, islands: Sequence[IslandPart], place: _Place) -> Iterator[tuple[int, int, int]]:
        """The same of a stage in front of the one at a place."""
        island = islands[place.island]
        for size in self._sizes(island):
            even = size == place.size or island.group in self.allowed.uneven
            if even and place.used + size <= island.devices and self._fits(island, place.used, size):
                yield place.island, place.used + size, size
        if place.island:
            yield from ((place.island - 1, size, size) for size in self._sizes(islands[place.island - 1]))

    def _sizes(self, island: IslandPart) -> list[int]:
        return [size for size in self.allowed.sizes[island.group] if size <= island.devices]

    def _fits(self, island: IslandPart, used: int, size: int) -> bool:
        """Whether a stage stands inside a node, or on whole nodes."""
        node = self.questions.cluster.groups[island.group].devices_per_node
        inside = used % node
        return inside + size <= node or (inside == 0 and size % node == 0)

    def _grow(
        self,
        islands: Sequence[IslandPart],
        global_micro_batch: int,
        at: tuple[int, int, int],
        behind: tuple[_Place, Front] | None,
        stages: int,
        into: dict[_Place, Front],
    ) -> None:
        """Every slice that may stand there in front of the stages so far."""
        number, used, size = at
        group = islands[number].group
        end = behind[0].first if behind else self.questions.model.num_layers
        for first in self._firsts(islands, group, size, end):
            if first == 0 and number:
                continue  # islands in front of it would hold nothing
            for answer in self._fitting(first, end, group, size, global_micro_batch, stages):
                plan = answer.plan
                link_s = (
                    self._hop_s(group, plan, islands[behind[0].island].group, behind[0], global_micro_batch)
                    if behind
                    else 0.0
                )
                stage = PlannedStage(
                    group=group,
                    first=first,
                    last=end - 1,
                    devices=size,
                    plan=plan,
                    parallelizer=answer.parallelizer,
                )
                place = _Place(number, used, size, plan.devices, first)
                front = into.setdefault(place, [])
                for cost, chain in behind[1] if behind else [((0.0, 0.0, 0.0), None)]:
                    grown = cost_with_stage(cost, answer.busy_s, plan.sync_s, link_s, stages)
                    self._keep(front, grown, _Chain(stage, link_s, chain))

    def _firsts(self, islands: Sequence[IslandPart], group: int, size: int, end: int) -> Iterator[int]:
        """Where a slice that ends there may start."""
        groups, layers = self.questions.cluster.groups, self.questions.model.num_layers
        total = sum(island.devices * _peak(groups[island.group]) for island in islands)
        share = layers * size * _peak(groups[group]) / total
        least, most = max(1, math.floor(share / self.allowed.near)), math.ceil(share * self.allowed.near)
        for first in self.allowed.cuts:
            if first >= end:
                break
            # The first and the last stage hold the embedding and the head too, and may have few layers.
            edge = first == 0 or end == layers
            if end - first <= most and (edge or end - first >= least):
                yield first
            else:
                self.counts["slices: far from their devices' share of the peak"] += 1

    def _fitting(
        self, first: int, end: int, group: int, size: int, global_micro_batch: int, stages: int
    ) -> list[PartialAnswer]:
        """Answers that fit with so many micro-batches in flight, none of which another beats in time."""
        kept = min(stages, max(1, self.questions.workload.global_batch // global_micro_batch))
        key = (first, end, group, size, global_micro_batch, kept)
        if key not in self._known:
            every = self.questions.answers(first, end, group, size, global_micro_batch)
            room = self.questions.cluster.groups[group].device.memory_bytes * (1.0 - TIGHT_SHARE)
            fitting = [a for a in every if a.plan.state_bytes + kept * a.plan.activation_bytes <= room]
            self.counts["partial plans: too large at their place"] += len(every) - len(fitting)
            self._known[key] = self._quickest(fitting) if self.prune else fitting
        return self._known[key]

    def _quickest(self, fitting: Sequence[PartialAnswer]) -> list[PartialAnswer]:
        """Answers of each number of devices that none beats in seconds of a micro-batch and of synchronisation."""
        found: list[PartialAnswer] = []
        for answer in sorted(fitting, key=lambda a: (a.busy_s, a.plan.sync_s)):
            if all(answer.plan.sync_s < a.plan.sync_s or answer.plan.devices != a.plan.devices for a in found):
                found.append(answer)
        self.counts["partial plans: slower at their place"] += len(fitting) - len(found)
        return found

    def _hop_s(self, group: int, plan: PartialPlan, next_group: int, behind: _Place, global_micro_batch: int) -> float:
        """One boundary tensor: each device of the smaller side sends its part."""
        return boundary_s(self.questions, (group, plan.devices), (next_group, behind.devices), global_micro_batch)

    def _keep(self, front: Front, cost: Cost, chain: _Chain) -> None:
        """Put a beginning where nothing beats it."""
        self.counts["beginnings"] += 1
        if self.prune:
            if any(_no_worse(one, cost) for one, _ in front):
                self.counts["beginnings: dominated in fill, period and synchronisation"] += 1
                return
            before = len(front)
            front[:] = [entry for entry in front if not _no_worse(cost, entry[0])]
            self.counts["beginnings: dominated in fill, period and synchronisation"] += before - len(front)
        front.append((cost, chain))

    def _ended(self, level: Mapping[_Place, Front], whole: Front) -> Front:
        """The whole pipelines so far with those of a level: all layers held, an island in front used by none."""
        for place, front in level.items():
            if place.first == 0 and place.island == 0:
                for cost, chain in front:
                    self._keep(whole, cost, chain)
        return whole

    def _hopeful(self, front: Front, whole: Front) -> Front:
        """Beginnings that no whole pipeline beats already: costs only grow."""
        if not self.prune:
            return front
        kept = [entry for entry in front if not any(_no_worse(cost, entry[0]) for cost, _ in whole)]
        self.counts["beginnings: bound above a whole pipeline"] += len(front) - len(kept)
        return kept


def boundary_s(questions: Questions, here: tuple[int, int], there: tuple[int, int], global_micro_batch: int) -> float:
    """Seconds of one boundary tensor: each device of the smaller side sends its part.

    Args:
        questions: the questions whose model, cluster and step.
        here: group and devices of a stage.
        there: the stage that comes next.
        global_micro_batch: sequences of a micro-batch.
    """
    part = global_micro_batch * questions.workload.seq_len / min(here[1], there[1]) * questions.model.hidden
    width = questions.workload.precision.bytes_of("activations")
    return hop_s(part * width, link_between(questions.cluster, here[0], there[0]))


def piped(stages: tuple[PlannedStage, ...], global_micro_batch: int, questions: Questions) -> SlicePipeline:
    """A pipeline of stages that are chosen already, timed as those that are searched for.

    Args:
        stages: the first in front.
        global_micro_batch: sequences of a micro-batch.
        questions: the questions whose model, cluster and step, and by which weights the seconds of parallelizers count.
    """
    hops_s = tuple(
        boundary_s(questions, (a.group, a.plan.devices), (b.group, b.plan.devices), global_micro_batch)
        for a, b in pairwise(stages)
    )
    cost: Cost = (0.0, 0.0, 0.0)
    for number, (stage, hop) in enumerate(reversed(list(zip(stages, (*hops_s, 0.0), strict=True))), start=1):
        weight = questions.weights.get(stage.parallelizer, 1.0)
        cost = cost_with_stage(cost, weight * stage.micro_batch_s, stage.plan.sync_s, hop, number)
    fill_s, period_s, sync_s = cost
    return SlicePipeline(
        stages=stages,
        global_micro_batch=global_micro_batch,
        hops_s=hops_s,
        fill_s=fill_s,
        period_s=period_s,
        sync_s=sync_s,
    )


def _no_worse(one: Cost, other: Cost) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one[2] <= other[2]


def _links(chain: _Chain | None) -> Iterator[_Chain]:
    while chain is not None:
        yield chain
        chain = chain.behind


def _peak(group: NodeGroup) -> float:
    """What a device of a group computes at best, at 16 bits where it can."""
    device = group.device
    return device.peak("bf16") or device.peak("fp16") or device.peak_flop_per_s[0][1]
