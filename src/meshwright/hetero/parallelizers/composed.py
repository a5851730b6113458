"""One pipeline through the islands of a cluster, composed of what any parallelizers answer for its slices.

    step = sum of stages + (m - 1) slowest stage + transfers of one micro-batch + longest synchronisation

For each number of equal stages on each island, the split of the layers with the least slowest stage, exactly over the
slices that were asked for. Restrictions, so that few questions are asked: islands stand in the order of their memory,
largest first, as early stages keep more micro-batches; an island holds 1, 2, 4, ... stages of equal devices; a slice
has between half and twice the layers that its devices' share of the peak would give it, in `grain` steps.

Own design, after the idea of Tao et al., "Tangram", arXiv 2606.16907, to compose partial plans of slices on islands.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.hetero.parallelizers.guard import Guarded
from meshwright.specs.cluster import ClusterSpec, Island, NodeGroup
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.seam import ModelSlice, Parallelizer, PartialPlan
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload

MOST_STAGES = 16
NEAR = 2.0
"""How many times more or fewer layers than its devices' share of the peak a slice may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """A slice with the partial plan that was chosen for it."""

    group: int
    """Of the cluster."""
    first: int
    last: int
    """Layers, from 0, inclusive."""
    plan: PartialPlan
    parallelizer: str

    @property
    def micro_batch_s(self) -> float:
        """Forward and backward."""
        return self.plan.forward_s + self.plan.backward_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedPipeline:
    """The quickest pipeline that was found."""

    stages: tuple[PlannedStage, ...]
    micro_batch: int
    """Sequences of one, over all data ranks of a stage."""
    num_micro_batches: int
    step_s: float
    execution: ExecutionPlan


@dataclass(slots=True, kw_only=True)
class SliceComposer:
    """Asks parallelizers for slices, each question once, and composes their answers."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    parallelizers: Sequence[Guarded]
    grain: int = 1
    """Layers by which slices grow."""
    counts: Counter[str] = field(default_factory=Counter)
    """Questions, answers, and what was left out, by rule."""
    _answers: dict[object, list[tuple[str, PartialPlan]]] = field(default_factory=dict)

    def best(self, micro_batches: Sequence[int]) -> ComposedPipeline | None:
        """The quickest pipeline over these micro-batches; None where nothing fits.

        Args:
            micro_batches: sequences of a micro-batch that are tried; each divides the batch.
        """
        found = [
            pipeline
            for micro_batch in micro_batches
            for shape in self._shapes()
            if (pipeline := self._split(shape, micro_batch)) is not None
        ]
        return min(found, key=lambda pipeline: pipeline.step_s, default=None)

    def skips(self) -> list[str]:
        """What parallelizers did not answer, or answered and was not taken."""
        return [line for one in self.parallelizers for line in one.report()]

    def _shapes(self) -> Iterator[tuple[tuple[int, int], ...]]:
        """(group, devices) of each stage, for every number of stages on every island, none included."""
        groups = self.cluster.groups
        order = sorted(range(len(groups)), key=lambda g: (-groups[g].device.memory_bytes, g))
        each = [
            [0, *(1 << k for k in range(groups[g].devices.bit_length()) if groups[g].devices % (1 << k) == 0)]
            for g in order
        ]
        for counts in itertools.product(*each):
            if 0 < sum(counts) <= min(MOST_STAGES, self.model.num_layers):
                yield tuple(
                    (g, groups[g].devices // count)
                    for g, count in zip(order, counts, strict=True)
                    for _ in range(count)
                )

    def _split(self, shape: tuple[tuple[int, int], ...], micro_batch: int) -> ComposedPipeline | None:
        """The split with the least slowest stage: by dynamic programming over stages and layers."""
        layers, stages = self.model.num_layers, len(shape)
        rates = [devices * _peak(self.cluster.groups[g]) for g, devices in shape]
        reached: dict[int, tuple[float, list[PlannedStage]]] = {0: (0.0, [])}
        for place, (group, devices) in enumerate(shape):
            share = layers * rates[place] / sum(rates)
            ahead: dict[int, tuple[float, list[PlannedStage]]] = {}
            for start, (slowest_s, before) in reached.items():
                for end in self._ends(start, share, last=place == stages - 1):
                    stage = self._stage(start, end, group, devices, micro_batch, stages - place)
                    if stage is None:
                        continue
                    bound_s = max(slowest_s, stage.micro_batch_s)
                    if end not in ahead or bound_s < ahead[end][0]:
                        ahead[end] = bound_s, [*before, stage]
            reached = ahead
        if layers not in reached:
            self.counts["shapes that hold no split"] += 1
            return None
        self.counts["shapes"] += 1
        return self._pipeline(reached[layers][1], micro_batch)

    def _ends(self, start: int, share: float, *, last: bool) -> Iterator[int]:
        """Where a slice from a layer on may end."""
        layers = self.model.num_layers
        if last:
            yield layers
            return
        least, most = max(1, math.floor(share / NEAR)), math.ceil(share * NEAR)
        yield from (end for end in range(start + least, min(start + most, layers - 1) + 1) if end % self.grain == 0)

    def _stage(
        self, start: int, end: int, group: int, devices: int, micro_batch: int, in_flight: int
    ) -> PlannedStage | None:
        """The quickest partial plan of a slice that fits with so many micro-batches in flight."""
        spec = self.cluster.groups[group]
        room = spec.device.memory_bytes * (1.0 - TIGHT_SHARE)
        kept = min(in_flight, self.workload.global_batch // micro_batch)
        fitting = [
            (plan.forward_s + plan.backward_s, plan.sync_s, number)
            for number, (_, plan) in enumerate(self._ask(start, end, spec, devices, micro_batch))
            if plan.state_bytes + kept * plan.activation_bytes <= room
        ]
        if not fitting:
            return None
        name, plan = self._ask(start, end, spec, devices, micro_batch)[min(fitting)[2]]
        return PlannedStage(group=group, first=start, last=end - 1, plan=plan, parallelizer=name)

    def _ask(
        self, start: int, end: int, group: NodeGroup, devices: int, micro_batch: int
    ) -> list[tuple[str, PartialPlan]]:
        """What all parallelizers answer for a slice on an island; equal slices on equal islands are asked for once."""
        part = self._slice(start, end)
        kind = (group.device, group.devices_per_node, group.domains)
        key = (part.layers, part.embedding, part.head, kind, devices, micro_batch)
        if key not in self._answers:
            island = Island(group=group, first_device=0, devices=devices)
            self._answers[key] = [
                (one.name, plan)
                for one in self.parallelizers
                for plan in one.plan(part, island, self.workload, micro_batch)
            ]
            self.counts["questions"] += len(self.parallelizers)
            self.counts["partial plans"] += len(self._answers[key])
        return self._answers[key]

    def _slice(self, start: int, end: int) -> ModelSlice:
        runs: list[tuple[LayerSpec, int]] = []
        for layer in itertools.islice(self.model.layers(), start, end):
            if runs and runs[-1][0] == layer:
                runs[-1] = layer, runs[-1][1] + 1
            else:
                runs.append((layer, 1))
        last = end == self.model.num_layers
        return ModelSlice(model=self.model, layers=tuple(runs), embedding=start == 0, head=last)

    def _pipeline(self, stages: list[PlannedStage], micro_batch: int) -> ComposedPipeline:
        number = self.workload.global_batch // micro_batch
        each_s = [stage.micro_batch_s for stage in stages]
        hops_s = sum(self._hop_s(a, b, micro_batch) for a, b in itertools.pairwise(stages))
        sync_s = max(stage.plan.sync_s for stage in stages)
        return ComposedPipeline(
            stages=tuple(stages),
            micro_batch=micro_batch,
            num_micro_batches=number,
            step_s=sum(each_s) + 2 * hops_s + (number - 1) * max(each_s) + sync_s,
            execution=_execution(stages, micro_batch, number, self.cluster),
        )

    def _hop_s(self, here: PlannedStage, there: PlannedStage, micro_batch: int) -> float:
        """One boundary tensor: each device of the smaller side sends its part over the link of both islands."""
        width = self.workload.precision.bytes_of("activations")
        tokens = micro_batch * self.workload.seq_len / min(here.plan.devices, there.plan.devices)
        outer = self.cluster.groups[here.group].domains[-1]
        bandwidth, latency_s = outer.bandwidth_bytes_per_s * outer.efficiency, outer.latency_s
        if here.group != there.group:
            names = {self.cluster.groups[stage.group].name for stage in (here, there)}
            link = next(link for link in self.cluster.links if set(link.between) == names)
            bandwidth, latency_s = link.bandwidth_bytes_per_s, link.latency_s
        return latency_s + tokens * self.model.hidden * width / bandwidth


def compose_slices(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    parallelizers: Sequence[Parallelizer],
    *,
    micro_batches: Sequence[int],
    grain: int = 1,
    time_limit_s: float = 60.0,
) -> tuple[ComposedPipeline | None, SliceComposer]:
    """The quickest pipeline that these parallelizers' partial plans make, and what was asked and skipped on the way.

    Args:
        model: the model.
        cluster: its groups are the islands.
        workload: the step.
        parallelizers: any number; the quickest answer that fits is taken.
        micro_batches: sequences of a micro-batch that are tried; each divides the batch.
        grain: layers by which slices grow; larger asks less.
        time_limit_s: of one question.
    """
    guarded = [Guarded(inner=one, time_limit_s=time_limit_s) for one in parallelizers]
    composer = SliceComposer(model=model, cluster=cluster, workload=workload, parallelizers=guarded, grain=grain)
    return composer.best([size for size in micro_batches if workload.global_batch % size == 0]), composer


def _peak(group: NodeGroup) -> float:
    """What a device of a group computes at best, at 16 bits where it can."""
    device = group.device
    return device.peak("bf16") or device.peak("fp16") or device.peak_flop_per_s[0][1]


def _execution(stages: Sequence[PlannedStage], micro_batch: int, number: int, cluster: ClusterSpec) -> ExecutionPlan:
    """The stages as the one plan, on numbered devices."""
    ends = list(itertools.accumulate((group.devices for group in cluster.groups), initial=0))
    free = dict(enumerate(ends[:-1]))
    strategies: dict[LayerStrategy, int] = {}
    workers = []
    for place, stage in enumerate(stages):
        first = free[stage.group]
        free[stage.group] += stage.plan.devices
        runs = tuple(
            StrategyRun(
                layers=run.layers,
                strategy=strategies.setdefault(stage.plan.strategies[run.strategy], len(strategies)),
            )
            for run in stage.plan.runs
        )
        chunk = Chunk(
            virtual_stage=place,
            layers=((stage.first, stage.last),),
            runs=runs,
            embedding=place == 0,
            head=place == len(stages) - 1,
        )
        workers.append(Worker(devices=((first, first + stage.plan.devices - 1),), chunks=(chunk,)))
    first_run = stages[0].plan.strategies[stages[0].plan.runs[0].strategy]
    pipeline = Pipeline(
        micro_batch=max(1, micro_batch // first_run.dp), num_micro_batches=number, workers=tuple(workers)
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=(pipeline,))
