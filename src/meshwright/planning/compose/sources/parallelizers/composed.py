"""Whole plans composed of what any parallelizers answer for slices: pipelines through islands, side by side.

    questions       every slice that the pipelines may need, each once            `questions`
    pipelines       for every order of every set of islands, the undominated ones  `slice_pipelines`
    pipeline sets   islands spread over pipelines, micro-batches shared so that all end together   `pipeline_sets`

Restrictions, so that few questions are asked (`SliceEffort` says how many): layers are cut at a grid first, and one by
one around the best pipeline sets; islands are spread over pipelines whole or, where they are few, by halves; stages of
an island are equal but for their layers where it has many devices; a slice has between half and twice the layers of its
devices' share of the peak; a pipeline enters an island once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.ops.counts import trained_parameters
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.links import link_between
from meshwright.planning.compose.pipeline_sets import (
    PipelineSet,
    blended,
    gradient_sum_s,
    partitions,
    with_whole_micro_batches,
)
from meshwright.planning.compose.sources.parallelizers.equal_pipelines import equal_pipelines
from meshwright.planning.compose.sources.parallelizers.guard import TIME_LIMIT_S, Guarded
from meshwright.planning.compose.sources.parallelizers.questions import Questions
from meshwright.planning.compose.sources.parallelizers.slice_pipeline import SlicePipeline
from meshwright.planning.compose.sources.parallelizers.slice_pipelines import Allowed, SlicePipelines
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.model import ModelSpec
from meshwright.specs.seam import Parallelizer
from meshwright.specs.workload import Workload

ALL_ORDERS = 4
"""Islands of a pipeline up to which all their orders are tried; of more, that of their memory."""
KEPT_OF = {1: 64, 2: 8, 3: 4, 4: 3}
"""Pipelines through the same islands that are blended, by the number of pipelines in the pipeline set; two of more."""
MOST_A_DEVICE = 64
"""Sequences of a micro-batch for each device that are tried where all devices are equal."""
SliceSet = PipelineSet[SlicePipeline]


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceEffort:
    """How much is asked; more takes longer and never finds worse."""

    global_micro_batches: int = 6
    """Sequences of a micro-batch that are tried: divisors of the batch, evenly spread."""
    lengths: int = 12
    """Parts into which the layers are cut before the best pipeline sets are refined."""
    refined: int = 3
    """Pipeline sets whose layers are then moved one by one."""
    stages: int = 8
    """Most stages of a pipeline on one island."""
    sizes: int = 6
    """Sizes of stages that are tried on one island."""
    parts: int = 4
    """Islands up to which their halves are spread over pipelines too."""
    uneven_devices: int = 8
    """Devices of an island up to which its stages may differ in size."""
    near: float = 2.0
    prune: bool = True
    kept_of: tuple[tuple[int, int], ...] = tuple(KEPT_OF.items())

    @property
    def of_equal(self) -> SliceEffort:
        """Where all devices are equal: so are stages, but for their layers."""
        return replace(self, global_micro_batches=12, lengths=8, uneven_devices=0)

    @property
    def of_slow(self) -> SliceEffort:
        """The effort for parallelizers that take seconds for a slice."""
        return replace(self, global_micro_batches=2, lengths=4, refined=0, stages=4, sizes=4, uneven_devices=0, parts=0)


@dataclass(slots=True, kw_only=True)
class SliceComposer:
    """Composes pipelines of what parallelizers answer; every question is asked once."""

    questions: Questions
    effort: SliceEffort
    global_micro_batches: tuple[int, ...] = ()
    """Instead of those that the effort spreads."""
    _pipelines: dict[object, list[SlicePipeline]] = field(default_factory=dict)
    _sets: dict[object, list[SliceSet]] = field(default_factory=dict)

    @property
    def counts(self) -> Counter[str]:
        """What was asked and looked at, and what was known or dropped, by rule."""
        return self.questions.counts

    def weighed(self, weights: Mapping[str, float]) -> SliceComposer:
        """A composer that asks some of the parallelizers, whose seconds count by weights; see `Questions.weighed`."""
        return SliceComposer(
            questions=self.questions.weighed(weights),
            effort=self.effort,
            global_micro_batches=self.global_micro_batches,
        )

    def skips(self) -> list[str]:
        """What parallelizers did not answer, or answered and was not taken."""
        return [line for one in self.questions.parallelizers for line in one.report()]

    def sets(self, parts: Sequence[IslandPart], most: int) -> list[SliceSet]:
        """The most promising pipeline sets through these parts, or some of them, the quickest first.

        Args:
            parts: the parts of the cluster.
            most: how many.
        """
        key = tuple(sorted(parts))
        if key not in self._sets:
            found = [one_set for blocks in self._spread(key) for one_set in self._of_blocks(blocks)]
            found.sort(key=lambda one_set: one_set.step_s)
            refined = [again for one_set in found[: self.effort.refined] for again in self._refined(one_set)]
            self.counts["pipeline sets"] += len(found) + len(refined)
            self._sets[key] = _distinct(sorted([*refined, *found], key=lambda one_set: one_set.step_s))
        return self._sets[key][:most]

    def equal_sets(self, parts: Sequence[IslandPart]) -> list[SliceSet]:
        """Every single pipeline of equal stages where the parts are one kind of device; see `equal_pipelines`.

        Args:
            parts: the parts of the cluster.
        """
        if len(self.questions.cluster.groups) > 1:
            return []
        (part,) = parts
        found = list(equal_pipelines(self.questions, part, self._global_micro_batches(), self.effort.stages))
        self.counts["pipelines of equal stages"] += len(found)
        return found

    def _spread(self, every: tuple[IslandPart, ...]) -> Iterator[Sequence[tuple[IslandPart, ...]]]:
        """Every way to spread the parts over pipelines; where there are few of them, their halves as well."""
        yield from partitions(every)
        node = [self.questions.cluster.groups[part.group].devices_per_node for part in every]
        halves = [
            [IslandPart(part.group, part.devices // 2)] * 2 if part.devices % (2 * per_node) == 0 else [part]
            for part, per_node in zip(every, node, strict=True)
        ]
        parts = tuple(itertools.chain.from_iterable(halves))
        if len(every) < len(parts) <= self.effort.parts:
            seen: set[tuple[tuple[IslandPart, ...], ...]] = set()
            for blocks in partitions(parts):
                alike = tuple(sorted(tuple(sorted(block)) for block in blocks))
                twice = any(len({part.group for part in block}) < len(block) for block in blocks)
                if not twice and alike not in seen:
                    seen.add(alike)
                    yield blocks

    def _of_blocks(self, blocks: Sequence[tuple[IslandPart, ...]]) -> list[SliceSet]:
        """One pipeline through each block, whole micro-batches shared so that all end together."""
        kept = dict(self.effort.kept_of).get(len(blocks), 2)
        choices = [self.pipelines(block)[:kept] for block in blocks]
        return [made for chosen in itertools.product(*choices) if (made := self._blend(chosen)) is not None]

    def _blend(self, pipelines: Sequence[SlicePipeline]) -> SliceSet | None:
        questions = self.questions
        gradient_bytes = trained_parameters(questions.model) * questions.workload.precision.bytes_of("reduce")
        sync_s = gradient_sum_s(
            pipelines,
            gradient_bytes,
            lambda here, there: link_between(questions.cluster, here, there)[0],
            anywhere=True,  # how much of the sums hides is known of no foreign plan
        )
        exact = blended(pipelines, questions.workload.global_batch, sync_s)
        return with_whole_micro_batches(exact, questions.workload.global_batch) if np.isfinite(exact.step_s) else None

    def pipelines(self, parts: Sequence[IslandPart]) -> list[SlicePipeline]:
        """The undominated pipelines through all of these islands, in any order, the quickest for the batch first."""
        groups, key = self.questions.cluster.groups, tuple(sorted(parts))
        if key not in self._pipelines:
            layers = self.questions.model.num_layers
            steps = np.linspace(0, layers, min(layers, self.effort.lengths) + 1).round().astype(int).tolist()
            allowed = Allowed(
                cuts=tuple(steps),
                sizes={part.group: self._sizes(groups[part.group]) for part in parts},
                uneven=frozenset(p.group for p in parts if groups[p.group].devices <= self.effort.uneven_devices),
                near=self.effort.near,
                most_stages=min(layers, self.effort.stages * len(parts)),
            )
            self._pipelines[key] = self._quickest(
                allowed, _orders(parts, self.questions.cluster), self._global_micro_batches()
            )
        return self._pipelines[key]

    def _quickest(
        self, allowed: Allowed, orders: Sequence[Sequence[IslandPart]], global_micro_batches: Sequence[int]
    ) -> list[SlicePipeline]:
        search = SlicePipelines(questions=self.questions, allowed=allowed, prune=self.effort.prune)
        found = [
            pipeline
            for global_micro_batch in global_micro_batches
            for order in orders
            for pipeline in search.through(order, global_micro_batch)
        ]
        self.counts["pipelines"] += len(found)
        return sorted(found, key=lambda one: one.step_s(self.questions.workload.global_batch / one.global_micro_batch))

    def _refined(self, one_set: SliceSet) -> Iterator[SliceSet]:
        """The pipeline set with the layers of its pipelines cut anywhere near where the grid has cut them."""
        layers = self.questions.model.num_layers
        reach = -(-layers // self.effort.lengths) - 1
        if reach < 1:
            return
        choices = []
        for pipeline in one_set.pipelines:
            stages, global_micro_batch = pipeline.stages, pipeline.global_micro_batch
            order = [
                IslandPart(group, sum(stage.devices for stage in same))
                for group, same in itertools.groupby(stages, key=lambda stage: stage.group)
            ]
            cuts = {stage.first + by for stage in stages[1:] for by in range(-reach, reach + 1)}
            allowed = Allowed(
                cuts=(0, *sorted(cut for cut in cuts if 0 < cut < layers)),
                sizes={p.group: tuple({s.devices for s in stages if s.group == p.group}) for p in order},
                uneven=frozenset(p.group for p in order),
                near=self.effort.near,
                most_stages=len(stages),
            )
            choices.append(
                self._quickest(allowed, [order], [global_micro_batch])[: 16 if len(one_set.pipelines) == 1 else 4]
            )
        yield from (made for chosen in itertools.product(*choices) if (made := self._blend(chosen)) is not None)

    def _sizes(self, group: NodeGroup) -> tuple[int, ...]:
        """Devices of a stage: parts of a node, or whole nodes; where there are too many, those that tile the group."""
        node, devices = group.devices_per_node, group.devices
        every = [d for d in divisors(node) if d <= devices]
        every += [n * node for n in range(2, devices // node + 1)]
        every = [size for size in every if devices // size <= self.effort.stages]
        if len(every) > self.effort.sizes:
            tiling = [size for size in every if devices % size == 0]
            self.counts["sizes of stages: too many"] += len(every) - len(tiling[-self.effort.sizes :])
            every = tiling[-self.effort.sizes :]
        return tuple(every)

    def _global_micro_batches(self) -> tuple[int, ...]:
        """Micro-batches that are tried."""
        if self.global_micro_batches:
            return self.global_micro_batches
        batch, devices = self.questions.workload.global_batch, self.questions.cluster.devices
        most = 4 * devices if len(self.questions.cluster.groups) > 1 else MOST_A_DEVICE * devices
        every = np.array([d for d in divisors(batch) if d <= most])
        if len(every) <= self.effort.global_micro_batches:
            return tuple(every.tolist())
        wanted = np.geomspace(max(1, devices // 16), min(most, batch), self.effort.global_micro_batches)
        near = np.abs(np.log(every[:, None] / wanted)).argmin(axis=0)
        return tuple(int(every[n]) for n in np.unique(near))


def slice_composer(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    parallelizers: Sequence[Parallelizer],
    *,
    space: Space | None = None,
    micro_batches: Sequence[int] = (),
    effort: SliceEffort | None = None,
    time_limit_s: float = TIME_LIMIT_S,
) -> SliceComposer:
    """A composer over any parallelizers, guarded so that none of them can spoil the search.

    Args:
        model: the model.
        cluster: its groups are the islands.
        workload: the step.
        parallelizers: any number; of their answers those that make the quickest pipelines are taken.
        space: pinned axes, wherever a stage stands.
        micro_batches: sequences of a micro-batch that are tried; those that divide the batch.
        effort: how much is asked; less of parallelizers that take seconds for a slice, unless it is given.
        time_limit_s: the time limit in seconds of one question.
    """
    guarded = [Guarded(inner=one, time_limit_s=time_limit_s) for one in parallelizers]
    usual = SliceEffort().of_equal if cluster.homogeneous else SliceEffort()
    usual = usual.of_slow if any(one.slow for one in guarded) else usual
    questions = Questions(
        model=model,
        cluster=cluster,
        workload=workload,
        parallelizers=guarded,
        space=space or Space(),
        prune=(effort or usual).prune,
    )
    global_micro_batches = tuple(size for size in micro_batches if workload.global_batch % size == 0)
    return SliceComposer(questions=questions, effort=effort or usual, global_micro_batches=global_micro_batches)


def _orders(parts: Sequence[IslandPart], cluster: ClusterSpec) -> list[tuple[IslandPart, ...]]:
    """Every order of a few islands; of many, the largest memory first, as early stages keep more micro-batches."""
    if len(parts) <= ALL_ORDERS:
        return list(itertools.permutations(parts))
    return [tuple(sorted(parts, key=lambda part: -cluster.groups[part.group].device.memory_bytes))]


def _distinct(sets: Sequence[SliceSet]) -> list[SliceSet]:
    """One pipeline set of each outline: slices, devices and strategies of all stages, and shares."""
    seen: dict[object, SliceSet] = {}
    for one_set in sets:
        outline = tuple(
            (
                share,
                p.global_micro_batch,
                tuple((s.group, s.first, s.plan.devices, s.plan.strategies, s.plan.runs) for s in p.stages),
            )
            for p, share in zip(one_set.pipelines, one_set.shares, strict=True)
        )
        seen.setdefault(outline, one_set)
    return list(seen.values())
