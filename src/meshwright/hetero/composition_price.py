"""The time of a composition: pipelines of unequal shape, each at its own pace, that meet once a step.

    T = max over pipelines of (m - 1) max_i(comp_i + c_i) + sum_i(comp_i + c_i)  +  max update  +  sync

The terms are those of `sailor_rule`; where all pipelines are equal the two agree. What is added for unequal ones:

* sequences are shared so that the last pipeline ends as early as possible; its last micro-batches may be smaller than
  the others, each at the time of its own size (`rests`);
* a stage of d replicas gives each 1/d of the micro-batch; over a cut between d and e replicas cross max(d, e)
  transfers, and the side with fewer replicas does several of them in turn;
* gradients are reduced layer run by layer run between all holders; a stage does those of its layers in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from meshwright.hetero.composition import Composition, Part, PipelineShape, StageShape
from meshwright.hetero.profile_costs import ProfileCosts
from meshwright.hetero.rests import Rests, rests

_LEAST_STEP = 1e-12
"""Of a time: what rounding may hide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePace:
    """What one pipeline takes."""

    stage_s: tuple[float, ...]
    """Per micro-batch, transfers included."""
    compute_s: tuple[float, ...]
    stage_bytes: tuple[float, ...]
    """Per device."""
    update_s: float
    slowest_s: float
    """The bottleneck: one micro-batch leaves per this time."""
    fill_s: float
    """What the first micro-batch takes beyond the bottleneck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompositionTime:
    """Seconds of one step and its parts; the parts sum to it."""

    pipeline_s: float
    update_s: float
    sync_s: float
    sequences: tuple[int, ...]
    """Most that one pipeline of each part has time for."""

    @property
    def step_time_s(self) -> float:
        """The step."""
        return self.pipeline_s + self.update_s + self.sync_s


class CompositionPricer:
    """Prices compositions of one job; every shape once."""

    def __init__(self, costs: ProfileCosts, global_batch: int) -> None:
        self.costs = costs
        self.global_batch = global_batch
        self._paces: dict[PipelineShape, PipelinePace | None] = {}
        self._rests: dict[PipelineShape, Rests] = {}

    def pace(self, shape: PipelineShape) -> PipelinePace | None:
        """What a pipeline takes; None where a point was not profiled or a stage does not fit."""
        if shape not in self._paces:
            self._paces[shape] = self._pace(shape)
        return self._paces[shape]

    def rests(self, shape: PipelineShape) -> Rests:
        """What a pipeline that can run trains by a time; halves of its micro-batch may end it."""
        if shape not in self._rests:
            pace = self.pace(shape)
            assert pace is not None
            smaller, size = [], shape.micro_batch
            while size % 2 == 0:
                size //= 2
                own = self.pace(PipelineShape(size, shape.stages))
                if own is not None and own.fill_s <= pace.fill_s:
                    smaller.append((size, own.slowest_s))
            self._rests[shape] = rests(shape.micro_batch, pace.slowest_s, pace.fill_s, smaller)
        return self._rests[shape]

    def price(self, composition: Composition, below_s: float = math.inf) -> CompositionTime | None:
        """The step; None where a pipeline cannot run, devices do not suffice or it takes too long.

        Args:
            composition: at least one part.
            below_s: time from which on nobody wants to know; most compositions reach it without their gradients.
        """
        paces = [self.pace(part.shape) for part in composition.parts]
        known = [pace for pace in paces if pace is not None]
        if len(known) < len(paces):
            return None
        if any(composition.devices(kind.name) > kind.count for kind in self.costs.kinds.values()):
            return None
        if self._least_s(composition.parts, known) >= below_s:
            return None
        tables = [self.rests(part.shape) for part in composition.parts]
        pipeline_s, sequences = self._last_end(composition.parts, tables)
        if pipeline_s >= below_s:
            return None
        sync_s = self.sync_s(composition)
        return CompositionTime(
            pipeline_s=pipeline_s,
            update_s=max(pace.update_s for pace in known),
            sync_s=sync_s,
            sequences=tuple(sequences),
        )

    def _least_s(self, parts: tuple[Part, ...], paces: list[PipelinePace]) -> float:
        """What the batch takes if micro-batches could be cut anywhere and filling cost nothing."""
        return self.global_batch / sum(
            part.shape.micro_batch * part.pipelines / pace.slowest_s for part, pace in zip(parts, paces, strict=True)
        )

    def _last_end(self, parts: tuple[Part, ...], tables: list[Rests]) -> tuple[float, list[int]]:
        """The earliest time by which all pipelines together have done the batch, and what each has done."""
        numbers = [part.pipelines for part in parts]
        # If micro-batches could be cut anywhere, and only those that fill in time took part: below the end, from
        # where the steps are exact.
        end_s, rate, wanted = math.inf, 0.0, float(self.global_batch)
        for table, number in sorted(zip(tables, numbers, strict=True), key=lambda one: one[0].fill_s):
            own_rate = number * table.micro_batch / table.slowest_s
            rate += own_rate
            wanted += own_rate * table.fill_s - number * table.ahead
            end_s = min(end_s, max(0.0, wanted / rate))
        while True:
            done, waits_s = zip(*(table.by(end_s) for table in tables), strict=True)
            if sum(n * sequences for n, sequences in zip(numbers, done, strict=True)) >= self.global_batch:
                return max(table.time_s(count) for table, count in zip(tables, done, strict=True)), list(done)
            end_s += max(min(waits_s), _LEAST_STEP * end_s)

    def _pace(self, shape: PipelineShape) -> PipelinePace | None:
        stages, cuts = shape.stages, shape.cuts
        if cuts[-1] != self.costs.num_layers or any(shape.micro_batch % stage.replicas for stage in stages):
            return None
        compute_s, update_s, stage_bytes = [], 0.0, []
        for index, stage in enumerate(stages):
            micro_batch = shape.micro_batch // stage.replicas
            sums = self.costs.sums(stage.device, stage.tp, micro_batch)
            if sums is None or stage.layers < 1:
                return None
            here = slice(cuts[index], cuts[index + 1] + 1, stage.layers)
            state, saved = self.costs.state_bytes(stage.tp)[here], self.costs.saved_bytes(stage.tp)[here]
            in_flight = micro_batch * (len(stages) - index)
            used = state[1] - state[0] + in_flight * (saved[1] - saved[0]) + self.costs.fixed_bytes(stage.tp)
            if used > self.costs.kinds[stage.device].memory_bytes:
                return None
            stage_bytes.append(float(used))
            seconds = sums.seconds[here]
            compute_s.append(float(seconds[1] - seconds[0]))
            update_s = max(update_s, float(sums.update_s[cuts[index]]))
        moving_s = self._moving(shape)
        if moving_s is None:
            return None
        stage_s = tuple(compute + moving for compute, moving in zip(compute_s, moving_s, strict=True))
        return PipelinePace(
            stage_s=stage_s,
            compute_s=tuple(compute_s),
            stage_bytes=tuple(stage_bytes),
            update_s=update_s,
            slowest_s=max(stage_s),
            fill_s=sum(stage_s) - max(stage_s),
        )

    def _moving(self, shape: PipelineShape) -> list[float] | None:
        """What each stage pays for transfers, as `sailor_rule.moves` counts them; None where replicas do not nest."""
        stages = shape.stages
        if len(stages) == 1:
            return [0.0]
        send_s, receive_s = [], []
        for cut, (here, there) in zip(shape.cuts[1:], pairwise(stages), strict=False):
            across = self.cut_s(here, there, shape.micro_batch, cut)
            if across is None:
                return None
            send_s.append(across[0])
            receive_s.append(across[1])
        first = send_s[0] * (2 if len(stages) > 3 else 1)
        middle = [received + sent for received, sent in zip(receive_s, send_s[1:], strict=False)]
        return [first, *middle, 2 * receive_s[-1]]

    def cut_s(self, here: StageShape, there: StageShape, micro_batch: int, cut: int) -> tuple[float, float] | None:
        """Seconds in which each side passes one micro-batch over a cut.

        Args:
            here: sending stage.
            there: receiving stage.
            micro_batch: of the pipeline.
            cut: first layer of the receiving stage.
        """
        transfers = max(here.replicas, there.replicas)
        if transfers % here.replicas or transfers % there.replicas or micro_batch % transfers:
            return None
        payload = self.costs.boundary_bytes(cut) * micro_batch / transfers
        one_s = self.costs.transfer_s(payload, (here.device, here.tp), (there.device, there.tp))
        return transfers // here.replicas * one_s, transfers // there.replicas * one_s

    def sync_s(self, composition: Composition) -> float:
        """Gradient all-reduce of the stage that has most of it.

        Args:
            composition: layers are cut wherever any pipeline cuts them; a run of layers is reduced in one ring over
                all its holders, kinds side by side, at the smallest tensor degree among them.
        """
        cuts = sorted({cut for part in composition.parts for cut in part.shape.cuts})
        run_s = {first: self._run_s(composition, first, end) for first, end in pairwise(cuts)}
        return max(
            sum(run_s[first] for first in cuts if start <= first < end)
            for part in composition.parts
            for start, end in pairwise(part.shape.cuts)
        )

    def _run_s(self, composition: Composition, first: int, end: int) -> float:
        ranks: dict[str, int] = {}
        tp = math.inf
        for pipelines, stage in _holders(composition, first):
            ranks[stage.device] = ranks.get(stage.device, 0) + pipelines * stage.replicas
            tp = min(tp, stage.tp)
        devices = list(ranks)
        pairs = [(device, device) for device in devices if ranks[device] > 1] + list(pairwise(devices))
        parameters = float(self.costs.parameters[end] - self.costs.parameters[first])
        return self.costs.ring_s(parameters, int(tp), sum(ranks.values()), pairs)


def _holders(composition: Composition, layer: int) -> Iterator[tuple[int, StageShape]]:
    for part in composition.parts:
        for stage, (start, end) in zip(part.shape.stages, pairwise(part.shape.cuts), strict=True):
            if start <= layer < end:
                yield part.pipelines, stage
