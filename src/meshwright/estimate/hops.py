"""What passes between neighbouring stages, priced on the link it crosses; stages may differ in devices and degrees.

A boundary tensor is cut evenly over the devices of either side. The side with fewer devices has larger parts and sets
the time; it exchanges one message with each of its peers in turn:

    transfer = base latency + peers x latency + largest part / bandwidth

Between stages of equal degrees each device sends its part to one peer. Where degrees differ and the receiving side
keeps whole sequences on every tensor rank (no sequence parallelism), its ranks gather them from the parts.
Equal stages on consecutive devices of a group share the price of the slowest hop between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from meshwright.estimate.rows import Rows
from meshwright.estimate.run import PipelineColumns
from meshwright.estimate.site import Site, Sites
from meshwright.kernels.collectives import all_gather_s, all_reduce_s, all_to_all_s
from meshwright.kernels.lines import LevelRates, group_span
from meshwright.schedules import Placement
from meshwright.shapes import Float
from meshwright.specs.strategy import LayerStrategy
from meshwright.strategies.columns import local_units


@dataclass(frozen=True, slots=True)
class HopSide:
    """How activations lie on the devices of a stage."""

    tp: int
    cp: int
    dp: int
    sp: bool
    micro_batch: float
    """Sequences of a rank, or of its section of them."""

    @classmethod
    def of(cls, strategy: LayerStrategy, micro_batch: float) -> HopSide:
        """The side as the layers of a strategy leave and take their tensors."""
        return cls(strategy.tp, strategy.cp, strategy.dp, strategy.tensor.shards_sequence, micro_batch)

    @property
    def devices(self) -> int:
        """Devices over which they lie."""
        return self.tp * self.cp * self.dp

    @property
    def whole(self) -> float:
        """Sequences times their part that a tensor group holds together."""
        return self.micro_batch / self.cp


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineHops:
    """Hops of one pipeline, behind each worker and chunk."""

    transfer_s: Float[np.ndarray, "workers chunks"]
    forward_s: Float[np.ndarray, "workers chunks"]
    """What each chunk rearranges in a forward: its input and between its own layers."""
    backward_s: Float[np.ndarray, "workers chunks"]
    sent_bytes: float
    """The largest part a device sends."""


class HopLinks:
    """Times of what passes between the workers of plans of one job."""

    def __init__(self, rows: Rows) -> None:
        """Price nothing yet.

        Args:
            rows: the rows of the job.
        """
        self.sites: Sites = rows.sites
        model, workload = rows.model, rows.workload
        passed = workload.seq_len * model.boundary_width(workload.seq_len)
        self._sequence_bytes = passed * workload.precision.bytes_of("activations")
        self._training = workload.training
        self._table = (
            (model.vocab, model.hidden * workload.precision.bytes_of("reduce")) if model.sums_tied_table else None
        )

    def hops(
        self, stages: Sequence[Site], sides: Sequence[Sequence[Sequence[HopSide]]], placement: Placement
    ) -> PipelineHops:
        """Everything between the layers of one pipeline.

        Args:
            stages: the stages of its workers.
            sides: the sides of every worker and chunk, the sides of its runs of layers in order.
            placement: the placement of its virtual stages.
        """
        levels = self._levels(stages)
        shape = (placement.p, placement.v)
        transfer_s, forward_s, backward_s = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        sent = 0.0
        for stage, following in enumerate(placement.following.tolist()):
            here = (int(placement.worker[stage]), int(placement.chunk[stage]))
            own = sides[here[0]][here[1]]
            for one, other in pairwise(own):
                ahead, back = self._inside(stages[here[0]], one, other)
                forward_s[here] += ahead
                backward_s[here] += back
            if following < 0:
                continue
            there = (int(placement.worker[following]), int(placement.chunk[following]))
            one, other = own[-1], sides[there[0]][there[1]][0]
            source, target = stages[here[0]], stages[there[0]]
            if here[0] == there[0]:
                ahead, back = self._inside(source, one, other)
            else:
                rates = levels.get((here[0], there[0])) or self.sites.between(source, target)
                parts = [side.whole / side.tp * self._sequence_bytes for side in (one, other)]
                peers = np.ceil(max(parts) / min(parts))
                transfer_s[here] = (
                    rates.base_latency_s + peers * rates.latency_s + max(parts) / rates.reached_bytes_per_s(1)
                )
                sent = max(sent, *parts)
                ahead, back = (
                    (0.0, 0.0) if one == other else (self._gather_s(target, other), self._gather_s(source, one))
                )
            forward_s[there] += ahead
            backward_s[here] += back
        return PipelineHops(
            transfer_s=transfer_s, forward_s=forward_s, backward_s=backward_s * self._training, sent_bytes=sent
        )

    def tied_s(self, stages: Sequence[Site], first: HopSide, last: HopSide) -> float:
        """Sum of a shared embedding's gradients between the first and the last worker.

        Args:
            stages: the stages of the workers.
            first: the workers that hold the embedding.
            last: the workers that hold the head.
        """
        if self._table is None or not self._training or len(stages) == 1:
            return 0.0
        vocab, row_bytes = self._table
        size = float(local_units(vocab, np.array([min(first.tp, last.tp)]))[0]) * row_bytes
        if len(list(_runs(stages))) == 1:
            hardware = stages[0].hardware
            inside = hardware.pair_span(np.array([stages[-1].first - stages[0].first]))
            return float(np.max(all_reduce_s(size, inside=inside, rates=hardware.rates)))
        return float(all_reduce_s(size, inside=(2.0,), rates=(self.sites.between(stages[0], stages[-1]),)))

    def _levels(self, stages: Sequence[Site]) -> dict[tuple[int, int], LevelRates]:
        """The link between any two workers of a run of equal ones: the slowest that a hop of the run crosses."""
        found = {}
        for low, behind in _runs(stages):
            if behind - low == 1:
                continue
            site = stages[low]
            hardware = self.sites.hardware(site.number)
            level = _outermost(site.first, site.devices, behind - low, hardware.domain_sizes)
            pairs = ((one, other) for one in range(low, behind) for other in range(low, behind) if one != other)
            found.update(dict.fromkeys(pairs, hardware.rates[level]))
        return found

    def _inside(self, site: Site, one: HopSide, other: HopSide) -> tuple[float, float]:
        """Seconds from one layout to another on the same devices: an all-to-all of the parts and a gather, each way."""
        if one == other:
            return 0.0, 0.0
        part = max(side.whole / side.tp for side in (one, other)) * self._sequence_bytes
        inside = group_span(1, site.devices, site.hardware.domain_sizes)
        exchange_s = float(all_to_all_s(part, inside=inside, rates=site.hardware.rates))
        return exchange_s + self._gather_s(site, other), exchange_s + self._gather_s(site, one)

    def _gather_s(self, site: Site, side: HopSide) -> float:
        """Whole sequences on every tensor rank, from the part each received."""
        if side.sp or side.tp == 1:
            return 0.0
        inside = group_span(1, side.tp, site.hardware.domain_sizes)
        return float(all_gather_s(side.whole * self._sequence_bytes, inside=inside, rates=site.hardware.rates))


def with_hops(columns: PipelineColumns, hops: PipelineHops) -> PipelineColumns:
    """The columns of a pipeline with what its chunks rearrange around their layers.

    Args:
        columns: one row.
        hops: the hops of the same pipeline.
    """
    if not (hops.forward_s.any() or hops.backward_s.any()):
        return columns
    moved_s = ((hops.forward_s + hops.backward_s) * columns.runs).sum(axis=1)
    parts = {**columns.parts_s, "pp": columns.parts_s.get("pp", 0.0) + moved_s[None, :]}
    return replace(
        columns,
        forward_s=columns.forward_s + hops.forward_s,
        backward_s=columns.backward_s + hops.backward_s,
        parts_s=parts,
    )


def _runs(stages: Sequence[Site]) -> Iterator[tuple[int, int]]:
    """Workers of equal size that follow each other in one group: first, and the one behind the last."""
    low = 0
    for place in range(1, len(stages) + 1):
        if place == len(stages) or not _follows(stages[place - 1], stages[place]):
            yield low, place
            low = place


def _follows(one: Site, other: Site) -> bool:
    joined = one.number == other.number and one.contiguous and other.contiguous
    return joined and one.devices == other.devices and other.first == one.last + 1


@lru_cache(maxsize=4096)
def _outermost(first: int, block: int, count: int, sizes: tuple[int, ...]) -> int:
    """The outermost level that neighbours of a row of equal blocks may have between them."""
    if first % (block * count):
        sizes = (*(int(np.gcd(size, first)) for size in sizes[:-1]), sizes[-1])
    inside = [1.0, *(float(np.max(members)) for members in group_span(block, count, sizes))]
    return max(level for level in range(len(sizes)) if inside[level + 1] > inside[level])
