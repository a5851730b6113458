"""One pipeline of unlike stages: its layers split so that the slowest stage is as quick as it can be, and its time.

T(m) = fill + (m - 1) period
1F1B         fill    one micro-batch forward and backward through all stages, transfers included
             period  max over stages i of  max(t_i, (sum over j >= i of t_j + 2 c_j) / (S - i)),
                     since stage i has at most S - i micro-batches on their way behind it
interleaved  fill    period, the first chunks of all stages but one, and the transfers of one micro-batch
             period  (1 - a) max over stages of t_i  +  a sum over chunks of the slowest stage's: stages run the same
                     chunk at about the same time, and micro-batches on their way even out most of what differs
                     (a = 0.2: simulated steps of ten drawn pipelines with up to three layers moved, mean -0.1%)
             after   gradients of a chunk leave beside the last backwards of those that follow: P stage shares of them,
                     floor + met + max(0, exposed - floor - met - (P - 1) t_i), P as `Schedule.last_passes`; of
                     gradients and weights that leave a node met = min(their time, 2 P v c) waits for transfers, c being
                     the slowest of them
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from meshwright.planning.compose.sources.native.split_stage import SplitStage, StageMemory, StageSums, in_flight
from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.schedules.named.interleaved import smallest_group
from meshwright.shapes import Float, Int

HALVINGS = 11
"""Halvings of the bottleneck's interval, which is mostly narrower than a fifth of it: 1e-4 of it."""
NEAR = (1.03, 1.2)
"""Times the expected bottleneck that most pipelines stay below."""
ROUNDING_S = 1e-12
IN_STEP = 0.2
"""What the slowest of each chunk counts in the period of interleaved 1F1B, the slowest stage counting the rest."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitPipeline:
    """A pipeline with its layers."""

    stages: tuple[SplitStage, ...]
    layers: tuple[int, ...]
    """Layers of each chunk in the order of the model: stage r's chunk k is at k S + r."""
    chunks: int
    """Chunks per stage: 1 for 1F1B, more for interleaved 1F1B."""
    global_micro_batch: int
    stage_s: tuple[float, ...]
    """Forward and backward of one micro-batch."""
    fill_s: float
    period_s: float
    sync_s: float
    """The longest that any stage takes after its last backward."""
    spare_s: float = 0.0
    """The least that any stage has left of its last backwards to hide more gradients beside."""
    room: Float[np.ndarray, "stages"] | float = math.inf
    """Micro-batches in flight that each stage has room for, whole or in parts."""

    @property
    def islands(self) -> frozenset[int]:
        """Islands that the stages stand on."""
        return frozenset(stage.island for stage in self.stages)

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return sum(stage.devices for stage in self.stages)

    @property
    def stage_devices(self) -> tuple[int, ...]:
        """Devices of each stage."""
        return tuple(stage.devices for stage in self.stages)

    @property
    def stage_islands(self) -> tuple[int, ...]:
        """Group of each stage."""
        return tuple(stage.island for stage in self.stages)

    @property
    def stage_of_layer(self) -> Int[np.ndarray, "layers"]:
        """Which stage holds each layer."""
        return np.repeat(np.arange(len(self.layers)) % len(self.stages), self.layers)

    @property
    def least_micro_batches(self) -> int:
        """Fewest micro-batches of a step: one, or one for each stage where chunks pass in groups of them."""
        return 1 if self.chunks == 1 else len(self.stages)

    def step_s(self, micro_batches: float) -> float:
        """Seconds of so many micro-batches and of what follows them."""
        return self.fill_s + (micro_batches - 1) * self.period_s + self.sync_s

    def holds(self, micro_batches: int) -> bool:
        """Whether stages have room for what so many micro-batches keep in flight, in groups as wide as these need."""
        if self.chunks == 1 or micro_batches < self.least_micro_batches:
            return True
        count = len(self.stages)
        alive = in_flight(count, micro_batches, self.chunks, smallest_group(count, micro_batches))
        return bool((alive <= self.room).all())

    def devices_on(self, island: int) -> int:
        """Devices it takes of an island."""
        return sum(stage.devices for stage in self.stages if stage.island == island)


def split_pipeline(
    stages: Sequence[SplitStage],
    kinds_before: Int[np.ndarray, "cuts kinds"],
    *,
    global_micro_batch: int,
    micro_batches: int,
    hops_s: Sequence[float],
    chunks: int = 1,
    near_s: float | None = None,
    known: dict[tuple[StageOptions, int], StageSums] | None = None,
) -> SplitPipeline | None:
    """The split of the layers with the least bottleneck.

    Args:
        stages: the stages in the order of the pipeline.
        kinds_before: layers of each kind before each cut of the model.
        global_micro_batch: sequences of a micro-batch over all data ranks.
        micro_batches: the number of micro-batches of a step.
        hops_s: seconds of one transfer from each stage to the next.
        chunks: the number of chunks of each stage.
        near_s: expected time of the slowest chunk, where somebody knows.
        known: the running sums of strategies over these layers, by `SplitStage.strategy`; gets those that it lacks.

    Returns:
        The pipeline; None where the layers do not fit.
    """
    count = len(stages)
    known = {} if known is None else known
    for stage in {id(stage): stage for stage in stages}.values():
        if stage.strategy not in known:
            known[stage.strategy] = StageSums.of(stage, kinds_before)
    sums = [known[stage.strategy] for stage in stages]
    edges = _at_edges(sums, chunks)
    memory = StageMemory.of(stages, sums, micro_batches, chunks)
    layers = _least_bottleneck(_Filling.of(sums, memory, edges, len(kinds_before) - 1), near_s)
    if layers is None:
        return None
    seconds = _in_chunks(sums, edges, layers)
    chunk_s = seconds[:, 0].reshape(chunks, count)
    stage_s = chunk_s.sum(axis=0)
    sync_s, least_sync_s, beside_s, backward_s = seconds[:, 1:].reshape(chunks, count, 4).sum(axis=0).T
    passes = (1 + (chunks - 1) * min(count, micro_batches)) / chunks
    there_s = np.array([*hops_s, 0.0])
    if chunks == 1:
        loop_s = np.cumsum((stage_s + 2 * there_s)[::-1])[::-1]
        fill_s = float(loop_s[0])
        period_s = float(max(stage_s.max(), (loop_s / np.arange(count, 0, -1)).max()))
    else:
        period_s = float((1 - IN_STEP) * stage_s.max() + IN_STEP * chunk_s.max(axis=1).sum())
        fill_s = period_s + float(chunk_s[0].sum()) * (1 - 1 / count) + 2 * float(there_s.sum())
        meets = np.array([float(stage.options.meets[stage.row]) for stage in stages])
        met_s = np.minimum(beside_s * meets, 2 * passes * chunks * float(there_s.max()))
        sync_s = least_sync_s + met_s + np.maximum(sync_s - least_sync_s - met_s - (passes - 1) * stage_s, 0.0)
    return SplitPipeline(
        stages=tuple(stages),
        layers=tuple(layers),
        chunks=chunks,
        global_micro_batch=global_micro_batch,
        stage_s=tuple(stage_s.tolist()),
        fill_s=fill_s,
        period_s=period_s,
        sync_s=float(sync_s.max()),
        spare_s=max(0.0, float(np.minimum(passes * backward_s, passes * stage_s - beside_s).min())),
        room=math.inf if chunks == 1 else memory.in_flight_of(stages, sums, layers),
    )


def _at_edges(sums: Sequence[StageSums], chunks: int) -> dict[int, tuple[float, ...]]:
    """Seconds of embedding and head in the chunks that hold them, as `StageSums.edges`."""
    first, last = 0, len(sums) * chunks - 1
    ends = (sums[0].edges[0][:5], sums[-1].edges[1][:5])
    if first == last:
        return {first: tuple(one + other for one, other in zip(*ends, strict=True))}
    return {first: ends[0], last: ends[1]}


def _in_chunks(
    sums: Sequence[StageSums], edges: dict[int, tuple[float, ...]], layers: Sequence[int]
) -> Float[np.ndarray, "chunks parts"]:
    """Seconds of every chunk by its layers, in the order of `StageSums.seconds`."""
    distinct = list({id(own): own for own in sums}.values())
    tables = np.stack([own.seconds for own in distinct])
    number = {id(own): place for place, own in enumerate(distinct)}
    which = np.array([number[id(own)] for own in sums] * (len(layers) // len(sums)))
    ends = np.cumsum(layers)
    found = tables[which, ends] - tables[which, ends - layers]
    for place, own in edges.items():
        found[place] += own
    return found


@dataclass(frozen=True, slots=True)
class _Filling:
    """Stages filled one behind the other, each up to a pace and its memory."""

    limits: list[tuple[list[float], float, list[float], float, int]]
    """Seconds of layers before each cut, those of edges, bytes before each cut, room, and where each stage ends at
    the latest, so that one layer is left for each stage behind it."""
    layers: int

    @classmethod
    def of(
        cls, sums: Sequence[StageSums], memory: StageMemory, edges: dict[int, tuple[float, ...]], layers: int
    ) -> _Filling:
        chunks = max(edges) + 1
        limits = []
        for chunk, end in enumerate(range(layers - chunks + 1, layers + 1)):
            stage, (edge_s, *_) = chunk % len(sums), edges.get(chunk, (0.0,))
            limits.append((sums[stage].cost_s, edge_s, memory.bytes_[stage], memory.room_bytes[stage], end))
        return cls(limits, layers)

    def at(self, pace_s: float) -> list[int] | None:
        """Layers of every stage that fit its time and its memory; None where some are left."""
        first, counts = 0, []
        for cost_s, edge_s, held, room, end in self.limits:
            by_time = bisect_right(cost_s, cost_s[first] + pace_s - edge_s + ROUNDING_S, first) - 1
            behind = min(by_time, bisect_right(held, held[first] + room, first) - 1, end)
            if behind <= first:
                return None
            counts.append(behind - first)
            first = behind
        return counts if first == self.layers else None

    def same_from_s(self, counts: list[int]) -> float:
        """The pace from which on stages are filled likewise, up to the one that they were filled at."""
        cuts = pairwise(accumulate(counts, initial=0))
        return max(
            cost_s[behind] - cost_s[first] + edge_s
            for (cost_s, edge_s, *_), (first, behind) in zip(self.limits, cuts, strict=True)
        )

    def same_to_s(self, pace_s: float) -> float:
        """The pace below which no stage takes a layer more than at this one, where not all are filled."""
        first, more_s = 0, math.inf
        for cost_s, edge_s, held, room, end in self.limits:
            by_time = bisect_right(cost_s, cost_s[first] + pace_s - edge_s + ROUNDING_S, first) - 1
            behind = min(bisect_right(held, held[first] + room, first) - 1, end)
            if by_time < behind:
                behind = by_time
                more_s = min(more_s, cost_s[behind + 1] - cost_s[first] + edge_s - 2 * ROUNDING_S)
            if behind <= first:
                break
            first = behind
        return more_s

    def first_at(self, paces_s: Iterable[float]) -> tuple[float, list[int]] | None:
        """The first pace at which everything is filled, and how."""
        filled = ((pace_s, self.at(pace_s)) for pace_s in paces_s)
        return next(((pace_s, counts) for pace_s, counts in filled if counts is not None), None)


def _least_bottleneck(filling: _Filling, near_s: float | None) -> list[int] | None:
    """Layers of each stage, at least one each, by bisection over the slowest stage's time."""
    # All stages full to the same time, layers cut anywhere: no split is quicker.
    low = (1.0 - 1e-9) / sum(1.0 / cost_s[-1] for cost_s, *_ in filling.limits)
    held = filling.first_at(times * (near_s or 1.5 * low) for times in NEAR)
    held = held or filling.first_at([max(cost_s[-1] + edge_s for cost_s, edge_s, *_ in filling.limits)])
    if held is None:
        return None
    high, best = held
    fails_below_s, holds_from_s = low, filling.same_from_s(best)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle >= holds_from_s:
            high = middle
        elif middle < fails_below_s:
            low = middle
        elif (found := filling.at(middle)) is None:
            low, fails_below_s = middle, filling.same_to_s(middle)
        else:
            high, best, holds_from_s = middle, found, filling.same_from_s(found)
    return best
