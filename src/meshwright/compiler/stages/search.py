"""The whole plan: micro-batches and recomputation tried, stages by dynamic programming, the simulator last."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jax.extend import core

from meshwright.compiler.cost import bytes_of
from meshwright.compiler.cuts.cut import Body, CutStage, body_of, cut
from meshwright.compiler.cuts.stacks import by_layer
from meshwright.compiler.sharding.cost import LogicalMesh
from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands, Row, Submesh, islands_of
from meshwright.compiler.stages.layers import Content, find_layers, layer_content
from meshwright.compiler.stages.partition import MOST_STAGES, StageChoice, stage_partitions, stage_times
from meshwright.compiler.stages.plan import StagePlan, StagesPlan
from meshwright.compiler.stages.ranges import LayerRanges, ranges_of
from meshwright.compiler.stages.shortage import Shortage, least_shortage, memory_shortage, shortage_of
from meshwright.compiler.stages.tables import LayerProblem, Terms
from meshwright.compiler.tracing.trace import LossReader
from meshwright.errors import InfeasibleError
from meshwright.schedules import schedule_named
from meshwright.schedules.simulate import makespans
from meshwright.schedules.times import Times

SIMULATED = 4
"""Partitions that the simulator runs for each number of micro-batches."""
SCHEDULE = "1f1b"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Layers:
    """The layers of a loss on one micro-batch."""

    body: Body
    ends: tuple[int, ...]
    parts: tuple[CutStage, ...]
    contents: tuple[Content, ...]
    """Content of each part, equal for equal layers."""

    @classmethod
    def of(cls, loss: core.Jaxpr, wrt: Sequence[int]) -> Layers:
        """Find the layers of a loss.

        Args:
            loss: a flat program; a loop over stacked layers counts as its layers.
            wrt: positions of its differentiated operands.
        """
        fine = by_layer(loss, wrt)
        body = body_of(fine.jaxpr, fine.wrt)
        ends = find_layers(body)
        parts = cut(body, fine.wrt, ends)
        return cls(body=body, ends=ends, parts=parts, contents=tuple(layer_content(part) for part in parts))

    def crossing_bytes(self) -> np.ndarray:
        """Handed on behind each layer but the last."""
        return np.array([sum(bytes_of(var) for var in part.carried_out) for part in self.parts[:-1]], float)

    def fingerprint(self) -> str:
        """Equal for equal losses on equal micro-batches."""
        return hashlib.sha256(repr([content.key for content in self.contents]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpace:
    """What is tried."""

    micro_batches: tuple[int, ...] | None = None
    """Numbers of them; powers of two around the best without it."""
    recompute: tuple[bool, ...] = (True, False)
    reductions: str = "step"
    """Whether gradients are reduced once a "step" or with each "micro-batch"."""
    split_state: bool = True
    """Whether optimizer state is split over all devices of a stage (ZeRO-1)."""
    most_stages: int = MOST_STAGES


def plan_step(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    hosts: Hosts | Islands,
    *,
    batch_argnums: Sequence[int] = (1,),
    space: StageSpace | None = None,
) -> StagesPlan:
    """The quickest stages, meshes and shardings of a training step on a cluster.

    From shapes alone: nothing is run and no parameter is made. For every number of micro-batches and choice of
    recomputation, the best partitions of the dynamic program are run by the event simulator. Without given numbers of
    micro-batches, powers of two are tried from 4 per device on, up and down as long as the step gets quicker, and up
    from one where the whole batch may fit at once.

    Args:
        fun: the function of a state and a batch; it marks its loss.
        arguments: arrays, or shapes of arrays.
        hosts: the hosts where it is to run; of one kind, or islands of several.
        batch_argnums: arguments that are split on their first axis.
        space: what to try.

    Raises:
        InfeasibleError: nothing fits into memory, with the least that is missing.
        InputError: the step cannot be read.
    """
    space = space or StageSpace()
    reader = LossReader(fun, arguments, batch_argnums)
    search = _StageSearch(reader, hosts, space)
    if space.micro_batches is not None:
        for micro_batches in space.micro_batches:
            search.at(micro_batches)
    else:
        _climb(search, [count for count in _powers(reader.batch) if reader.batch % count == 0], 4 * hosts.devices)
    if search.best is None:
        raise InfeasibleError(memory_shortage(search.lacking, search.islands, search.mean_bytes))
    return search.best


def price_stages(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    hosts: Hosts | Islands,
    stages: Sequence[tuple[int, tuple[int, ...] | int]],
    *,
    batch_argnums: Sequence[int] = (1,),
    space: StageSpace,
) -> StagesPlan:
    """Stages that someone else chose, with the best shardings for them.

    Args:
        fun: the function of a state and a batch; it marks its loss.
        arguments: arrays, or shapes of arrays.
        hosts: the hosts where it is to run; of one kind, or islands of several.
        stages: layers of each, and its devices or its logical mesh.
        batch_argnums: arguments that are split on their first axis.
        space: numbers of micro-batches and recomputation to try; the quickest is returned.

    Raises:
        InfeasibleError: the stages do not fit into memory.
    """
    search = _StageSearch(LossReader(fun, arguments, batch_argnums), hosts, space)
    for micro_batches in space.micro_batches or ():
        search.given(micro_batches, stages)
    if search.best is None:
        raise InfeasibleError(memory_shortage(search.lacking, search.islands, search.mean_bytes))
    return search.best


def _powers(batch: int) -> list[int]:
    return [1 << power for power in range(batch.bit_length())]


def _climb(search: _StageSearch, counts: Sequence[int], start: int) -> None:
    """Try the count next to the start, then its neighbours on either side until the step gets no quicker."""
    found: dict[int, float] = {}

    def step_s(place: int) -> float:
        if place not in found:
            found[place] = search.at(counts[place])
        return found[place]

    def climb(place: int, direction: int) -> None:
        while 0 <= place + direction < len(counts):
            before, place = step_s(place), place + direction
            if step_s(place) >= before and np.isfinite(before):
                return

    first = int(np.argmin([abs(np.log2(count / start)) for count in counts]))
    step_s(first)
    climb(first, 1)
    climb(first, -1)
    if search.may_fit(counts[0]):
        climb(0, 1)


class _StageSearch:
    """The best plan so far."""

    def __init__(self, reader: LossReader, hosts: Hosts | Islands, space: StageSpace) -> None:
        self.reader, self.hosts, self.space = reader, hosts, space
        self.islands = islands_of(hosts)
        self.submeshes = self.islands.submeshes()
        self.rows = self.islands.rows()
        self.best: StagesPlan | None = None
        self.mean_bytes = np.inf
        """Least that all devices need on average, of what was tried."""
        self.lacking: list[Callable[[], Shortage | None]] = []
        """What would tell the least memory of a number of micro-batches and a choice of recomputation."""
        self.sample_bytes, self.state_bytes = 0.0, 0.0
        """What a sample leaves behind in all layers at least, and what they hold without any."""

    def at(self, micro_batches: int) -> float:
        """Seconds of the best plan with a number of micro-batches; infinite where nothing fits."""
        layers = Layers.of(*self.reader.read(micro_batches))
        found = np.inf
        options, priced = self._priced(layers, micro_batches)
        for recompute, ranges in zip(options, priced, strict=True):
            stages = min(self.space.most_stages, len(layers.parts), self.islands.devices)
            costs = stage_times(ranges, self.islands.limits_bytes(self.submeshes), micro_batches, stages)
            cuts: list[tuple[float, tuple[StageChoice, ...], Row]] = []
            for row in self.rows:
                own = stage_partitions(costs, layers.crossing_bytes(), row, self.submeshes, micro_batches)
                cuts += [(step_s, choices, row) for step_s, choices in own]
            if not cuts:
                self.lacking.append(
                    partial(least_shortage, ranges, layers.crossing_bytes(), self.rows[0], micro_batches, stages)
                )
            for _, choices, row in sorted(cuts, key=lambda one: one[0])[:SIMULATED]:
                found = min(found, self._simulated(layers, ranges, choices, row, micro_batches, recompute))
        return found

    def _priced(self, layers: Layers, micro_batches: int) -> tuple[list[bool], tuple[LayerRanges, ...]]:
        """Choices of recomputation and ranges of layers for each.

        Where memory binds nowhere, the quickest shardings without recomputation are the best, and nothing else is
        priced.
        """
        options, terms = self._that_may_fit(layers, micro_batches), self._terms(micro_batches)
        given = layers.parts, layers.contents, self.islands, self.submeshes, terms
        read: dict[LogicalMesh, dict[int, LayerProblem]] = {}
        if False in options:
            free = ranges_of(*given, [False], prices=(0.0,), read=read)
            if free[0].fit_freely(self.islands.limits_bytes(self.submeshes), micro_batches):
                return [False], free
        return options, ranges_of(*given, options, read=read)

    def _that_may_fit(self, layers: Layers, micro_batches: int) -> list[bool]:
        """Choices of recomputation whose state and kept bytes fit into all devices together."""
        one = self.islands.groups[0].mesh((1,))
        terms = self._terms(micro_batches)
        known: dict[Content, tuple[float, float, float]] = {}
        sums = np.zeros(3)
        for part, content in zip(layers.parts, layers.contents, strict=True):
            if content not in known:
                known[content] = LayerProblem.of(part, one, terms).whole_bytes()
            sums += known[content]
        self.state_bytes = sums[0]
        self.sample_bytes = sums[1] * micro_batches / self.reader.batch
        room = self.islands.memory_bytes - sums[0]
        kept = min(sums[1 if again else 2] for again in self.space.recompute)
        self.mean_bytes = min(self.mean_bytes, float(sums[0] + kept) / self.islands.devices)
        return [again for again in self.space.recompute if sums[1 if again else 2] <= room]

    def may_fit(self, micro_batches: int) -> bool:
        """Whether so few micro-batches may fit, as far as those tried before tell."""
        kept = self.sample_bytes * self.reader.batch / micro_batches
        return self.state_bytes + kept <= self.islands.memory_bytes

    def given(self, micro_batches: int, stages: Sequence[tuple[int, tuple[int, ...] | int]]) -> None:
        """Price given stages."""
        layers = Layers.of(*self.reader.read(micro_batches))
        views = [(shape,) if isinstance(shape, int) else shape for _, shape in stages]
        counts = [int(np.prod(view)) for view in views]
        firsts = [sum(counts[:number]) for number in range(len(counts))]
        own = [Submesh(self.islands.group_of(first), count) for first, count in zip(firsts, counts, strict=True)]
        submeshes = sorted(set(own), key=lambda one: (one.group, one.devices))
        allowed: dict[Submesh, list[tuple[int, ...]]] = {one: [] for one in submeshes}
        for (_, shape), view, one in zip(stages, views, own, strict=True):
            group = self.islands.groups[one.group]
            allowed[one] += group.views(one.devices) if isinstance(shape, int) else [view]
        priced = ranges_of(
            layers.parts,
            layers.contents,
            self.islands,
            submeshes,
            self._terms(micro_batches),
            self.space.recompute,
            {one: list(dict.fromkeys(shapes)) for one, shapes in allowed.items()},
        )
        for recompute, ranges in zip(self.space.recompute, priced, strict=True):
            choices, first, device = [], 0, 0
            costs = stage_times(ranges, self.islands.limits_bytes(submeshes), micro_batches, len(stages))
            for number, ((count, _), one) in enumerate(zip(stages, own, strict=True)):
                k, last, s = submeshes.index(one), first + count - 1, len(stages) - 1 - number
                if np.isfinite(costs.total_s[s, k, first, last]):
                    choices.append(StageChoice(first, last, device, k, int(costs.variant[s, k, first, last])))
                else:
                    in_flight = min(s + 1, micro_batches)
                    self.lacking.append(
                        partial(shortage_of, ranges, number, (first, last), one, k, in_flight, self.islands)
                    )
                first, device = last + 1, device + one.devices
            if len(choices) == len(stages):
                self._simulated(layers, ranges, tuple(choices), self.rows[0], micro_batches, recompute)

    def _terms(self, micro_batches: int) -> Terms:
        once = self.space.reductions == "step"
        return Terms(
            parameter_copies=self.reader.parameter_copies,
            syncs=1.0 / micro_batches if once else 1.0,
            split_state=self.space.split_state,
        )

    def _simulated(
        self,
        layers: Layers,
        ranges: LayerRanges,
        choices: Sequence[StageChoice],
        row: Row,
        micro_batches: int,
        recompute: bool,
    ) -> float:
        """Let the event simulator run the stages, and keep them if they are the quickest so far."""
        stages = _stage_plans(layers, ranges, choices, row, micro_batches)
        step_s = simulated_s(stages, micro_batches, self.hosts)
        if self.best is None or step_s < self.best.step_s:
            self.best = StagesPlan(
                loss=layers.fingerprint(),
                layer_ends=layers.ends,
                micro_batches=micro_batches,
                recompute=recompute,
                schedule=SCHEDULE,
                step_s=step_s,
                hosts=self.hosts,
                split_state=self.space.split_state,
                stages=stages,
            )
        return step_s


def _stage_plans(
    layers: Layers, ranges: LayerRanges, choices: Sequence[StageChoice], row: Row, micro_batches: int
) -> tuple[StagePlan, ...]:
    crossing = layers.crossing_bytes()
    found: list[StagePlan] = []
    for number, choice in enumerate(choices):
        at = choice.variant, choice.first, choice.last
        view = ranges.variants[choice.variant].view
        sending_s = 0.0
        if number + 1 < len(choices):
            after = choices[number + 1]
            left, right = (_submesh(ranges, row, one) for one in (choice, after))
            sending_s = row.hop_s(float(crossing[choice.last]), after.device, left, right)
        forward_s = float(ranges.forward_s[at])
        found.append(
            StagePlan(
                layers=(choice.first, choice.last),
                first_device=row.device(choice.device),
                mesh_shape=view,
                forward_s=forward_s,
                backward_s=float(ranges.total_s[at]) - forward_s,
                sending_s=sending_s,
                state_bytes=float(ranges.state_bytes[at]),
                kept_bytes=float(ranges.kept_bytes[at]),
                transient_bytes=float(ranges.transient_bytes[at]),
                in_flight=min(len(choices) - number, micro_batches),
            )
        )
    return tuple(found)


def _submesh(ranges: LayerRanges, row: Row, choice: StageChoice) -> Submesh:
    """Devices of a stage."""
    return Submesh(row.islands.group_of(row.device(choice.device)), math.prod(ranges.variants[choice.variant].view))


def simulated_s(stages: Sequence[StagePlan], micro_batches: int, hosts: Hosts | Islands) -> float:
    """Makespan of a pipeline of stages under 1F1B, by the event simulator.

    Args:
        stages: the stages with their times.
        micro_batches: the number of micro-batches of the step.
        hosts: the hosts whose links have a latency.
    """
    table = schedule_named(SCHEDULE).table(len(stages), micro_batches, 1)
    latency_s = islands_of(hosts).latency_s
    sending_s = np.array([[max(0.0, stage.sending_s - latency_s)] for stage in stages])
    times = Times(
        forward_s=np.array([[stage.forward_s] for stage in stages]),
        backward_s=np.array([[stage.backward_s] for stage in stages]),
        transfer_s=np.full((len(stages), 1), latency_s),
        sending_s=sending_s,
    )
    return float(makespans(table, times).max())
