"""What a stage can be on any share of an island: the tables of each kind of island, and the links between them.

What is priced of an island is kept for all islands of its kind, whatever share of them a pipeline takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.kernels.overlap import exposed_s
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.compose.links import hop_s, link_between
from meshwright.planning.compose.sources.native.shares import offered_shares
from meshwright.planning.compose.sources.native.split_stage import SplitStage
from meshwright.planning.compose.sources.native.stage_fronts import StageFront, stage_front
from meshwright.planning.compose.sources.native.stage_sequences import MOST_STAGES
from meshwright.planning.compose.sources.native.stages import MOST_MICRO_BATCH, StageOptions, stage_options
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.shapes import Float
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

MOST_WAVES = 14
FEW_WAVES = 24
"""Sequences of a micro-batch up to which all numbers are tried where few devices share the batch unevenly."""
FEW_DEVICES = 32
"""Most devices for which this is tried: on more, the gain is not worth its time."""
PARTS = (1, 2, 4)
"""Parts of a group's devices whose multiples are tried as numbers of samples that run at once."""
FEWEST_DEVICES = 8
COARSE = 16
"""Sequences of a device up to which so few share the batch unevenly in micro-batches of a divisor of it."""
DOMINANT = 0.8
"""Share of the layers from which on one kind stands for all in stage sequences; exact splits know every kind."""


@dataclass(slots=True)
class NativeIslands:
    """The islands of one model, cluster and step; everything priced is kept."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    space: Space
    uneven: bool = False
    """Whether micro-batches that do not divide the batch are tried: those of several unlike pipelines add up to it."""
    counts: Counter[str] = field(default_factory=Counter)
    """What was looked at and what was dropped, by rule."""
    _kinds: dict[int, int] = field(default_factory=dict)
    _hardware: dict[int, Hardware] = field(default_factory=dict)
    fewer: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of devices of a group that are divided between pipelines, too, the others idle; set before any table."""
    _options: dict[object, StageOptions | None] = field(default_factory=dict)
    _fronts: dict[object, StageFront | None] = field(default_factory=dict)
    _links: dict[tuple[int, int], tuple[float, float]] = field(default_factory=dict)
    _rates: dict[int, float] = field(default_factory=dict)
    _tables: dict[IslandPart, object] = field(default_factory=dict)

    def hardware(self, group: int) -> Hardware:
        """Hardware of a group."""
        if group not in self._hardware:
            spec = self.cluster.groups[group]
            self._hardware[group] = hardware_of(spec, self.workload)
        return self._hardware[group]

    def limit_bytes(self, group: int) -> float:
        """What may be used of a device."""
        return self.hardware(group).memory_bytes * (1.0 if self.space.tight else 1.0 - TIGHT_SHARE)

    @property
    def global_micro_batches(self) -> tuple[int, ...]:
        """Sequences of a micro-batch over all data ranks that are tried: divisors of the batch, evenly thinned.

        Of a batch so small that pipelines may do one micro-batch each, every number up to it.
        """
        batch = self.workload.global_batch
        every = list(range(1, batch + 1)) if self._few_sequences else divisors(batch)
        every = [d for d in every if d <= max(1024, self.cluster.devices)]
        if len(every) > MOST_WAVES:
            picked = np.unique(np.linspace(0, len(every) - 1, MOST_WAVES).astype(int))
            every = [every[i] for i in picked]
        if self.uneven:
            small = range(1, FEW_WAVES + 1)
            sizes = (g.devices // part for g in self.cluster.groups for part in PARTS if g.devices % part == 0)
            own = {size * times for size in sizes for times in PARTS}
            every = sorted({d for d in (*every, *small, *own) if d <= batch})
        return tuple(every)

    @property
    def small_batch(self) -> bool:
        """Whether unlike pipelines may have to share the batch by unlike micro-batches."""
        return self.uneven or self._few_sequences

    @property
    def _few_sequences(self) -> bool:
        return self.workload.global_batch <= MOST_WAVES and len(self.cluster.groups) > 1

    def shared_coarsely(self, parts: Sequence[IslandPart]) -> bool:
        """Whether micro-batches that divide the batch may share it badly over some parts: hardly any devices that have
        few sequences each, or devices that do not divide it.

        What a larger cluster shares well, a part of it may not, and be quicker with the right shares.
        """
        batch, devices = self.workload.global_batch, sum(part.devices for part in parts)
        if self._few_sequences or devices > FEW_DEVICES:
            return False
        coarse = devices <= FEWEST_DEVICES and batch <= COARSE * devices
        return coarse or any(batch % part.devices for part in parts)

    @property
    def micro_batches(self) -> Float[np.ndarray, "global_micro_batches"]:
        """Micro-batches of a step at each global micro-batch, if one pipeline does all of it."""
        return self.workload.global_batch / np.array(self.global_micro_batches, dtype=float)

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

    def front(self, part: IslandPart) -> StageFront | None:
        """The undominated strategies of the stages of a part."""
        key = self._table(part)
        if key not in self._fronts:
            options = self.options(part)
            front = None
            if options is not None:
                front = stage_front(
                    options,
                    global_micro_batches=self.global_micro_batches,
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

    def options(self, part: IslandPart) -> StageOptions | None:
        """All strategies of the stages that a part, or any share that is offered of such a group, is cut into."""
        key = self._table(part)
        if key not in self._options:
            most = min(MOST_STAGES, self.model.most_stages)
            offered = self._offered(part.group)
            cut = offered if part.devices in offered else {part.devices}
            spec = self.cluster.groups[part.group]
            found = stage_options(
                self.model,
                self.workload,
                [self.hardware(part.group)],
                sizes=sorted({d for share in cut for d in divisors(share) if share // d <= most}),
                global_micro_batches=self.global_micro_batches,
                most_tensor=max(spec.devices_per_node, spec.domains[0].size),
                most_micro_batch=FEW_WAVES if self.uneven else MOST_MICRO_BATCH,
                space=self.space,
                layers_per_device=self.model.num_layers / self.cluster.devices,
            )
            self._options[key] = found[0] if found else None
        return self._options[key]

    def shares(self, group: int, devices: int | None = None) -> tuple[int, ...]:
        """Devices of a group, or of so many devices of it, that one pipeline may take."""
        spec = self.cluster.groups[group]
        return offered_shares(spec, len(self.cluster.groups), devices or spec.devices)

    def _kind(self, group: int) -> int:
        """The first group like it: the same nodes of the same device, as many of them."""
        if not self._kinds:
            seen: dict[object, int] = {}
            for number, spec in enumerate(self.cluster.groups):
                self._kinds[number] = seen.setdefault((spec.device, spec.devices_per_node, spec.domains), number)
        return self._kinds[group]

    def _table(self, part: IslandPart) -> object:
        """One for all shares that are offered of groups of a kind, one for any other part."""
        if part not in self._tables:
            offered = part.devices in self._offered(part.group)
            self._tables[part] = (self._kind(part.group), None if offered else part.devices)
        return self._tables[part]

    def _offered(self, group: int) -> set[int]:
        """Shares of a group, and of those numbers of its devices that are divided as it is."""
        of_fewer = (share for devices in self.fewer.get(group, ()) for share in self.shares(group, devices))
        return {*self.shares(group), *of_fewer}

    def hop_s(self, here: SplitStage, there: SplitStage, global_micro_batch: int) -> float:
        """One boundary tensor from a stage to the next: each device of the smaller side sends its part."""
        passed = self.model.boundary_width(self.workload.seq_len)
        part = global_micro_batch * self.workload.seq_len / min(here.devices, there.devices) * passed
        return hop_s(part * self.workload.precision.bytes_of("activations"), self.link(here.island, there.island))

    def link(self, here: int, there: int) -> tuple[float, float]:
        """Bytes per second and device, and latency, between two groups, or of the outermost domain of one."""
        key = (min(here, there), max(here, there))
        if key not in self._links:
            self._links[key] = link_between(self.cluster, *key)
        return self._links[key]

    def late_s(self, groups: Iterable[int], comm_s: float, compute_s: float) -> float:
        """What part of gradients between pipelines the step waits for.

        Args:
            groups: the groups that the pipelines stand on.
            comm_s: their sum by itself.
            compute_s: the compute seconds of the last backwards that it may run beside.
        """
        hardware = [self.hardware(group) for group in groups]
        early_s = comm_s * min(one.software.overlap for one in hardware)
        slowdown = max(one.efficiency.overlap_slowdown for one in hardware)
        return comm_s - early_s + float(exposed_s(early_s, compute_s, slowdown))

    def rate(self, part: IslandPart) -> float:
        """Layers x sequences per second that no strategy of a part exceeds, memory apart."""
        front = self.front(part)
        if front is None:
            return 0.0
        if part.group not in self._rates:
            each = front.global_micro_batches / (front.quickest_s * front.sizes[:, None])
            self._rates[part.group] = float(each.max())
        return part.devices * self._rates[part.group]

    def least_s(self, parts: Sequence[IslandPart]) -> float:
        """Seconds of a step that no pipelines over these parts beat: all devices at the best rates of their kinds."""
        rate = sum(self.rate(part) for part in parts)
        return self.usual_layers * self.workload.global_batch / rate if rate else math.inf
