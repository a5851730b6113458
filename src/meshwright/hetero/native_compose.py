"""Pipelines through islands, put together: which islands form a pipeline, how the batch is shared, what it adds up to.

    islands      the groups of the cluster, or halves of them
    pipelines    for every subset of islands and order of them, the quickest routes, their layers split exactly
    blends       every way to spread islands over pipelines, micro-batches in proportion to speed
    plans        the most promising blends, for `estimate` to decide between

What is priced of an island is kept for all islands of its kind.
Source: own design, after the idea of Tangram (Tao et al. 2026, arXiv 2606.16907) to plan slices of the model on
homogeneous islands and to compose the partial plans.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.hetero.blends import Blend, Member, blended, gradient_sum_s, partitions
from meshwright.hetero.links import hop_s, link_between
from meshwright.hetero.native_stages import StageOptions, stage_options
from meshwright.hetero.pipelines import SplitPipeline, Stage, split_pipeline
from meshwright.hetero.routes import MOST_CHUNKS, Routes, paced, promising
from meshwright.hetero.stage_fronts import StageFront, stage_front
from meshwright.search.grid import divisors
from meshwright.search.space import Space
from meshwright.shapes import Float
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

MOST_STAGES = 64
"""Of a pipeline on one island."""
MOST_WAVES = 14
ALL_ORDERS = 4
"""Islands of a pipeline up to which all their orders are tried."""
REORDERED = 32
"""Routes that are looked at in every order of their islands, of 1F1B and of its interleaved form."""
SPLIT = 32
"""Routes through the same islands whose layers are split exactly, likewise."""
KEPT_OF = {1: 20, 2: 4, 3: 3, 4: 2}
"""Pipelines through the same islands that are blended, by the number of pipelines in the blend; one of more."""
BLENDS = 400
"""Compositions whose gradients between pipelines are priced."""
DOMINANT = 0.8
"""Share of the layers from which on one kind stands for all of them in routes; exact splits know every kind."""


@dataclass(frozen=True, slots=True)
class Part:
    """So many devices of a group."""

    group: int
    devices: int


@dataclass(slots=True)
class Composer:
    """Composes pipelines for one model, cluster and step; everything priced is kept."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    space: Space = field(default_factory=Space)
    counts: Counter[str] = field(default_factory=Counter)
    """What was looked at and what was dropped, by rule."""
    _hardware: dict[int, Hardware] = field(default_factory=dict)
    _options: dict[object, StageOptions | None] = field(default_factory=dict)
    _fronts: dict[object, StageFront | None] = field(default_factory=dict)
    _pipelines: dict[object, list[SplitPipeline]] = field(default_factory=dict)
    _blends: dict[object, list[Blend[SplitPipeline]]] = field(default_factory=dict)

    def hardware(self, group: int) -> Hardware:
        """Of a group."""
        if group not in self._hardware:
            spec = self.cluster.groups[group]
            self._hardware[group] = hardware_of(spec, self.workload.precision, self.workload.software)
        return self._hardware[group]

    def limit_bytes(self, group: int) -> float:
        """What may be used of a device."""
        return self.hardware(group).memory_bytes * (1.0 if self.space.tight else 1.0 - TIGHT_SHARE)

    @property
    def waves(self) -> tuple[int, ...]:
        """Sequences of a micro-batch over all data ranks that are tried: divisors of the batch, evenly thinned."""
        every = [d for d in divisors(self.workload.global_batch) if d <= max(1024, self.cluster.devices)]
        if len(every) > MOST_WAVES:
            picked = np.unique(np.linspace(0, len(every) - 1, MOST_WAVES).astype(int))
            every = [every[i] for i in picked]
        return tuple(every)

    @property
    def micro_batches(self) -> Float[np.ndarray, "waves"]:
        """Of a step at each wave, if one pipeline does all of it."""
        return self.workload.global_batch / np.array(self.waves, dtype=float)

    @property
    def chunk_counts(self) -> tuple[int, ...]:
        """Chunks of a stage that are tried; none where neither 1F1B nor its interleaved form may be used."""
        names, counts = self.space.pinned("schedule"), self.space.pinned("vpp")
        allowed = [1] if names is None or "1f1b" in names else []
        allowed += range(2, MOST_CHUNKS + 1) if names is None or "interleaved" in names else []
        return tuple(v for v in allowed if counts is None or v in counts)

    @property
    def mix(self) -> Float[np.ndarray, "kinds"]:
        """What a usual layer is: the kind that nearly all are, or their mean."""
        counts = self.model.kind_counts()
        shares = np.array([counts[kind] for kind in self.model.kinds()], dtype=float) / self.model.num_layers
        return (shares >= shares.max()).astype(float) if shares.max() >= DOMINANT else shares

    @property
    def usual_layers(self) -> float:
        """The model's layers, counted in usual ones."""
        layout = ModelLayout.of(self.model, self.workload.seq_len)
        return float(layout.kinds_before[-1] @ layout.kind_flop / (self.mix @ layout.kind_flop))

    def front(self, part: Part) -> StageFront | None:
        """The undominated strategies of a part of a group."""
        key = (self._kind(self.cluster.groups[part.group]), part.devices)
        if key not in self._fronts:
            options = self._priced(part)
            front = None
            if options is not None:
                front = stage_front(
                    options,
                    devices=part.devices,
                    waves=self.waves,
                    micro_batches=self.micro_batches,
                    mix=self.mix,
                    limit_bytes=self.limit_bytes(part.group),
                    most_in_flight=MOST_STAGES,
                )
            self._fronts[key] = front
            if front is not None:
                kept = int((front.row >= 0).sum())
                self.counts["strategies"] += front.looked_at
                self.counts["strategies: dominated or too large"] += front.looked_at - kept
        return self._fronts[key]

    def _priced(self, part: Part) -> StageOptions | None:
        group = self.cluster.groups[part.group]
        key = (self._kind(group), part.devices)
        if key not in self._options:
            most = min(MOST_STAGES, self.model.num_layers)
            sizes = [d for d in divisors(part.devices) if part.devices // d <= most]
            self._options[key] = stage_options(
                self.model,
                self.workload,
                self.hardware(part.group),
                sizes=sizes,
                waves=self.waves,
                most_tensor=max(group.devices_per_node, group.domains[0].size),
                space=self.space,
                layers_per_device=self.model.num_layers / self.cluster.devices,
            )
        return self._options[key]

    def _kind(self, group: NodeGroup) -> object:
        return (group.device, group.devices_per_node, group.domains)

    def pipelines(self, parts: Sequence[Part]) -> list[SplitPipeline]:
        """The quickest pipelines through all of these parts, in any order, quickest first."""
        key = tuple(sorted((part.group, part.devices) for part in parts))
        if key not in self._pipelines:
            split = [self._split(order, routes, number) for order, routes, number in self._quickest(parts)]
            found = _distinct([pipeline for pipeline in split if pipeline is not None])
            found.sort(key=lambda one: one.step_s(self.workload.global_batch / one.wave))
            self._pipelines[key] = found
        return self._pipelines[key]

    def _quickest(self, parts: Sequence[Part]) -> list[tuple[tuple[Part, ...], Routes, int]]:
        """The quickest routes through these parts over all orders: of 1F1B, and of its interleaved form."""
        base = sorted(parts, key=lambda part: -self.hardware(part.group).memory_bytes)
        fronts = [front for part in base if (front := self.front(part)) is not None]
        if len(fronts) < len(base) or not self.chunk_counts:
            return []
        common = {"layers": self.usual_layers, "micro_batches": self.micro_batches}
        picks = promising(
            fronts,
            stage_counts=self.space.pinned("pp"),  # type: ignore[arg-type]
            chunk_counts=self.chunk_counts,
            **common,  # type: ignore[arg-type]
        )
        if picks is None:
            return []
        routes, which = paced(fronts, picks, **common)  # type: ignore[arg-type]
        self.counts["routes"] += picks.bounded
        self.counts["routes: bound above the best"] += picks.bounded - len(routes)
        best = np.concatenate([which[(routes.chunks == 1) == plain][:REORDERED] for plain in (True, False)])
        found = [(tuple(base), routes)]
        for order in _orders(len(base))[1:] if len(best) else []:
            again = paced([fronts[i] for i in order], picks.take(best, order), **common)[0]  # type: ignore[arg-type]
            found.append((tuple(base[i] for i in order), again))
        pooled = [(order, one, number) for order, one in found for number in range(len(one))]
        pooled.sort(key=lambda entry: float(entry[1].step_s[entry[2]]))
        plain = [entry for entry in pooled if entry[1].chunks[entry[2]] == 1][:SPLIT]
        return plain + [entry for entry in pooled if entry[1].chunks[entry[2]] > 1][:SPLIT]

    def _split(self, order: Sequence[Part], routes: Routes, number: int) -> SplitPipeline | None:
        stages: list[Stage] = []
        for place, part in enumerate(order):
            options = self._priced(part)
            assert options is not None
            count = int(routes.stages[number, place])
            one = Stage(
                island=part.group,
                devices=part.devices // count,
                options=options,
                row=int(routes.row[number, place]),
                limit_bytes=self.limit_bytes(part.group),
            )
            stages += [one] * count
        wave = int(routes.wave[number])
        self.counts["pipelines split"] += 1
        return split_pipeline(
            stages,
            ModelLayout.of(self.model, self.workload.seq_len).kinds_before,
            wave=wave,
            micro_batches=max(1, self.workload.global_batch // wave),
            hops_s=[self.hop_s(a, b, wave) for a, b in itertools.pairwise(stages)],
            chunks=int(routes.chunks[number]),
        )

    def hop_s(self, here: Stage, there: Stage, wave: int) -> float:
        """One boundary tensor from a stage to the next: each device of the smaller side sends its part."""
        part = wave * self.workload.seq_len / min(here.devices, there.devices) * self.model.hidden
        return hop_s(part * self.workload.precision.bytes_of("activations"), self.link(here.island, there.island))

    def link(self, here: int, there: int) -> tuple[float, float]:
        """Bytes per second and device, and latency, between two groups, or of the outermost domain of one."""
        return link_between(self.cluster, here, there)

    def blends(self, parts: Sequence[Part], most: int) -> list[Blend[SplitPipeline]]:
        """The most promising ways to spread these parts, or some of them, over pipelines.

        Args:
            parts: of the cluster.
            most: how many.
        """
        key = tuple(parts)
        if key not in self._blends:
            found = [blend for blocks in partitions(key) for blend in self._of_blocks(blocks)]
            self.counts["blends"] += len(found)
            # Gradients between pipelines only add to the step: no blend behind the first few needs them.
            found.sort(key=lambda blend: blend.step_s)
            found = [self._synchronised(blend) for blend in found[:BLENDS]]
            self._blends[key] = sorted(found, key=lambda blend: blend.step_s)
        return self._blends[key][:most]

    def _of_blocks(self, blocks: Sequence[tuple[Part, ...]]) -> Iterator[Blend[SplitPipeline]]:
        kept = KEPT_OF.get(len(blocks), 1)
        choices = [
            [
                Member(pipeline, frozenset(part.group for part in block), sum(part.devices for part in block))
                for pipeline in self.pipelines(block)[:kept]
            ]
            for block in blocks
        ]
        for chosen in itertools.product(*choices):
            yield blended(chosen, self.workload.global_batch, 0.0)

    def _synchronised(self, blend: Blend[SplitPipeline]) -> Blend[SplitPipeline]:
        gradient_bytes = self.model.parameters * self.workload.precision.bytes_of("reduce")
        sync_s = gradient_sum_s(blend.members, gradient_bytes, lambda a, b: self.link(a, b)[0])
        return replace(blend, step_s=blend.step_s + sync_s)


def _orders(count: int) -> list[tuple[int, ...]]:
    """Every order of a few islands; of many, those that start elsewhere and run either way."""
    straight = tuple(range(count))
    if count <= ALL_ORDERS:
        return list(itertools.permutations(straight))
    turned = [straight[i:] + straight[:i] for i in straight]
    return [*turned, *(order[::-1] for order in turned)]


def _distinct(pipelines: list[SplitPipeline]) -> list[SplitPipeline]:
    """One pipeline of each outline: stages per island in order, and wave."""
    seen: dict[object, SplitPipeline] = {}
    for pipeline in pipelines:
        outline = (
            pipeline.wave,
            pipeline.chunks,
            tuple((stage.island, stage.devices, stage.row) for stage in pipeline.stages),
        )
        seen.setdefault(outline, pipeline)
    return list(seen.values())
