"""Per-layer strategies behind the seam: Galvatron's dynamic program over the layers of a slice, in our own words.

Of every slice the quickest strategies are found for several numbers of micro-batches in flight, since more of them
leave each layer less memory: the composer takes those that fit where a stage stands.

Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism", VLDB
2022, section 4; `meshwright.search.layerwise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.planning.compose.sources.parallelizers.questions import island_kind
from meshwright.search.layer_programs import LayerOptions, StagePrograms, around_bytes
from meshwright.search.layerwise import layer_options, room_bytes
from meshwright.specs.cluster import Island
from meshwright.specs.plan import StrategyRun
from meshwright.specs.seam import ModelSlice, PartialPlan
from meshwright.specs.workload import Workload

IN_FLIGHT = (16, 8, 4, 3, 2)
"""Micro-batches that a stage before the last is planned for."""


@dataclass(slots=True, kw_only=True)
class Layerwise:
    """A strategy for every layer of a slice: data and ZeRO degrees, tensor degree, recompute."""

    name: str = "layerwise"
    _asked: object = None
    _programs: dict[object, StagePrograms | None] = field(default_factory=dict)

    def plan(self, part: ModelSlice, island: Island, workload: Workload, micro_batch: int) -> list[PartialPlan]:
        """The quickest strategies for each number of micro-batches in flight; arguments as `Parallelizer.plan`.

        Raises:
            UnsupportedError: several kinds of layer, or experts.
        """
        if len(part.layers) != 1 or part.layers[0][0].mlp.routed_experts:
            why = "its dynamic program is over equal dense layers"
            raise UnsupportedError(what="layerwise does not know this slice", why=why, field="layers", code="MW406")
        hardware = hardware_of(island.group, workload)
        programs = self._stage_programs(part, island, hardware, workload, micro_batch)
        if programs is None:
            return []
        micro_batches = max(1, workload.global_batch // micro_batch)
        # The stage with the head is the last and keeps one micro-batch, the others more.
        flights = (1,) if part.head else tuple(dict.fromkeys(min(count, micro_batches) for count in IN_FLIGHT))
        found: dict[tuple[int, ...], None] = {}
        for in_flight in flights:
            solved = programs.best(part.num_layers, in_flight, part.embedding, part.head)
            if solved is not None:
                found.setdefault(tuple(solved[1]))
                if solved[0] <= programs.least_s(part.num_layers, part.embedding, part.head):
                    break  # fewer in flight leave more memory, and nothing is quicker
        return [_partial(programs.options, numbers, part, island, hardware, micro_batch) for numbers in found]

    def _stage_programs(
        self, part: ModelSlice, island: Island, hardware: Hardware, workload: Workload, micro_batch: int
    ) -> StagePrograms | None:
        if self._asked != (part.model, workload):
            self._asked = part.model, workload
            self._programs.clear()
        key = (island_kind(island.group), island.devices, micro_batch)
        if key not in self._programs:
            micro_batches = max(1, workload.global_batch // micro_batch)
            options = layer_options(part.model, hardware, workload, island.devices, micro_batch, micro_batches)
            self._programs[key] = None if options is None else StagePrograms(options, room_bytes(hardware))
        return self._programs[key]


def _partial(
    options: LayerOptions,
    numbers: Sequence[int],
    part: ModelSlice,
    island: Island,
    hardware: Hardware,
    micro_batch: int,
) -> PartialPlan:
    """Layers by these options, one after the other."""
    own = np.array(numbers)
    ends = np.array([part.embedding, part.head], dtype=float)
    at_ends = ends * [options.edge_s[own[0], 0], options.edge_s[own[-1], 1]]
    ahead_at_ends = ends * [options.edge_forward_s[own[0], 0], options.edge_forward_s[own[-1], 1]]
    edge_bytes = ends * [options.edge_bytes[own[0], 0], options.edge_bytes[own[-1], 1]]
    moves_s = options.move_s * np.count_nonzero(np.diff(options.group[own]))
    sync_s = options.sync_s[own].sum()
    # The program shares what happens once a step among micro-batches; here it stands by itself.
    shared_s = sync_s / options.micro_batches
    forward_s = options.forward_s[own].sum() + ahead_at_ends.sum() + moves_s / 2
    total_s = options.time_s[own].sum() - shared_s + at_ends.sum() + moves_s
    software = hardware.software
    around = hardware.efficiency.context_bytes + software.engine_bytes
    held = options.state_bytes[own].sum() + edge_bytes.sum() + options.transient_bytes[own].max()
    held += around_bytes(part.embedding, part.head)
    whole = 1.0 + software.fragmentation
    used = list(dict.fromkeys(numbers))
    return PartialPlan(
        devices=island.devices,
        micro_batch=micro_batch,
        forward_s=float(forward_s),
        backward_s=float(total_s - forward_s),
        sync_s=float(sync_s),
        state_bytes=float(around + whole * held),
        activation_bytes=float(whole * options.kept_bytes[own].sum()),
        strategies=tuple(options.strategies[number] for number in used),
        runs=tuple(StrategyRun(layers=len(list(same)), strategy=used.index(n)) for n, same in groupby(numbers)),
    )
